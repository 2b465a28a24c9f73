"""Penalised multinomial logistic regression on logits: the fit behind every affine calibrator."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import scipy.linalg
import scipy.optimize
from threadpoolctl import threadpool_limits

from focalcal._arrays import log_softmax
from focalcal._blocks import map_blocks

MAX_ITERATIONS = 1000
LARGE = 2**22
"""Elements of x from which products are in float32."""
MAX_WHITENED = 1200
"""Up to so many parameters the Hessian of a sample is formed; past it, its diagonal."""
_HESSIAN_ROWS = 20_000
_BLOCK = 2**16


@dataclasses.dataclass(frozen=True)
class Penalty:
    """λ of λ/2·‖·‖² on the deviations of diagonal, off-diagonal and bias; mean NLL is added.

    `off_diagonal` None: the off-diagonal stays zero.
    """

    diagonal: float
    bias: float
    off_diagonal: float | None = None

    def identity(self, k: int) -> np.ndarray:
        """The W that is not penalised: (K,) ones, or (K, K)."""
        return np.ones(k) if self.off_diagonal is None else np.eye(k)

    def each(self, k: int) -> np.ndarray:
        """λ of each number of W and of b, in a row."""
        if self.off_diagonal is None:
            return np.repeat([self.diagonal, self.bias], k)
        matrix = np.full((k, k), self.off_diagonal)
        np.fill_diagonal(matrix, self.diagonal)
        return np.concatenate([matrix.reshape(-1), np.full(k, self.bias)])


@dataclasses.dataclass(frozen=True)
class AffineFit:
    """softmax(Wx + b): W is (K,) for a diagonal, else (K, K) acting as x @ W.T; b is (K,)."""

    weight: np.ndarray
    bias: np.ndarray
    iterations: int
    converged: bool
    loss: float


def fit_affine(
    x: np.ndarray, labels: np.ndarray, weights: np.ndarray, penalty: Penalty
) -> AffineFit:
    """Minimise mean NLL of softmax(Wx + b) plus penalties on W − I and b; convex.

    x: (N, K) float64; labels: (N,); weights: (N,) with mean 1. L-BFGS with the exact gradient
    from W = I, b = 0, so the fitted NLL never exceeds that of softmax(x).
    """
    large = x.size > LARGE
    x = x.astype(np.float32) if large else x
    enough = (1e-5, 1e-5) if large else (1e-11, 1e-6)  # what float32 sums can tell
    root = _root(x, weights, penalty)

    def sums(weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
        return gradient_sums(x, labels, weights, weight, bias)

    with threadpool_limits(1, "blas"):  # the blocks already run on all cores
        start = np.zeros(len(root))
        return _minimise(sums, *x.shape, penalty, start, root, enough)  # type: ignore[call-arg]


def fit_affine_sums(
    x: np.ndarray,
    labels: np.ndarray,
    penalty: Penalty,
    sums: Callable[[np.ndarray, np.ndarray], np.ndarray],
    n: int,
) -> AffineFit:
    """`fit_affine` to n samples of which x and labels are some; sums(W, b): as `gradient_sums`.

    It starts from the fit to these, in coordinates in which a unit step is a Newton step.
    """
    k, ones = x.shape[1], np.ones(len(x))
    few = fit_affine(x, labels, ones, penalty)
    start = np.concatenate([(few.weight - penalty.identity(k)).reshape(-1), few.bias])
    if len(start) <= MAX_WHITENED:
        root = _hessian_root(x[:_HESSIAN_ROWS], few, penalty)
    else:
        root = _root(x, ones, penalty)
    return _minimise(sums, n, k, penalty, start, root, (1e-13, 1e-6))


def _minimise(
    sums: Callable[[np.ndarray, np.ndarray], np.ndarray],
    n: int,
    k: int,
    penalty: Penalty,
    start: np.ndarray,
    root: np.ndarray,
    enough: tuple[float, float],
) -> AffineFit:
    """L-BFGS from `start` in coordinates u with flat = start + R⁻¹u.

    start: deviations of W from I, then b, in a row; root: R, upper triangular or its diagonal;
    enough: relative change of the value, and gradient, at which to stop.
    """
    shrink, identity = penalty.each(k), penalty.identity(k)

    def solved(v: np.ndarray, trans: str = "N") -> np.ndarray:
        return v / root if root.ndim == 1 else scipy.linalg.solve_triangular(root, v, trans=trans)

    def parameters(u: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        flat = start + solved(u)
        return flat, identity + flat[:-k].reshape(identity.shape), flat[-k:]

    def objective(u: np.ndarray) -> tuple[float, np.ndarray]:
        flat, weight, bias = parameters(u)
        total = sums(weight, bias)
        value = total[0] / n + 0.5 * float(np.sum(shrink * flat**2))
        return value, solved(total[1:] / n + shrink * flat, "T")

    options = {"maxiter": MAX_ITERATIONS, "maxfun": 2 * MAX_ITERATIONS}
    options |= dict(zip(("ftol", "gtol"), enough))
    found = scipy.optimize.minimize(
        objective, np.zeros(len(start)), jac=True, method="L-BFGS-B", options=options
    )
    flat, weight, bias = parameters(found.x)
    loss = float(found.fun) - 0.5 * float(np.sum(shrink * flat**2))
    return AffineFit(weight, bias, int(found.nfev), bool(found.success), loss)


def _root(x: np.ndarray, weights: np.ndarray, penalty: Penalty) -> np.ndarray:
    """The root of the Hessian's diagonal: in its units all directions are about equally steep."""
    full = penalty.off_diagonal is not None
    return np.sqrt(curvatures(x, weights, full) + penalty.each(x.shape[1]) + 1e-6)


