"""Extreme eigenvalues of a matrix that is known only by its products, with sign and residual."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from focalcal.curvature._products import (
    Operator,
    default_generator,
    device_of,
    multiply,
    size_of,
)
from focalcal.curvature.trace import blocks_of
from focalcal.errors import InputError

Which = Literal["largest", "smallest", "magnitude"]

BREAKDOWN = 1e-12
"""A new direction this short, relative to the matrix, is rounding: the space is exhausted."""

MIN_PRODUCTS, STEADY = 20, 5
"""Products before stopping, and consecutive steps at which the residuals must be small. In a huge
matrix a random vector is nearly an eigenvector of the bulk: its residual is small long before the
extreme eigenvalues appear."""


@dataclasses.dataclass(frozen=True)
class Eigenvalues:
    """Eigenvalues (k,) with their signs, residuals ‖Au − λu‖ (k,), unit vectors u (n, k).

    For a symmetric matrix an eigenvalue lies within its residual of the value.
    """

    values: Tensor
    residuals: Tensor
    vectors: Tensor
    products: int
    converged: bool


def top_eigenvalues(
    operator: Operator,
    k: int = 1,
    *,
    which: Which = "largest",
    tol: float = 1e-6,
    max_products: int = 300,
    block_size: int = 1,
    generator: torch.Generator | None = None,
    progress: Callable[[float], None] | None = None,
) -> Eigenvalues:
    """The k extreme eigenvalues of a symmetric operator by Lanczos, fully reorthogonalised.

    Args:
        operator: anything with `shape` (n, n) and `@` for (n, b) tensors.
        k: number of eigenvalues.
        which: "largest" (algebraic, descending), "smallest" (ascending, so negative curvature
            comes first) or "magnitude" (descending |λ|, signs kept).
        tol: stop when all residuals have been ≤ tol · the largest |λ| for five steps in a row,
            after at least 20 products.
        max_products: at most this many products; the basis holds as many float64 vectors.
        block_size: vectors per product. An eigenvalue of exact multiplicity m is found m times
            only if block_size ≥ m.
        generator: source of the first vectors; seeded with 0 if None.
        progress: called with the fraction of `max_products` that is spent.

    >>> a = torch.diag(torch.tensor([-5.0, 1.0, 2.0]))
    >>> [round(v, 6) for v in top_eigenvalues(a, 2, which="magnitude").values.tolist()]
    [-5.0, 2.0]

    Reference: Golub & Van Loan, Matrix Computations, §10.1 and §10.3.
    """
    n = size_of(operator)
    if which not in ("largest", "smallest", "magnitude"):
        raise InputError(f"expected which 'largest', 'smallest' or 'magnitude', got {which!r}")
    if not 1 <= k <= n:
        raise InputError(f"expected 1 <= k <= {n}, got {k}")
    if not 1 <= block_size <= n:
        raise InputError(f"expected 1 <= block_size <= {n}, got {block_size}")
    if max_products < k:
        raise InputError(f"expected max_products >= k = {k}, got {max_products}")
    generator = generator or default_generator(operator)
    most = min(n, max_products)

    basis = torch.empty(n, 0, dtype=torch.float64, device=device_of(operator))
    projected = basis.new_empty(0, 0)
    new, _ = _orthonormal(_normal(basis, block_size, generator), basis, 0.0)
    steady = 0
    while True:
        image = multiply(operator, new)
        basis = torch.cat([basis, new], 1)
        products, added = basis.shape[1], new.shape[1]
        projected = F.pad(projected, (0, added, 0, added))
        projected[-added:] = image.T @ basis  # eigh reads the lower triangle only
        values, coordinates = torch.linalg.eigh(projected)
        scale = float(values.abs().max())
        order = _order(values, which)[:k]
        values, coordinates = values[order], coordinates[:, order]
        new, coupling = _orthonormal(image, basis, BREAKDOWN * scale)
        # A(Qs) − λQs = (new · coupling) s_last: exact, as the basis is orthonormal to rounding.
        residuals = (coupling @ coordinates[-added:]).norm(dim=0)
        if progress is not None:
            progress(products / most)
        met = len(values) == k and bool((residuals <= tol * scale).all())
        steady = steady + 1 if met else 0
        converged = met and (products == n or (steady >= STEADY and products >= MIN_PRODUCTS))
        if converged or products >= most:
            return Eigenvalues(values, residuals, basis @ coordinates, products, converged)
        if new.shape[1] == 0:  # an invariant subspace: continue in its complement
            new, _ = _orthonormal(_normal(basis, block_size, generator), basis, 0.0)
        new = new[:, : most - products]


def block_eigenvalues(
    operator: Operator,
    k: int = 1,
    blocks: Mapping[str, slice] | None = None,
    **settings,
) -> dict[str, Eigenvalues]:
    """`top_eigenvalues` of every diagonal block.

    operator: as in `top_eigenvalues`; k: eigenvalues per block, or as many as a smaller block has;
    blocks: name → slice, by default the operator's own `blocks`, one per parameter; settings:
    passed to `top_eigenvalues`.

    >>> a = torch.diag(torch.tensor([1.0, 2.0, 3.0]))
    >>> tops = block_eigenvalues(a, 1, {"first": slice(0, 2), "second": slice(2, 3)})
    >>> {name: round(t.values.item(), 6) for name, t in tops.items()}
    {'first': 2.0, 'second': 3.0}
    """
    parts = {name: DiagonalBlock(operator, s) for name, s in blocks_of(operator, blocks).items()}
    return {
        name: top_eigenvalues(part, min(k, part.shape[0]), **settings)
        for name, part in parts.items()
    }


class DiagonalBlock:
    """The block A[s, s] of an operator, itself an operator; a product costs one of the whole."""

    dtype = torch.float64

    def __init__(self, operator: Operator, s: slice) -> None:
        self.operator = operator
        self.slice = s
        self.device = device_of(operator)
        length = len(range(size_of(operator))[s])
        self.shape = (length, length)

    def __matmul__(self, vectors: Tensor) -> Tensor:
        whole = vectors.new_zeros(size_of(self.operator), *vectors.shape[1:])
        whole[self.slice] = vectors
        return multiply(self.operator, whole)[self.slice]


def _order(values: Tensor, which: Which) -> Tensor:
    if which == "smallest":
        return values.argsort()
    return (values if which == "largest" else values.abs()).argsort(descending=True)


def _orthonormal(vectors: Tensor, basis: Tensor, least: float) -> tuple[Tensor, Tensor]:
    """(Q, R): Q spans what `vectors` add to `basis`, and vectors = basis·(…) + Q·R.

    Directions no longer than `least` are dropped.
    """
    rest = vectors
    for _ in range(2):  # twice is enough (Kahan, Parlett)
        rest = rest - basis @ (basis.T @ rest)
    q, r = torch.linalg.qr(rest)
    u, lengths, v = torch.linalg.svd(r)
    kept = lengths > least
    return q @ u[:, kept], lengths[kept, None] * v[kept]


def _normal(basis: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Random vectors, at most as many as the basis lacks."""
    n = len(basis)
    shape = (min(count, n - basis.shape[1]), n)
    values = torch.randn(shape, generator=generator, device=generator.device, dtype=basis.dtype)
    return values.T.to(basis.device)
