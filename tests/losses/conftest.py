"""Cases that every loss is run on."""

from __future__ import annotations

import warnings
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from focalcal.losses import make_loss

INTEGER_ONLY = ["mmce", "adafocal", "dual-focal"]
PER_SAMPLE = ["ce", "ls-0.05", "brier", "fl-0.5", "fl-3", "fls-531", "fla-53", "fla-532"]
PER_SAMPLE += ["adafocal", "dual-focal-0.5", "dual-focal", "proper-focal-2"]
ALL = [*PER_SAMPLE, "mmce"]


def case(n: int = 9, n_classes: int = 5, *, scale: float = 2.0, dtype=torch.float64, seed: int = 0):
    """Random logits (N, C) that require a gradient, and labels (N,)."""
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(n, n_classes, generator=generator, dtype=torch.float64)
    labels = torch.randint(n_classes, (n,), generator=generator)
    return logits.to(dtype).requires_grad_(), labels


def mixed_adafocal(**settings):
    """AdaFocal with bins of both signs, so that focal and inverse focal both occur."""
    loss = make_loss("adafocal", bins=4, **settings)
    loss.gammas.copy_(torch.tensor([3.0, -0.7, 0.5, -2.0]))
    return loss


def build(name: str, **settings):
    return mixed_adafocal(**settings) if name == "adafocal" else make_loss(name, **settings)


def gradient(value: Tensor, logits: Tensor) -> Tensor:
    return torch.autograd.grad(value, logits)[0]


@contextmanager
def waiting_raises():
    """Inside, a CUDA operation that waits for the device is an error."""
    with warnings.catch_warnings():  # PyTorch warns once that the mode is a prototype
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
