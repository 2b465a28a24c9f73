"""Penalised multinomial logistic regression on logits: the fit behind every affine calibrator."""

from __future__ import annotations

import dataclasses

import numpy as np
import scipy.optimize
from threadpoolctl import threadpool_limits

from focalcal._blocks import map_blocks

MAX_ITERATIONS = 1000
LARGE = 2**22
"""Elements of x from which products are in float32."""
_BLOCK = 2**16


@dataclasses.dataclass(frozen=True)
class Penalty:
    """λ of λ/2·‖·‖² on the deviations of diagonal, off-diagonal and bias; mean NLL is added.

    `off_diagonal` None: the off-diagonal stays zero.
    """

    diagonal: float
    bias: float
    off_diagonal: float | None = None


@dataclasses.dataclass(frozen=True)
class AffineFit:
    """softmax(Wx + b): W is (K,) for a diagonal, else (K, K) acting as x @ W.T; b is (K,)."""

    weight: np.ndarray
    bias: np.ndarray
    iterations: int
    converged: bool


def fit_affine(
    x: np.ndarray, labels: np.ndarray, weights: np.ndarray, penalty: Penalty
) -> AffineFit:
    """Minimise mean NLL of softmax(Wx + b) plus penalties on W − I and b; convex.

    x: (N, K) float64; labels: (N,); weights: (N,) with mean 1. L-BFGS with the exact gradient
    from W = I, b = 0, so the fitted NLL never exceeds that of softmax(x).
    """
    n, k = x.shape
    full = penalty.off_diagonal is not None
    shrink = np.full((k, k), penalty.off_diagonal) if full else None
    if full:
        np.fill_diagonal(shrink, penalty.diagonal)
    else:
        shrink = np.full(k, penalty.diagonal)
    identity = np.eye(k) if full else np.ones(k)

    large = x.size > LARGE
    x = x.astype(np.float32) if large else x
    penalties = np.append(np.ravel(shrink), np.full(k, penalty.bias))
    scale = 1 / np.sqrt(curvatures(x, weights, full) + penalties + 1e-6)

    def objective(scaled: np.ndarray) -> tuple[float, np.ndarray]:
        flat = scaled * scale
        change, bias = flat[:-k].reshape(identity.shape), flat[-k:]
        weight = identity + change

        sums = gradient_sums(x, labels, weights, weight, bias)
        value = sums[0] / n
        by_weight = sums[1:-k].reshape(weight.shape) / n + shrink * change
        by_bias = sums[-k:] / n + penalty.bias * bias
        value += 0.5 * float(np.sum(shrink * change**2) + penalty.bias * np.sum(bias**2))
        return value, np.concatenate([by_weight.reshape(-1), by_bias]) * scale

    start = np.zeros(identity.size + k)
    options = {"maxiter": MAX_ITERATIONS, "maxfun": 2 * MAX_ITERATIONS, "ftol": 1e-11, "gtol": 1e-6}
    if large:  # what float32 sums can tell
        options |= {"ftol": 1e-5, "gtol": 1e-5}
    with threadpool_limits(1, "blas"):  # the blocks already run on all cores
        found = scipy.optimize.minimize(
            objective, start, jac=True, method="L-BFGS-B", options=options
        )
    best = found.x * scale
    change, bias = best[:-k].reshape(identity.shape), best[-k:]
    return AffineFit(identity + change, bias, int(found.nit), bool(found.success))


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
