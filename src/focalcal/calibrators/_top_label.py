"""A final correction of the confidence in the predicted class.

t = c + f(c), where c is the log-odds of the predicted class and f a natural cubic spline, shrunk
to 0 by empirical Bayes and fitted by the log-loss of "the predicted class is correct". By the chain
rule −log p_y = −log P(correct or not) − log P(class | not correct), so the NLL falls by the same
amount as this loss.
"""

from __future__ import annotations

import numpy as np
from scipy.interpolate import CubicSpline
from scipy.special import expit

from focalcal.calibrators._piecewise import cubic_pieces, with_tails

KNOTS = 4
ROUNDS = 10
PRECISIONS = (1.0, 1e6)


Curve = tuple[np.ndarray, np.ndarray]
"""t as a piecewise cubic: edges (M,) and pieces (M + 1, 5) of origin and coefficients."""


def identity_curve() -> Curve:
    return np.zeros(1), np.array([[0.0, 0.0, 1.0, 0.0, 0.0]] * 2)


def fit_top_label(c: np.ndarray, hits: np.ndarray, weights: np.ndarray) -> Curve:
    """Fit t to log-odds c (N,), hits (N,) in {0, 1} and weights (N,)."""
    levels = np.linspace(0.03, 0.97, KNOTS)
    knots = np.unique(np.quantile(c, levels, weights=weights, method="inverted_cdf"))
    spread = float(knots[-1] - knots[0])
    knots = knots[np.concatenate([[True], np.diff(knots) > 1e-3 * spread])]
    if len(knots) < 3 or hits.min() == hits.max():
        return identity_curve()
    f = _shrunken_values(knots, c, hits, weights)
    between = np.linspace(knots[0], knots[-1], 200)
    slope = 1 + float(_natural(knots, f)(between, 1).min())
    if slope < 0.05:  # shrink to the identity until it increases
        f = f * (0.95 / (1.0 - slope))
    return cubic_pieces(_natural(knots, knots + f))


def _basis(knots: np.ndarray, c: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A line and orthonormal curved natural splines, at the samples (N, M) and knots (M, M)."""
    centre = float(np.average(c, weights=weights))
    spread = float(np.sqrt(np.average((c - centre) ** 2, weights=weights)))
    line = np.stack([np.ones(len(knots)), (knots - centre) / spread], axis=1)
    cardinal = with_tails(_natural(knots, np.eye(len(knots))), knots, c)
    share = np.sqrt(weights / weights.sum())[:, None]
    at = np.concatenate([line, np.linalg.svd(line.T)[2][2:].T], axis=1)
    at_knots = at @ np.linalg.inv(np.linalg.qr(share * (cardinal @ at), mode="r"))
    return cardinal @ at_knots, at_knots


def _shrunken_values(
    knots: np.ndarray, c: np.ndarray, hits: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """f at the knots: Newton for the coefficients, MacKay's fixed point for the two precisions."""
    a, at_knots = _basis(knots, c, weights)
    theta = np.zeros(a.shape[1])
    precision = np.full(len(theta), 10.0)
    for _ in range(ROUNDS):
        for _ in range(20):
            p = expit(c + a @ theta)
            gradient = a.T @ (weights * (p - hits)) + precision * theta
            hessian = (a.T * (weights * p * (1 - p))) @ a + np.diag(precision)
            step = np.linalg.solve(hessian, gradient)
            largest = float(np.abs(step).max())
            theta = theta - step / max(1.0, largest)
            if largest < 1e-10:
                break
        variance = np.diag(np.linalg.inv(hessian))
        for part in (slice(0, 2), slice(2, None)):  # line and curve
            known = float(np.sum(1 - precision[part] * variance[part]))
            rho = known / max(float(theta[part] @ theta[part]), 1e-300)
            precision[part] = np.clip(rho, *PRECISIONS)
    return at_knots @ theta


def _natural(knots: np.ndarray, values: np.ndarray) -> CubicSpline:
    return CubicSpline(knots, values, bc_type="natural")
