"""Penalised multinomial logistic regression on logits: the fit behind every affine calibrator."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from focalcal.calibrators._focal_affine import FocalAffine, groups, minimise, prior, weight_of

MAX_ITERATIONS = 1000
LARGE = 2**22
"""Elements of x from which products are in float32."""
MAX_WHITENED = 1200
"""Up to so many parameters the Hessian of a sample is formed; past it, its diagonal."""
_HESSIAN_ROWS = 20_000


class Penalty(NamedTuple):
    """λ of λ/2·‖·‖² on the deviations of diagonal, off-diagonal and bias; mean NLL is added.

    `off_diagonal` None: the off-diagonal stays zero.
    """

    diagonal: float
    bias: float
    off_diagonal: float | None = None


class AffineFit(NamedTuple):
    """softmax(Wx + b): W is (K,) for a diagonal, else (K, K) acting as x @ W.T; b is (K,)."""

    weight: np.ndarray
    bias: np.ndarray
    iterations: int
    converged: bool
    loss: float


def fit_affine(
    x: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray,
    penalty: Penalty,
    nll: Callable[[np.ndarray], tuple[float, np.ndarray]] | None = None,
) -> AffineFit:
    """Minimise mean NLL of softmax(Wx + b) plus penalties on W − I and b; convex.

    x: (N, K) float64; labels: (N,); weights: (N,) with mean 1; nll: mean NLL and its gradient as a
    function of the parameters of `FocalAffine`, over more samples of which x are some. L-BFGS with
    the exact gradient from W = I, b = 0, so the fitted NLL never exceeds that of softmax(x); over
    more samples it goes on from there, in coordinates in which a unit step is a Newton step.
    """
    large = x.size > LARGE
    x = x.astype(np.float32) if large else x
    k, model = x.shape[1], FocalAffine(x, None, labels, weights)
    free, shrink = prior(k, None, None, penalty.diagonal, penalty.bias, None, penalty.off_diagonal)
    origin = np.zeros(len(free))

    def mean_nll(theta: np.ndarray) -> tuple[float, np.ndarray]:
        loss, gradient = model.nll(theta)
        return loss / len(x), gradient / len(x)

    # What float32 sums can tell.
    options = {"maxiter": MAX_ITERATIONS, "ftol": 1e-5, "gtol": 1e-5}
    if not large:
        options |= {"ftol": 1e-11, "gtol": 1e-6}
    with threadpool_limits(1, "blas"):  # the blocks already run on all cores
        root = np.sqrt(model.curvature(origin) / len(x) + shrink + 1e-6)[free]
        found = minimise(mean_nll, origin, free, (origin, shrink), root, **options)
    if nll is not None:
        if len(root) <= MAX_WHITENED:
            root = _hessian_root(model, found.x, free, shrink)
        options |= {"ftol": 1e-13, "gtol": 1e-6}
        found = minimise(nll, found.x, free, (origin, shrink), root, **options)
    theta = found.x
    loss = float(found.fun) - 0.5 * float(shrink @ theta**2)
    weight, bias = weight_of(theta, k), theta[groups(k)[1]]
    return AffineFit(weight, bias, int(found.nfev), bool(found.success), loss)


def _hessian_root(
    model: FocalAffine, theta: np.ndarray, free: np.ndarray, shrink: np.ndarray
) -> np.ndarray:
    """Upper triangular R with RᵀR the Hessian."""
    x, p = (a[:_HESSIAN_ROWS] for a in (model.x, np.exp(model.log_proba(theta))))
    scales, biases, _, matrix = (np.arange(len(theta))[group] for group in model.groups)
    n, k = x.shape
    # The parameters of each class's score, and what they multiply in each sample.
    places, factors = np.stack([scales, biases], axis=1), np.stack([x, np.ones_like(x)], axis=2)
    if len(matrix):
        square = matrix.reshape(k, k).copy()
        np.fill_diagonal(square, scales)
        places = np.concatenate([square, biases[None]]).T
        factors = np.repeat(np.concatenate([x, np.ones((n, 1))], axis=1)[:, None], k, axis=1)
    weighted = p[:, :, None] * factors
    flat = weighted.reshape(n, -1)
    by_class = -flat.T @ flat
    for i, own in enumerate(np.arange(places.size).reshape(places.shape)):
        by_class[np.ix_(own, own)] += weighted[:, i].T @ factors[:, i]
    hessian = np.zeros((len(theta), len(theta)))
    hessian[np.ix_(places.ravel(), places.ravel())] = by_class / n
    hessian, shrink = hessian[np.ix_(free, free)], shrink[free]
    # Adding a constant to all logits changes nothing: those directions get a little of their own.
    ridge = 1e-8 * float(np.trace(hessian)) / len(shrink) + math.ulp(1.0)
    return np.linalg.cholesky(hessian + np.diag(shrink + ridge)).T
