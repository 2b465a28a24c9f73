"""Augmentation against plain loops."""

import doctest

import pytest
import torch

import focalcal_papers.data.augmentation
from focalcal_papers.data import augment, normalise, random_crop, random_flip


@pytest.fixture
def images() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(1, 256, (64, 3, 8, 10), generator=generator, dtype=torch.uint8)


def seeded(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_examples():
    assert doctest.testmod(focalcal_papers.data.augmentation).failed == 0


def test_every_crop_is_one_of_the_padded_windows(images):
    pad = 2
    cropped = random_crop(images, seeded(), pad=pad)
    assert cropped.shape == images.shape
    assert cropped.dtype == torch.uint8
    shifts = set()
    for before, after in zip(images, cropped):
        padded = torch.zeros(3, 8 + 2 * pad, 10 + 2 * pad, dtype=torch.uint8)
        padded[:, pad:-pad, pad:-pad] = before
        found = [
            (dy, dx)
            for dy in range(2 * pad + 1)
            for dx in range(2 * pad + 1)
            if torch.equal(padded[:, dy : dy + 8, dx : dx + 10], after)
        ]
        assert len(found) == 1
        shifts.add(found[0])
    # 64 draws of 25 windows: on average 23 different ones appear.
    assert len(shifts) > 15


def test_flips_mirror_about_half(images):
    flipped = random_flip(images, seeded())
    mirrored = [torch.equal(a.flip(-1), b) for a, b in zip(images, flipped)]
    same = [torch.equal(a, b) for a, b in zip(images, flipped)]
    assert all(m != s for m, s in zip(mirrored, same))
    assert 16 < sum(mirrored) < 48


def test_normalise(images):
    mean, std = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.5, 0.6, 0.7])
    out = normalise(images, mean, std)
    expected = (images[5, 1, 2, 3].item() / 255 - 0.2) / 0.6
    assert out[5, 1, 2, 3].item() == pytest.approx(expected, rel=1e-6)
    assert normalise(images, mean, std, torch.bfloat16).dtype == torch.bfloat16


def test_augment_is_pure_and_seeded(images):
    before = images.clone()
    mean, std = torch.full((3,), 0.5), torch.full((3,), 0.25)
    one, two, other = (augment(images, mean, std, seeded(s)) for s in (1, 1, 2))
    assert torch.equal(images, before)
    assert torch.equal(one, two)
    assert not torch.equal(one, other)
    assert one.is_contiguous(memory_format=torch.channels_last)


def test_augment_is_its_three_steps(images):
    mean, std = torch.full((3,), 0.5), torch.full((3,), 0.25)
    generator = seeded()
    steps = normalise(random_flip(random_crop(images, generator), generator), mean, std)
    assert torch.equal(augment(images, mean, std, seeded()), steps)
    steps = normalise(random_crop(images, seeded(), pad=1), mean, std)
    assert torch.equal(augment(images, mean, std, seeded(), pad=1, flip=False), steps)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_captured_in_a_cuda_graph(images):
    images = images.cuda()
    mean, std = (torch.full((3,), v, device="cuda") for v in (0.5, 0.25))
    generator = torch.Generator("cuda").manual_seed(0)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        augment(images, mean, std, generator)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        out = augment(images, mean, std, generator)
    graph.replay()
    first = out.clone()
    graph.replay()
    assert not torch.equal(first, out)
