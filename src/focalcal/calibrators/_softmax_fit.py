"""Penalised multinomial logistic regression on logits: the fit behind every affine calibrator."""

from __future__ import annotations

import dataclasses

import numpy as np
import scipy.optimize
from threadpoolctl import threadpool_limits

from focalcal._blocks import map_blocks

MAX_ITERATIONS = 1000
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

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        change, bias = flat[:-k].reshape(identity.shape), flat[-k:]
        weight = identity + change

        sums = gradient_sums(x, labels, weights, weight, bias)
        value = sums[0] / n
        by_weight = sums[1:-k].reshape(weight.shape) / n + shrink * change
        by_bias = sums[-k:] / n + penalty.bias * bias
        value += 0.5 * float(np.sum(shrink * change**2) + penalty.bias * np.sum(bias**2))
        return value, np.concatenate([by_weight.reshape(-1), by_bias])

    start = np.zeros(identity.size + k)
    options = {"maxiter": MAX_ITERATIONS, "maxfun": 2 * MAX_ITERATIONS, "ftol": 1e-11, "gtol": 1e-6}
    with threadpool_limits(1, "blas"):  # the blocks already run on all cores
        found = scipy.optimize.minimize(
            objective, start, jac=True, method="L-BFGS-B", options=options
        )
    change, bias = found.x[:-k].reshape(identity.shape), found.x[-k:]
    return AffineFit(identity + change, bias, int(found.nit), bool(found.success))


def gradient_sums(
    x: np.ndarray, labels: np.ndarray, weights: np.ndarray, weight: np.ndarray, bias: np.ndarray
) -> np.ndarray:
    """Weighted sums of the NLL of softmax(Wx + b) and of its derivatives by W and b, in a row."""
    full = weight.ndim == 2

    def block(rows: slice) -> np.ndarray:
        own, w, own_x = labels[rows], weights[rows], x[rows]
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

    return np.sum(map_blocks(block, len(x), max(1, _BLOCK // x.shape[1])), axis=0)
