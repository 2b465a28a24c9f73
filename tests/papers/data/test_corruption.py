"""Corruptions: what each does, and that severity orders them."""

import doctest

import pytest
import torch
from scipy import ndimage

import focalcal_papers.data.corruption
from focalcal.errors import InputError
from focalcal_papers.data import CORRUPTIONS, corrupt


@pytest.fixture
def images() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (16, 3, 32, 32), generator=generator, dtype=torch.uint8)


def test_examples():
    assert doctest.testmod(focalcal_papers.data.corruption).failed == 0


@pytest.mark.parametrize("kind", sorted(CORRUPTIONS))
def test_severity_grows_and_images_stay_images(images, kind):
    before = images.clone()
    distances = []
    for severity in range(1, 6):
        out = corrupt(images, kind, severity, torch.Generator().manual_seed(1))
        assert out.dtype == torch.uint8
        assert out.shape == images.shape
        distances.append((out.float() - images.float()).abs().mean().item())
    assert distances == sorted(distances)
    assert distances[0] > 1
    assert torch.equal(images, before)


def test_blur_is_scipys_gaussian(images):
    out = corrupt(images, "gaussian_blur", 5)
    # SciPy's filter truncates at four standard deviations too, and 'nearest' repeats the border.
    want = ndimage.gaussian_filter(images.numpy() / 255.0, (0, 0, 1.0, 1.0), mode="nearest")
    assert (out.float() - torch.from_numpy(255 * want)).abs().max() <= 0.51


def test_contrast_keeps_the_mean_and_shrinks_the_spread(images):
    out = corrupt(images, "contrast", 4).float()
    torch.testing.assert_close(out.mean((2, 3)), images.float().mean((2, 3)), atol=0.1, rtol=0)
    ratio = out.std((2, 3)) / images.float().std((2, 3))
    torch.testing.assert_close(ratio, torch.full_like(ratio, 0.3), atol=0.01, rtol=0)


def test_noise_has_its_strength():
    grey = torch.full((64, 3, 32, 32), 128, dtype=torch.uint8)
    noise = corrupt(grey, "gaussian_noise", 5, torch.Generator().manual_seed(0)).float() - 128
    assert noise.std().item() / 255 == pytest.approx(0.10, rel=0.02)
    assert abs(noise.mean().item()) < 0.2


def test_bad_requests(images):
    with pytest.raises(InputError, match=r"corruption of \['contrast', .*got 'fog'"):
        corrupt(images, "fog", 1)
    for severity in (0, 6):
        with pytest.raises(InputError, match="severity of 1 to 5"):
            corrupt(images, "contrast", severity)
