"""What the algorithms need of a matrix: its size and its products, in float64."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from focalcal.errors import InputError

BLOCK_NUMBERS = 2**26
"""Numbers in a block of probes that share one product: half a gigabyte in float64."""


class Operator(Protocol):
    """A symmetric matrix known by its products; a dense tensor is one."""

    shape: Any

    def __matmul__(self, vectors: Tensor) -> Tensor: ...


def size_of(operator: Operator) -> int:
    shape = tuple(getattr(operator, "shape", ()))
    if len(shape) != 2 or shape[0] != shape[1] or shape[0] < 1:
        raise InputError(f"expected a square operator with a shape (n, n), got shape {shape}")
    return int(shape[0])


def device_of(operator: Operator) -> torch.device:
    return torch.device(getattr(operator, "device", "cpu"))


def default_generator(operator: Operator) -> torch.Generator:
    """Seed 0 on the operator's device: the same probes each time and in every process."""
    return torch.Generator(device_of(operator)).manual_seed(0)


def multiply(operator: Operator, vectors: Tensor) -> Tensor:
    """operator @ vectors in float64, whatever precision the operator works in."""
    dtype = getattr(operator, "dtype", torch.float64)
    return (operator @ vectors.to(dtype)).to(torch.float64)


def in_chunks(operator: Operator, count: int) -> list[int]:
    """`count` vectors as chunk sizes whose blocks hold at most BLOCK_NUMBERS numbers each."""
    most = max(1, BLOCK_NUMBERS // size_of(operator))
    full, rest = divmod(count, most)
    return [most] * full + ([rest] if rest else [])


def random_signs(operator: Operator, count: int, generator: torch.Generator) -> Tensor:
    """`count` columns of ±1, shape (n, count); a column does not depend on how many follow it."""
    shape = (count, size_of(operator))
    rows = torch.randint(0, 2, shape, generator=generator, device=generator.device)
    return (2 * rows - 1).T.to(device_of(operator), torch.float64)
