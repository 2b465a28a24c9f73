"""Lanczos on a matrix known only by its products: extreme eigenvalues and spectral density."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from focalcal._checks import check_whole
from focalcal.curvature._products import Matrix, Operator
from focalcal.curvature.trace import blocks_of
from focalcal.errors import InputError

Which = Literal["largest", "smallest", "magnitude"]

BREAKDOWN = 1e-12
"""A new direction this short, relative to the matrix, is rounding error: the space is exhausted."""

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
        operator, generator, progress: as in `hessian_trace`.
        k: number of eigenvalues.
        which: "largest" (algebraic, descending), "smallest" (ascending, so negative curvature
            comes first) or "magnitude" (descending |λ|, signs kept).
        tol: stop when all residuals have been ≤ tol · the largest |λ| for five steps in a row,
            after at least 20 products.
        max_products: at most this many products; the basis holds as many float64 vectors.
        block_size: vectors per product. An eigenvalue of exact multiplicity m is found m times
            only if block_size ≥ m.

    >>> a = torch.diag(torch.tensor([-5.0, 1.0, 2.0]))
    >>> [round(v, 6) for v in top_eigenvalues(a, 2, which="magnitude").values.tolist()]
    [-5.0, 2.0]

    Reference: Golub & Van Loan, Matrix Computations, §10.1 and §10.3.
    """
    a = Matrix(operator, generator)
    n = a.n
    if which not in ("largest", "smallest", "magnitude"):
        raise InputError(f"expected which 'largest', 'smallest' or 'magnitude', got {which!r}")
    if not 1 <= k <= n:
        raise InputError(f"expected 1 <= k <= {n}, got {k}")
    if not 1 <= block_size <= n:
        raise InputError(f"expected 1 <= block_size <= {n}, got {block_size}")
    if max_products < k:
        raise InputError(f"expected max_products >= k = {k}, got {max_products}")
    most = min(n, max_products)
    new = basis = torch.empty(n, 0, dtype=torch.float64, device=a.device)
    projected = basis.new_empty(0, 0)
    steady = 0
    while True:
        if new.shape[1] == 0:  # at first, and in an invariant subspace: go on in its complement
            new, _ = _orthonormal(a.normals(min(block_size, n - basis.shape[1])), basis, 0.0)
        new = new[:, : most - basis.shape[1]]
        image = a @ new
        basis = torch.cat([basis, new], 1)
        products, added = basis.shape[1], new.shape[1]
        projected = F.pad(projected, (0, added, 0, added))
        projected[-added:] = image.T @ basis  # eigh reads the lower triangle only
        values, coordinates = torch.linalg.eigh(projected)
        scale = float(values.abs().max())
        ranks = {"largest": -values, "smallest": values, "magnitude": -values.abs()}
        order = ranks[which].argsort()[:k]
        values, coordinates = values[order], coordinates[:, order]
        new, coupling = _orthonormal(image, basis, BREAKDOWN * scale)
        # A(Qs) − λQs = (new · coupling) s_last, since the basis is orthonormal up to rounding.
        residuals = (coupling @ coordinates[-added:]).norm(dim=0)
        if progress is not None:
            progress(products / most)
        met = len(values) == k and bool((residuals <= tol * scale).all())
        steady = steady + 1 if met else 0
        converged = met and (products == n or (steady >= STEADY and products >= MIN_PRODUCTS))
        if converged or products >= most:
            return Eigenvalues(values, residuals, basis @ coordinates, products, converged)


