"""Focal structured scaling: Ψ^γ after a shrunk affine map, then a correction of the confidence."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
from scipy.interpolate import CubicSpline
from scipy.special import expit

from focalcal._arrays import Array, like, logsumexp
from focalcal.calibrators._columns import (
    cubic_pieces,
    pack,
    piecewise,
    replace_top,
    top_log_odds,
    with_tails,
)
from focalcal.calibrators._floor import fit_shifted, floored
from focalcal.calibrators._focal_affine import (
    GAMMA_BOUNDS,
    FocalAffine,
    gamma_of,
    groups,
    weight_of,
)
from focalcal.calibrators._folds import fold_shares
from focalcal.calibrators._newton import fit_inverse_temperature
from focalcal.calibrators._shrinkage import FEW, FOLDS, ShrunkenFit
from focalcal.calibrators.affine import apply_affine, centred
from focalcal.calibrators.base import Calibrator, FitData, solved
from focalcal.errors import InputError
from focalcal.maps import focal_log_map

MATRIX_ENTRIES_PER_SAMPLE = 8
"""If K²/N exceeds this, the data cannot distinguish matrix entries from zero: no matrix is used."""
MOST_OF_MEANS = 0.8
"""Where class means are more of the logits than this, the prior of b is around a best shift: from
no shift the solver would not get there."""
FAST = 2**14
"""Elements above which rows are processed in float32: noise in the data far exceeds rounding."""
UNSEEN = 0.3
"""Pseudo-samples, spread evenly over all classes, for errors too rare to occur in N samples."""
KNOTS = 4
ROUNDS = 10
PRECISIONS = (1.0, 1e6)
Curve = tuple[np.ndarray, np.ndarray]
"""t as a piecewise cubic: edges (M,) and pieces (M + 1, 5) of origin and coefficients."""


class FocalStructuredScaling(Calibrator):
    """p = t(Ψ^γ(softmax(W(z − z̄) + b + e·m))) + u: γ, W, b, e and their shrinkage fitted together.

    z is log(softmax(given logits) + ε) with the floor ε = `floor_`, which may be 0; z̄ is the mean
    of a row of z and m its mean log-probability. W is a scale times identity plus a diagonal and an
    off-diagonal part; these, b and e have Gaussian priors whose widths are chosen by
    cross-validated log-loss inside the calibration data, so that what the data cannot determine
    shrinks to temperature scaling, or to a temperature and a shift where a class is far above all
    others, as with some naive Bayes classifiers. γ lies in (−0.95, 10); `diagnostics_` report a γ
    at a bound. t corrects the confidence in the predicted class by a spline of its log-odds, shrunk
    by empirical Bayes and fitted to out-of-fold predictions. u = 0.3/(K(N + 1)), added to every
    probability before they are normalised, limits confidence to what N samples can support. There
    is nothing to tune.

    matrix: whether W has an off-diagonal part, "auto" if K² ≤ 8 N; task: "auto" or "multilabel", as
    in `Calibrator`.

    Fitted: `gamma_`, `weight_` (K, K), or (K,) without off-diagonal part, `bias_` (K,),
    `mean_weight_` (K,), the curve t as `edges_` (1, L) and `pieces_` (1, L+1, 5), and `unseen_`, u.

    >>> from focalcal.examples import resnet18
    >>> val, _ = resnet18()
    >>> fit = FocalStructuredScaling().fit(val.logits, val.labels).diagnostics_
    >>> round(fit.before, 2), round(fit.after, 2)
    (0.31, 0.15)

    Ψ: Charoenphakdee et al., CVPR 2021. Structured matrices: after Berta et al. 2025. Empirical
    Bayes: MacKay, Neural Computation 4, 1992. Their combination and the last step are our own.
    """

    method: ClassVar[str] = "focal-structured"
    summary: ClassVar[str] = "focal map after a matrix with chosen shrinkage, confidence corrected"
    floors: ClassVar[str] = "always"
    state: ClassVar[dict[str, str | None]] = {
        "gamma_": "",
        "weight_": "KK|K",
        "bias_": "K",
        "mean_weight_": "K",
        "edges_": "1L",
        "pieces_": "1P5",
        "unseen_": "",
    }

    def __init__(self, matrix: bool | str = "auto", task: str = "auto") -> None:
        self.matrix = matrix
        self.task = task

    def _check_params(self) -> None:
        if self.matrix not in ("auto", True, False):
            raise InputError(f"expected matrix 'auto', True or False, got {self.matrix!r}")

    def _check_state(self) -> None:
        if not 0 <= self.unseen_ < math.inf:
            raise InputError(f"expected unseen_ of at least 0, got {self.unseen_}")

    @classmethod
    def _upgraded(cls, state: dict[str, Any]) -> dict[str, Any]:
        return {"unseen_": 0.0, **state}  # absent in files written by 0.1

    def _fit(self, data: FitData) -> dict[str, Any]:
        logits, labels, weights = data.counted()  # shrinkage depends on the number of samples
        n, k = logits.shape
        x, mean = features(logits)
        plain, shift = fit_inverse_temperature(logits, labels, weights), np.zeros(k)
        if plain.kind == "chance" or share_of_means(x, weights) > MOST_OF_MEANS:
            plain, shift = fit_shifted(logits, labels, weights)
        beta = 1.0 if plain.kind == "separable" else plain.beta
        full = weights.sum() * MATRIX_ENTRIES_PER_SAMPLE >= k * k
        if self.matrix != "auto":
            full = bool(self.matrix)
        dtype = np.float32 if n * k > FAST else np.float64
        model = FocalAffine((beta * x + shift).astype(dtype), beta * mean, labels, weights)
        log_scale = -math.log(beta) if beta > 0 else 0.0
        shares = fold_shares(logits, labels, weights, FOLDS)
        found = ShrunkenFit(model, full, log_scale, shares).fit()
        theta, (_, biases, extras, _) = found.theta, groups(k)
        self.gamma_, weight = gamma_of(theta[1])[0], weight_of(theta, k)
        self.weight_, self.mean_weight_ = beta * weight, beta * theta[extras]
        self.bias_ = apply_affine(shift, weight, theta[biases])
        curve = identity_curve()
        if weights.sum() >= FEW:
            hits = expected_hits(found.log_p, labels[found.rows])
            c = top_log_odds(found.log_p.astype(np.float64))[:, 0]
            curve = fit_top_label(c, hits, weights[found.rows] * found.shares)
        self.unseen_ = UNSEEN / (k * (float(weights.sum()) + 1))
        self.edges_, self.pieces_ = pack(*([part] for part in curve))
        notes = plain.notes if plain.kind != "separable" else []
        low, high = GAMMA_BOUNDS
        at_edge = not low + 0.05 < self.gamma_ < high - 1
        if at_edge:
            notes.append(
                f"γ = {self.gamma_:.2f} is at the end of its range ({low}, {high}): the network "
                "is strongly under-confident; check the labels, or sharpen its logits first"
            )
        at_edge = at_edge or plain.kind == "chance"
        return solved(found.iterations, found.converged, notes, at_edge=at_edge)

    def _log_proba(self, logits: Array) -> Array:
        x, mean = features(logits)
        s = apply_affine(x, self.weight_, self.bias_)
        s = s + mean[:, None] * like(self.mean_weight_, s)
        log_p = focal_log_map(s, self.gamma_)
        t = piecewise(top_log_odds(log_p), self.edges_, self.pieces_)
        log_p = replace_top(log_p, t)
        if self.unseen_ == 0:
            return log_p
        return floored(log_p, self.unseen_) - math.log1p(self.unseen_ * self.n_classes_)


def expected_hits(log_p: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Whether the most probable class is the label (N,); one of m tied classes is a hit of 1/m.

    So the order of the classes does not matter. Ties are within the accuracy of a solver.

    >>> expected_hits(np.log([[0.5, 0.5], [0.9, 0.1]]), np.array([1, 1]))
    array([0.5, 0. ])
    """
    gap = log_p.max(axis=1, keepdims=True) - log_p
    tied = gap <= math.sqrt(np.finfo(log_p.dtype).eps)
    own = np.take_along_axis(tied, labels[:, None], axis=1)[:, 0]
    return own / tied.sum(axis=1)


def features(logits: Array) -> tuple[Array, Array]:
    """Centred logits (N, K) and the mean log-probability (N,) of each row."""
    x = centred(logits)
    return x, -logsumexp(x, axis=1)


def share_of_means(x: np.ndarray, weights: np.ndarray) -> float:
    """The share of the column means in the squares of centred logits (N, K)."""
    means = np.average(x, axis=0, weights=weights)
    return float(means @ means) / max(float(weights @ (x**2).sum(axis=1)) / weights.sum(), 1e-300)


def identity_curve() -> Curve:
    return np.zeros(1), np.array([[0.0, 0.0, 1.0, 0.0, 0.0]] * 2)


def fit_top_label(c: np.ndarray, hits: np.ndarray, weights: np.ndarray) -> Curve:
    """t = c + f(c) for log-odds c (N,) of the predicted class, hits (N,) in [0, 1], weights (N,).

    f is a natural cubic spline, fitted by the log-loss of "the predicted class is correct". By the
    chain rule −log p_y = −log P(correct or not) − log P(class | not correct), so the NLL falls by
    the same amount as this loss.
    """
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
