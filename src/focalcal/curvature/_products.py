"""What the algorithms need from a matrix: its size, float64 products and random vectors."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from focalcal.errors import InputError


class Operator(Protocol):
    """A symmetric matrix known by its products; a dense tensor is one."""

    shape: Any

    def __matmul__(self, vectors: Tensor) -> Tensor: ...


class Matrix:
    """An operator (n, n) on its device, and the source of random vectors.

    Without a generator the seed is 0: the same vectors each time and in every process.
    """

    def __init__(self, operator: Operator, generator: torch.Generator | None = None) -> None:
        shape = tuple(getattr(operator, "shape", ()))
        if len(shape) != 2 or shape[0] != shape[1] or shape[0] < 1:
            raise InputError(f"expected a square operator with a shape (n, n), got shape {shape}")
        self.dtype = getattr(operator, "dtype", torch.float64)
        if not (isinstance(self.dtype, torch.dtype) and self.dtype.is_floating_point):
            raise InputError(
                f"expected an operator on floating-point tensors, got {type(operator).__name__} of "
                f"dtype {self.dtype}; convert a matrix with torch.as_tensor(...).double()"
            )
        self.operator, self.n = operator, int(shape[0])
        self.device = torch.device(getattr(operator, "device", "cpu"))
        self.generator = generator or torch.Generator(self.device).manual_seed(0)

    def __matmul__(self, vectors: Tensor) -> Tensor:
        """The product in float64, whatever precision the operator works in."""
        product = (self.operator @ vectors.to(self.dtype)).to(torch.float64)
        if not bool(torch.isfinite(product).all()):
            raise InputError(
                "expected finite products, got NaN or infinity; the second derivative does not "
                "exist here, as that of a norm at 0, or it exceeds the precision of the parameters"
            )
        return product

    def signs(self, count: int) -> Tensor:
        """`count` columns of ±1, (n, count); a column does not depend on how many follow it."""
        g = self.generator
        rows = torch.randint(0, 2, (count, self.n), generator=g, device=g.device)
        return (2 * rows - 1).T.to(self.device, torch.float64)

    def normals(self, count: int) -> Tensor:
        """`count` columns of standard normal numbers, (n, count)."""
        g = self.generator
        rows = torch.randn(count, self.n, generator=g, device=g.device, dtype=torch.float64)
        return rows.T.to(self.device)
