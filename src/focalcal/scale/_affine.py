"""Structured scaling on merged gradients: L-BFGS in coordinates that a sample's Hessian whitens."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.linalg
import scipy.optimize
from threadpoolctl import threadpool_limits

from focalcal._arrays import log_softmax
from focalcal.calibrators._softmax_fit import MAX_ITERATIONS, Penalty, fit_affine, gradient_sums
from focalcal.calibrators.structured import prior_penalty
from focalcal.calibrators.temperature import scaled

if TYPE_CHECKING:
    from focalcal.scale.fitting import StreamedData

MAX_WHITENED = 1200
"""Up to so many parameters the sample's Hessian is formed; past it L-BFGS works unaided."""
_HESSIAN_ROWS = 20_000


def fit_structured(data: StreamedData, calibrator: Any, notes: tuple[str, ...]) -> dict[str, Any]:
    """Set weight and bias of a structured calibrator; return fields for `Diagnostics`."""
    k, n, full = data.source.n_classes, data.source.n, calibrator.full
    temperature = calibrator.temperature_
    penalty = prior_penalty(n, k, calibrator.strength, full)
    x = features(data.logits, temperature)
    started = fit_affine(x, data.labels, np.ones(len(x)), penalty)
    identity = np.eye(k) if full else np.ones(k)
    shrink = _shrinkage(penalty, k, full)
    start = np.concatenate([(started.weight - identity).reshape(-1), started.bias])
    root = _whitening(x[:_HESSIAN_ROWS], started, shrink, full)

    def objective(u: np.ndarray) -> tuple[float, np.ndarray]:
        flat = start + (u if root is None else scipy.linalg.solve_triangular(root, u))
        weight = identity + flat[:-k].reshape(identity.shape)
        sums = data.total(affine_sums, temperature=temperature, weight=weight, bias=flat[-k:])
        value = sums[0] / n + 0.5 * float(np.sum(shrink * flat**2))
        gradient = sums[1:] / n + shrink * flat
        if root is not None:
            gradient = scipy.linalg.solve_triangular(root, gradient, trans="T")
        return value, gradient

    options = {"maxiter": MAX_ITERATIONS, "ftol": 1e-13, "gtol": 1e-6}
    found = scipy.optimize.minimize(
        objective, np.zeros(len(start)), jac=True, method="L-BFGS-B", options=options
    )
    flat = start + (found.x if root is None else scipy.linalg.solve_triangular(root, found.x))
    calibrator.weight_ = identity + flat[:-k].reshape(identity.shape)
    calibrator.bias_ = flat[-k:]
    if not found.success:
        notes = (*notes, f"the solver did not converge in {found.nfev} passes; use more data")
    after = float(found.fun) - 0.5 * float(np.sum(shrink * flat**2))
    return {
        "after": after,
        "iterations": int(found.nfev),
        "converged": bool(found.success),
        "warnings": notes,
    }


def features(logits: np.ndarray, temperature: float) -> np.ndarray:
    return log_softmax(scaled(logits.astype(np.float64), temperature))


def affine_sums(
    logits: np.ndarray,
    labels: np.ndarray,
    temperature: float,
    weight: np.ndarray,
    bias: np.ndarray,
) -> np.ndarray:
    """Sums of the NLL of softmax(W log softmax(z/T) + b) and of its derivatives by W and b."""
    with threadpool_limits(1, "blas"):
        x = features(logits, temperature)
        return gradient_sums(x, labels, np.ones(len(labels)), weight, bias)


def _shrinkage(penalty: Penalty, k: int, full: bool) -> np.ndarray:
    """The penalty of each parameter, in the order of the flat vector."""
    if not full:
        return np.repeat([penalty.diagonal, penalty.bias], k)
    matrix = np.full((k, k), penalty.off_diagonal)
    np.fill_diagonal(matrix, penalty.diagonal)
    return np.concatenate([matrix.reshape(-1), np.full(k, penalty.bias)])


def _whitening(x: np.ndarray, fitted: Any, shrink: np.ndarray, full: bool) -> np.ndarray | None:
    """Upper triangular R with RᵀR the sample's Hessian, in which a unit step is a Newton step."""
    n, k = x.shape
    if len(shrink) > MAX_WHITENED:
        return None
    z = x @ fitted.weight.T + fitted.bias if full else x * fitted.weight + fitted.bias
    p = np.exp(log_softmax(z))
    hessian = np.empty((len(shrink), len(shrink)))
    ones = np.concatenate([x, np.ones((n, 1))], axis=1)
    for i in range(k):
        for j in range(k):
            c = (p[:, i] * ((i == j) - p[:, j]) / n)[:, None]
            rows, columns = (_places(c, k, full) for c in (i, j))
            left, right = (ones, ones) if full else (ones[:, [i, k]], ones[:, [j, k]])
            hessian[np.ix_(rows, columns)] = left.T @ (c * right)
    # Adding a constant to all logits changes nothing: those directions get a little of their own.
    ridge = 1e-8 * float(np.trace(hessian)) / len(shrink) + math.ulp(1.0)
    hessian[np.diag_indices_from(hessian)] += shrink + ridge
    return np.linalg.cholesky(hessian).T


def _places(i: int, k: int, full: bool) -> list[int]:
    """Where the weights and the bias of class i stand in the flat vector."""
    return [*range(i * k, (i + 1) * k), k * k + i] if full else [i, k + i]
