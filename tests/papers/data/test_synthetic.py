"""Made-up sets: seeded, of the asked size, learnable."""

import pytest
import torch

from focalcal.errors import InputError
from focalcal_papers.data import load


@pytest.mark.parametrize("name", ["blobs", "synthetic_images", "square_clusters"])
def test_sizes_and_seeds(name):
    data, same, other = (load(name, seed=s, n_train=80, n_test=20) for s in (0, 0, 1))
    assert (len(data.train), len(data.calibration), len(data.test)) == (70, 10, 20)
    assert torch.equal(data.train.inputs, same.train.inputs)
    assert not torch.equal(data.train.inputs, other.train.inputs)
    assert len(load(name, n_train=80, n_test=20, calibration=30).calibration) == 30


def test_images_can_have_any_shape():
    data = load("synthetic_images", n_train=16, n_test=4, input_shape=(1, 28, 28), n_classes=4)
    assert data.input_shape == (1, 28, 28)
    assert data.train.inputs.dtype == torch.uint8
    assert data.mean.shape == (1,)
    assert data.n_classes == 4


def test_blobs_are_separable():
    data = load("blobs", spread=0.3)
    centres = torch.stack([data.train.inputs[data.train.labels == k].mean(0) for k in range(3)])
    nearest = torch.cdist(data.test.inputs, centres).argmin(1)
    assert (nearest == data.test.labels).float().mean() > 0.95


def test_square_clusters_follow_appendix_g():
    data = load("square_clusters", n_train=8000, n_test=8000)
    x, y = data.test.inputs, data.test.labels
    agrees = ((x[:, 0] > 0).long() == y).float().mean().item()
    assert agrees == pytest.approx(0.9, abs=0.015)
    # Two clusters per class: the second coordinate says nothing about the label.
    assert ((x[:, 1] > 0).long() == y).float().mean().item() == pytest.approx(0.5, abs=0.025)
    with pytest.raises(InputError, match="flipped share"):
        load("square_clusters", flipped=0.5)
