"""Splits: disjoint by construction, and refused when they are not."""

import doctest

import pytest
import torch

import focalcal_papers.data.splits
from focalcal.errors import InputError
from focalcal_papers.data import DataSplits, Split, cut, load


def part(*indices: int) -> Split:
    index = torch.tensor(indices)
    return Split(index[:, None].float(), index % 2, index)


def make(train=(0, 1, 2), calibration=(3, 4), test=(5, 6), n_source=7) -> DataSplits:
    return DataSplits(
        "toy", part(*train), part(*calibration), part(*test), ("a", "b"), n_source=n_source
    )


def test_examples():
    assert doctest.testmod(focalcal_papers.data.splits).failed == 0


def test_a_good_cut_is_accepted():
    data = make()
    assert list(data.parts()) == ["train", "calibration", "test"]
    assert data.n_classes == 2
    assert data.input_shape == (1,)


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ({"calibration": (2, 3)}, r"both train and calibration \(first: 2\)"),
        ({"test": (0, 6)}, r"both train and test \(first: 0\)"),
        ({"test": (4, 6)}, r"both calibration and test \(first: 4\)"),
        ({"train": (0, 1, 1)}, "each sample once in train, got index 1 twice"),
        ({"test": (5, 7)}, r"test indices in 0\.\.6, got 5\.\.7"),
        ({"n_source": 3}, r"calibration indices in 0\.\.2, got 3\.\.4"),
    ],
)
def test_overlap_and_range(indices, message):
    with pytest.raises(InputError, match=message):
        make(**indices)


def test_negative_index():
    with pytest.raises(InputError, match=r"got -1\.\.5"):
        make(test=(-1, 5))


@pytest.mark.parametrize(
    ("split", "message"),
    [
        (Split(torch.zeros(2, 1), torch.tensor([0]), torch.tensor([5])), "as many inputs"),
        (Split(torch.zeros(1, 1), torch.tensor([2]), torch.tensor([5])), r"labels in 0\.\.1"),
        (Split(torch.zeros(1, 1), torch.tensor([0.0]), torch.tensor([5])), "int64 labels"),
        (
            Split(torch.zeros(0, 1), torch.tensor([], dtype=torch.int64), torch.tensor([])),
            "at least one sample in test",
        ),
    ],
)
def test_unusable_parts(split, message):
    with pytest.raises(InputError, match=message):
        DataSplits("toy", part(0, 1), part(2), split, ("a", "b"), n_source=7)


def test_cut_is_a_seeded_partition():
    train, calibration = cut(100, 30, seed=1)
    assert sorted([*train.tolist(), *calibration.tolist()]) == list(range(100))
    assert torch.equal(calibration, cut(100, 30, seed=1)[1])
    assert not torch.equal(calibration, cut(100, 30, seed=2)[1])


@pytest.mark.parametrize("size", [0, 10, 11])
def test_cut_needs_both_parts(size):
    with pytest.raises(InputError, match=r"calibration size in 1\.\.9"):
        cut(10, size, seed=0)


def test_batch_takes_rows_by_position():
    batch = load("blobs", n_train=40, n_test=10).train.batch(torch.tensor([3, 1]))
    data = load("blobs", n_train=40, n_test=10).train
    assert torch.equal(batch.inputs, data.inputs[[3, 1]])
    assert torch.equal(batch.targets, data.labels[[3, 1]])


def test_to_moves_everything_but_the_indices():
    data = load("synthetic_images", n_train=40, n_test=10)
    # Structure only: the meta device holds no values, so the check of the cut cannot run there.
    split = data.train.to("meta")
    assert split.inputs.device.type == split.labels.device.type == "meta"
    assert split.indices.device.type == "cpu"
    same = data.to("cpu")
    assert torch.equal(same.mean, data.mean)
    assert same.vectors is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_resident_on_the_gpu():
    data = load("synthetic_images", device="cuda", n_train=40, n_test=10)
    for split in data.parts().values():
        assert split.inputs.is_cuda
        assert split.inputs.dtype == torch.uint8
    assert data.mean.is_cuda