def _hessian_root(x: np.ndarray, fitted: AffineFit, penalty: Penalty) -> np.ndarray:
    """Upper triangular R with RᵀR the Hessian at a fit to x."""
    n, k = x.shape
    full, shrink = penalty.off_diagonal is not None, penalty.each(k)
    z = x @ fitted.weight.T + fitted.bias if full else x * fitted.weight + fitted.bias
    p = np.exp(log_softmax(z))
    hessian = np.empty((len(shrink), len(shrink)))
    ones = np.concatenate([x, np.ones((n, 1))], axis=1)
    # Where the weights and the bias of each class stand in the flat vector.
    places = [[*range(i * k, (i + 1) * k), k * k + i] if full else [i, k + i] for i in range(k)]
    for i in range(k):
        for j in range(k):
            c = (p[:, i] * ((i == j) - p[:, j]) / n)[:, None]
            left, right = (ones, ones) if full else (ones[:, [i, k]], ones[:, [j, k]])
            hessian[np.ix_(places[i], places[j])] = left.T @ (c * right)
    # Adding a constant to all logits changes nothing: those directions get a little of their own.
    ridge = 1e-8 * float(np.trace(hessian)) / len(shrink) + math.ulp(1.0)
    hessian[np.diag_indices_from(hessian)] += shrink + ridge
    return np.linalg.cholesky(hessian).T


def curvatures(x: np.ndarray, weights: np.ndarray, full: bool) -> np.ndarray:
    """Diagonal of the Hessian of the mean NLL by W and b at W = I, b = 0, in a row.

    In its units every direction is about equally steep, which saves most of the iterations.
    """

    def block(rows: slice) -> np.ndarray:
        own_x = x[rows]
        p = np.exp(own_x - own_x.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        p *= (1 - p) * weights[rows, None].astype(x.dtype)
        squares = own_x * own_x
        by_weight = p.T @ squares if full else np.einsum("ij,ij->j", p, squares)
        return np.concatenate([by_weight.reshape(-1), p.sum(axis=0)])

    parts = map_blocks(block, len(x), max(1, _BLOCK // x.shape[1]))
    return np.sum(parts, axis=0, dtype=np.float64) / len(x)


def gradient_sums(
    x: np.ndarray, labels: np.ndarray, weights: np.ndarray, weight: np.ndarray, bias: np.ndarray
) -> np.ndarray:
    """Weighted sums of the NLL of softmax(Wx + b) and of its derivatives by W and b, in a row."""
    full = weight.ndim == 2
    weight, bias = weight.astype(x.dtype), bias.astype(x.dtype)
    size = max(1, _BLOCK // x.shape[1], min(512, LARGE // x.shape[1]) if full else 1)

    def block(rows: slice) -> np.ndarray:
        own, own_x = labels[rows], x[rows]
        w = weights[rows].astype(x.dtype)
        z = own_x @ weight.T + bias if full else own_x * weight + bias
        z -= z.max(axis=1, keepdims=True)
        picked = np.take_along_axis(z, own[:, None], axis=1)[:, 0]
        np.exp(z, out=z)
        total = z.sum(axis=1)
        loss = float(w @ (np.log(total) - picked))
        z *= (w / total)[:, None]
        z[np.arange(len(own)), own] -= w
        by_weight = z.T @ own_x if full else np.einsum("ij,ij->j", z, own_x)
        return np.concatenate([[loss], by_weight.reshape(-1), z.sum(axis=0)])

    return np.sum(map_blocks(block, len(x), size), axis=0, dtype=np.float64)
