"""The spectral density of a matrix known only by its products: stochastic Lanczos quadrature."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from focalcal.curvature._products import (
    Operator,
    default_generator,
    multiply,
    random_signs,
    size_of,
)
from focalcal.errors import InputError


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
        operator: anything with `shape` (n, n) and `@` for (n, k) tensors.
        probes: independent starting vectors; each costs `steps` products.
        steps: nodes per probe (at most n).
        at_once: probes that share each product, all if None; they need
            at_once · steps · n float64 numbers of memory.
        generator: source of the probes; seeded with 0 if None.
        progress: called with the fraction done.

    >>> density = spectral_density(torch.diag(torch.tensor([-1.0, 0.0, 4.0])), probes=2)
    >>> [round(x, 4) for x in density.moment(2)]
    [5.6667, 0.0]

    Reference: Golub & Meurant 2010; Ghorbani et al. 2019, Algorithm 1.
    """
    n = size_of(operator)
    for name, value in (("probes", probes), ("steps", steps), ("at_once", at_once or 1)):
        if value < 1:
            raise InputError(f"expected {name} >= 1, got {value}")
    generator = generator or default_generator(operator)
    steps = min(steps, n)

    def report(done: int, count: int, step: int) -> None:
        if progress is not None:
            progress((done + count * step / steps) / probes)

    nodes, weights = [], []
    for done in range(0, probes, at_once or probes):
        count = min(at_once or probes, probes - done)
        start = random_signs(operator, count, generator)
        matrix = _tridiagonal(operator, start, steps, partial(report, done, count))
        theta, vectors = torch.linalg.eigh(matrix)
        nodes.append(theta.cpu())
        weights.append(vectors[:, 0, :].square().cpu())
    return SpectralDensity(torch.cat(nodes), torch.cat(weights), n)


def _tridiagonal(
    operator: Operator, start: Tensor, steps: int, report: Callable[[int], None]
) -> Tensor:
    """Lanczos matrices (k, steps, steps) of k starting columns.

    A column whose Krylov space is exhausted continues as zeros: the rest of its matrix is a
    separate zero block, which gets no weight.
    """
    q = start / start.norm(dim=0)
    basis = q.new_zeros(steps, *q.shape)
    matrix = q.new_zeros(start.shape[1], steps, steps)
    scale = q.new_zeros(start.shape[1])
    for j in range(steps):
        basis[j] = q
        image = multiply(operator, q)
        report(j + 1)
        matrix[:, j, j] = (q * image).sum(0)
        if j + 1 == steps:
            break
        scale = torch.maximum(scale, image.norm(dim=0))
        for _ in range(2):  # full reorthogonalisation: without it copies of eigenvalues appear
            overlap = torch.einsum("jnk,nk->jk", basis[: j + 1], image)
            image = image - torch.einsum("jnk,jk->nk", basis[: j + 1], overlap)
        beta = image.norm(dim=0)
        alive = beta > 1e-12 * scale
        beta = torch.where(alive, beta, 0.0)
        matrix[:, j, j + 1] = matrix[:, j + 1, j] = beta
        q = torch.where(alive, image / torch.where(alive, beta, 1.0), 0.0)
    return matrix
