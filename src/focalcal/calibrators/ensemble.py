"""Ensemble temperature scaling: a mixture of scaled, plain and uniform predictions."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import scipy.optimize

from focalcal._arrays import Array, like, log_softmax, logsumexp, namespace
from focalcal.calibrators._newton import fit_inverse_temperature
from focalcal.calibrators.base import Calibrator, FitData
from focalcal.calibrators.temperature import check_temperature, degenerate_notes, scaled
from focalcal.errors import InputError

_SMALLEST = 1e-12  # a weight of exactly 0 would make log p = −∞ where the others underflow


class EnsembleTemperatureScaling(Calibrator):
    """p = w₁·softmax(z/T) + w₂·softmax(z) + w₃/K, weights ≥ 0 with sum 1.

    T is fitted by NLL first, then the weights by NLL, which is convex in them.

    task: "auto" or "multilabel", as in `Calibrator`.

    Fitted: `temperature_`, `weights_` (3,).

    >>> rng = np.random.default_rng(0)
    >>> z = 2 * rng.normal(size=(3000, 3))
    >>> y = np.argmax(z + rng.gumbel(size=z.shape), axis=1)
    >>> fitted = EnsembleTemperatureScaling().fit(2 * z, y)
    >>> round(float(fitted.weights_.sum()), 9)
    1.0

    Zhang et al., ICML 2020, Eq. 8.
    """

    method: ClassVar[str] = "ensemble-temperature"
    summary: ClassVar[str] = "a mixture of temperature-scaled, plain and uniform predictions"
    preserves_accuracy: ClassVar[bool] = True
    state: ClassVar[dict[str, str | None]] = {"temperature_": "", "weights_": "3"}

    def __init__(self, task: str = "auto") -> None:
        self.task = task

    def _check_state(self) -> None:
        check_temperature(self.temperature_)
        if not (np.all(self.weights_ > 0) and abs(np.sum(self.weights_) - 1) < 1e-6):
            raise InputError(f"expected positive weights_ with sum 1, got {self.weights_}")

    def _fit(self, data: FitData) -> dict[str, Any]:
        plain = fit_inverse_temperature(data.logits, data.labels, data.weights)
        self.temperature_ = plain.temperature
        logits, labels, weights = data.numpy()
        own = np.arange(data.n), labels
        maps = log_softmax(scaled(logits, self.temperature_)), log_softmax(logits)
        parts = [log_p[own] for log_p in maps]
        log_p = np.stack([*parts, np.full(data.n, -math.log(data.n_classes))], axis=1)
        found = mixture_weights(log_p, weights)
        self.weights_ = found.x / found.x.sum()
        notes = degenerate_notes(plain.kind, self.temperature_)
        if not found.success:
            notes.append(f"the mixture weights did not converge: {found.message}")
        return {
            "iterations": plain.iterations + int(found.nit),
            "converged": bool(plain.converged and found.success),
            "at_edge": plain.kind in ("chance", "separable"),
            "warnings": tuple(notes),
        }

    def _log_proba(self, logits: Array) -> Array:
        xp = namespace(logits)
        log_w = xp.log(like(self.weights_, logits))
        parts = xp.stack(
            [
                log_softmax(scaled(logits, self.temperature_)) + log_w[0],
                log_softmax(logits) + log_w[1],
                xp.zeros_like(logits) + (log_w[2] - math.log(logits.shape[1])),
            ]
        )
        return logsumexp(parts, axis=0)


def mixture_weights(log_p: np.ndarray, weights: np.ndarray) -> scipy.optimize.OptimizeResult:
    """Weights of the mixture of columns of log_p (N, J) of highest mean log-likelihood.

    Minimises −mean log(Pw) + Σw over w ≥ 0: its optimum has Σw = 1 by itself, so that no
    constraint is needed; convex.
    """
    shift = log_p.max(axis=1)
    p = np.exp(log_p - shift[:, None])
    share = weights / weights.sum()

    def objective(w: np.ndarray) -> tuple[float, np.ndarray]:
        mixed = p @ w
        value = -float(share @ (np.log(mixed) + shift)) + float(w.sum())
        return value, 1.0 - p.T @ (share / mixed)

    options = {"maxiter": 500, "ftol": 1e-15, "gtol": 1e-9}
    bounds = [(_SMALLEST, 1.0)] * 3
    return scipy.optimize.minimize(
        objective, [1 - 2e-3, 1e-3, 1e-3], jac=True, bounds=bounds, options=options
    )