def block_eigenvalues(
    operator: Operator, k: int = 1, blocks: Mapping[str, slice] | None = None, **settings
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
    """The block A[s, s] of an operator, itself an operator; a product costs one with all of A."""

    dtype = torch.float64

    def __init__(self, operator: Operator, s: slice) -> None:
        self.whole, self.slice = Matrix(operator), s
        self.device = self.whole.device
        length = len(range(self.whole.n)[s])
        self.shape = (length, length)

    def __matmul__(self, vectors: Tensor) -> Tensor:
        padded = vectors.new_zeros(self.whole.n, *vectors.shape[1:])
        padded[self.slice] = vectors
        return (self.whole @ padded)[self.slice]


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


@dataclasses.dataclass(frozen=True)
class SpectralDensity:
    """A spectrum of n eigenvalues: nodes and weights (probes, steps); a row of weights sums to 1.

    In each row Σ_j w_j f(θ_j) is an unbiased estimate of tr f(A)/n for polynomials f of degree
    below 2·steps; rows are independent, so their spread gives the standard error.
    """

    nodes: Tensor
    weights: Tensor
    n: int

    def moment(self, power: int) -> tuple[float, float]:
        """(tr(A^power)/n, standard error)."""
        values = (self.weights * self.nodes**power).sum(1)
        error = float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else math.inf
        return float(values.mean()), error

    def at(self, grid: Tensor, width: float | None = None) -> Tensor:
        """The density on `grid`, a mixture of Gaussians that integrates to one.

        width: standard deviation of the Gaussians, 1 % of the range of the spectrum if None.
        """
        width = self.default_width() if width is None else width
        if not width > 0:
            raise InputError(f"expected width > 0, got {width}")
        grid = grid.to(self.nodes)
        bumps = torch.exp(-0.5 * ((grid[:, None] - self.nodes.reshape(1, -1)) / width) ** 2)
        weights = self.weights.reshape(-1) / len(self.weights)
        return (bumps @ weights) / (width * math.sqrt(2 * math.pi))

    def share_above(self, threshold: float) -> float:
        """The share of eigenvalues above `threshold`."""
        return float((self.weights * (self.nodes > threshold)).sum() / len(self.weights))

    def default_width(self) -> float:
        low, high = float(self.nodes.min()), float(self.nodes.max())
        return 0.01 * (high - low) or 0.01 * max(abs(high), 1e-12)


def spectral_density(
    operator: Operator,
    *,
    probes: int = 8,
    steps: int = 40,
    at_once: int | None = None,
    generator: torch.Generator | None = None,
    progress: Callable[[float], None] | None = None,
) -> SpectralDensity:
    """Stochastic Lanczos quadrature.

    For a sign vector v, the eigenvalues θ_j of its tridiagonal Lanczos matrix and the squared
    first components of the eigenvectors are the nodes and weights of a Gauss quadrature.

    Args:
        operator, generator, progress: as in `hessian_trace`.
        probes: independent starting vectors; each costs `steps` products.
        steps: nodes per probe (at most n).
        at_once: probes that share each product, all if None; they need
            at_once · steps · n float64 numbers of memory.

    >>> density = spectral_density(torch.diag(torch.tensor([-1.0, 0.0, 4.0])), probes=2)
    >>> [round(x, 4) for x in density.moment(2)]
    [5.6667, 0.0]

    Reference: Golub & Meurant 2010; Ghorbani et al. 2019, Algorithm 1.
    """
    a = Matrix(operator, generator)
    probes = check_whole(probes, "probes", 1)
    steps = min(check_whole(steps, "steps", 1), a.n)
    at_once = probes if at_once is None else check_whole(at_once, "at_once", 1)
    nodes, weights = [], []
    for done in range(0, probes, at_once):
        start = a.signs(min(at_once, probes - done))
        matrix = start.new_zeros(start.shape[1], steps, steps)
        for step in _tridiagonalise(a, start, matrix):
            if progress is not None:
                progress((done + start.shape[1] * step / steps) / probes)
        theta, vectors = torch.linalg.eigh(matrix)
        nodes.append(theta.cpu())
        weights.append(vectors[:, 0, :].square().cpu())
    return SpectralDensity(torch.cat(nodes), torch.cat(weights), a.n)


def _tridiagonalise(a: Matrix, start: Tensor, matrix: Tensor) -> Iterator[int]:
    """Fill the Lanczos matrices (k, steps, steps) of k starting columns, yielding 1, …, steps.

    A column whose Krylov space is exhausted continues as zeros: the rest of its matrix is a
    separate zero block, which gets no weight.
    """
    steps = matrix.shape[1]
    q = start / start.norm(dim=0)
    basis = q.new_zeros(steps, *q.shape)
    scale = q.new_zeros(start.shape[1])
    for j in range(steps):
        basis[j] = q
        image = a @ q
        matrix[:, j, j] = (q * image).sum(0)
        yield j + 1
        if j + 1 == steps:
            break
        scale = torch.maximum(scale, image.norm(dim=0))
        for _ in range(2):  # full reorthogonalisation: without it, eigenvalues are duplicated
            overlap = torch.einsum("jnk,nk->jk", basis[: j + 1], image)
            image = image - torch.einsum("jnk,jk->nk", basis[: j + 1], overlap)
        beta = image.norm(dim=0)
        alive = beta > BREAKDOWN * scale
        beta = torch.where(alive, beta, 0.0)
        matrix[:, j, j + 1] = matrix[:, j + 1, j] = beta
        q = torch.where(alive, image / torch.where(alive, beta, 1.0), 0.0)
