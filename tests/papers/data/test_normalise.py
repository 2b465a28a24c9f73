import pytest
import torch

from focalcal_papers.data import normalise


def test_normalise():
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(1, 256, (64, 3, 8, 10), generator=generator, dtype=torch.uint8)
    before = images.clone()
    mean, std = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.5, 0.6, 0.7])
    out = normalise(images, mean, std)
    expected = (images[5, 1, 2, 3].item() / 255 - 0.2) / 0.6
    assert out[5, 1, 2, 3].item() == pytest.approx(expected, rel=1e-6)
    assert normalise(images, mean, std, torch.bfloat16).dtype == torch.bfloat16
    assert torch.equal(images, before)
