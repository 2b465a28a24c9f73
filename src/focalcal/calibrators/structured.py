"""Structured scaling: affine maps that shrink to temperature scaling, level by level."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
from threadpoolctl import threadpool_limits

from focalcal._arrays import Array, log_softmax
from focalcal.calibrators._focal_affine import FocalAffine
from focalcal.calibrators._softmax_fit import Penalty, fit_affine
from focalcal.calibrators.affine import AffineScaling, affine_outcome
from focalcal.calibrators.base import FitData
from focalcal.calibrators.sums import SampledData, best_temperature
from focalcal.calibrators.temperature import check_temperature, degenerate_notes, scaled

DIAGONAL_SD = 1 / math.sqrt(2)
OFF_DIAGONAL_SD = 0.2
"""Standard deviations of the priors, to be divided by √K."""
BIAS_SD = 0.3
ENOUGH_PER_CLASS = 40
"""With fewer calibration samples per class the off-diagonal prior narrows in proportion."""


def prior_penalty(n: float, k: int, strength: float, full: bool) -> Penalty:
    """The Gaussian priors as penalties on the mean NLL of n samples of k classes."""
    off = None
    if full:
        sd = OFF_DIAGONAL_SD / math.sqrt(k) * min(1.0, n / (ENOUGH_PER_CLASS * k))
        off = strength / (n * sd**2)
    return Penalty(strength * k / (n * DIAGONAL_SD**2), strength / (n * BIAS_SD**2), off)


class _StructuredScaling(AffineScaling):
    """softmax(W log softmax(z/T) + b): T first, then the shrunken deviations of W from I."""

    state: ClassVar[dict[str, str | None]] = {"temperature_": "", "weight_": "KK", "bias_": "K"}
    takes_sums: ClassVar[bool] = True
    full: ClassVar[bool]

    def __init__(self, strength: float = 1.0, task: str = "auto") -> None:
        self.strength = strength
        self.task = task

    def _check_state(self) -> None:
        check_temperature(self.temperature_)

    def _features(self, logits: Array) -> Array:
        return log_softmax(scaled(logits, self.temperature_))

    def _fit(self, data: FitData) -> dict[str, Any]:
        plain = best_temperature(data)
        self.temperature_ = plain.temperature
        logits, labels, weights = data.numpy()
        # Weights say how much data there is: doubling them all halves the shrinkage.
        n = float(data.n if data.weights is None else data.weights.sum())
        nll = None
        if isinstance(data, SampledData):
            n = data.size

            def nll(theta: np.ndarray) -> tuple[float, np.ndarray]:
                total = data.total(affine_sums, temperature=self.temperature_, theta=theta)
                return float(total[0]) / n, total[1:] / n

        penalty = prior_penalty(n, data.n_classes, self.strength, self.full)
        found = fit_affine(self._features(logits), labels, weights, penalty, nll)
        self.weight_, self.bias_ = found.weight, found.bias
        outcome = affine_outcome(found, *degenerate_notes(plain.kind, self.temperature_))
        if nll is not None:
            outcome["after"] = found.loss
        return outcome | {"at_edge": plain.kind in ("chance", "separable")}


def affine_sums(
    logits: np.ndarray, labels: np.ndarray, temperature: float, theta: np.ndarray
) -> np.ndarray:
    """Total NLL of an affine map of log softmax(z/T), and its gradient."""
    x = log_softmax(scaled(logits.astype(np.float64), temperature))
    with threadpool_limits(1, "blas"):
        loss, gradient = FocalAffine(x, None, labels, np.ones(len(labels))).nll(theta)
    return np.concatenate([[loss], gradient])


class StructuredVectorScaling(_StructuredScaling):
    """p = softmax(w ∘ log softmax(z/T) + b), w shrunk to 1 and b to 0.

    T is fitted first; then w and b minimise the NLL with Gaussian priors around temperature
    scaling (standard deviations 1/√(2K) and 0.3).

    strength: factor of the shrinkage, 0 for none; large values give temperature scaling. task:
    "auto" or "multilabel", as in `Calibrator`.

    Fitted: `temperature_`, `weight_` (K,), `bias_` (K,).

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> z = rng.normal(size=(3000, 3))
    >>> y = np.argmax(z + rng.gumbel(size=z.shape), axis=1)
    >>> round(StructuredVectorScaling().fit(4 * z, y).temperature_)
    4

    After Berta et al. 2025, Structured Matrix Scaling, with their prior of w; that of b is our own.
    """

    method: ClassVar[str] = "structured-vector"
    summary: ClassVar[str] = "vector scaling that shrinks to temperature scaling"
    full: ClassVar[bool] = False
    state: ClassVar[dict[str, str | None]] = {"temperature_": "", "weight_": "K", "bias_": "K"}


class StructuredMatrixScaling(_StructuredScaling):
    """p = softmax(W log softmax(z/T) + b), W shrunk to I level by level and b to 0.

    T is fitted first; then the diagonal of W, its off-diagonal and b minimise the NLL with
    Gaussian priors around temperature scaling. The off-diagonal, with K² numbers, is shrunk most,
    and the more the fewer samples there are per class.

    strength: factor of all shrinkage; task: "auto" or "multilabel", as in `Calibrator`.

    Fitted: `temperature_`, `weight_` (K, K), `bias_` (K,).

    After Berta et al. 2025, Structured Matrix Scaling; the priors of b and of the off-diagonal are
    our own.
    """

    method: ClassVar[str] = "structured-matrix"
    summary: ClassVar[str] = "matrix scaling that shrinks to temperature scaling, level by level"
    full: ClassVar[bool] = True
