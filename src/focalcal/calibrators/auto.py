"""AutoCalibrator: a small weighted average of calibrators, weighted by cross-validated log-loss."""

from __future__ import annotations

import dataclasses
import functools
import math
import warnings
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from focalcal._arrays import Array, like, log_softmax, namespace
from focalcal.calibrators._floor import has_zeros
from focalcal.calibrators._folds import fold_shares
from focalcal.calibrators._newton import fit_inverse_temperature
from focalcal.calibrators.base import Calibrator, FitData, combined
from focalcal.calibrators.temperature import check_temperature
from focalcal.errors import FitWarning, InputError

SMALLEST = 0.05
"""A candidate with less weight is left out."""
PRIOR_SAMPLES = 5.0
"""The prior of equal weights counts as this many samples."""
TOLERANCE = 3.0
"""Standard errors by which an average must be better than the first candidate alone,"""
WORTH = 0.025
"""unless its expected gain is at least this, however few the samples."""
RESERVE = 1e-9
"""Total weight of the other candidates if the first is kept and has zeros: no infinite loss."""
CAUTION = 100.0
"""The prior of T = 1 counts as this many samples."""
LARGEST = -math.log(1e-12)
"""The loss of a label with probability (nearly) zero; with infinity there would be no mean."""
PREFERRED = ("identity", "focal-structured")
"""Methods that another must beat by one standard error: no calibration, and the usual choice."""
MANY = 2**20
"""Logits above which one fold is enough to decide."""


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One row of `table_`: mean held-out NLL ± its standard error over `n` samples, and weight."""

    method: str
    nll: float
    standard_error: float
    n: int
    weight: float

    @property
    def chosen(self) -> bool:
        return self.weight > 0


class AutoCalibrator(Calibrator):
    """p ∝ (Σ wₘ pₘ)^(1/T): an average of calibrators, weighted by cross-validated NLL.

    Every candidate is fitted without each fold of the calibration data in turn and predicts that
    fold. The weights minimise the NLL of the averaged predictions (convex), T that of the tempered
    average, shrunk towards 1. Candidates with weights below 5 % are left out, and the others are
    fitted to all the data. No other data are used. The first candidate alone, by default the
    identity, is kept if the average gains less than three standard errors over it and its expected
    gain is below 0.025, so that calibration rarely does harm. The expected gain is the mean of the
    observed gain and of KL(average ‖ first), the gain if the average were right, which also counts
    labels too rare to occur in few samples, such as those given a probability of zero. If there are
    zeros, the candidates left out weigh 1e-9 together, so that no loss is infinite. Few samples
    allow few candidates: under 20 only the identity, under 30 also temperature scaling.

    candidates: names of methods from simple to complex, or None for the default list; folds: of the
    cross-validation, at least 2; task: "auto" or "multilabel", as in `Calibrator`.

    Fitted: `parts_` (calibrators by name), `weights_`, `temperature_`, `table_` with the scores,
    `formula_`, the average in one line, and `method_`, the part of largest weight.

    >>> rng = np.random.default_rng(0)
    >>> z = 2 * rng.normal(size=(400, 3))
    >>> y = np.argmax(z + rng.gumbel(size=z.shape), axis=1)
    >>> AutoCalibrator(("identity", "temperature")).fit(3 * z, y).method_
    'temperature'

    Stacking: Wolpert, Neural Networks 5, 1992; of densities: Smyth and Wolpert, NIPS 1997.
    """

    method: ClassVar[str] = "auto"
    summary: ClassVar[str] = "an average of the others, weighted by cross-validated NLL"
    state: ClassVar[dict[str, str | None]] = {
        "parts_": None,
        "weights_": None,
        "temperature_": "",
        "scores_": None,
    }
    floors: ClassVar[str] = "never"  # each part learns its own

    def __init__(
        self, candidates: Sequence[str] | None = None, folds: int = 5, task: str = "auto"
    ) -> None:
        self.candidates = candidates
        self.folds = folds
        self.task = task

    @property
    def method_(self) -> str:
        """The name of the part with the largest weight."""
        return list(self.parts_)[int(np.argmax(self.weights_))]

    @property
    def formula_(self) -> str:
        """The average in one line, such as "0.62 focal-structured + 0.38 isotonic, T = 0.95"."""
        if len(self.parts_) == 1:
            return self.method_
        average = " + ".join(f"{w:.2f} {name}" for name, w in zip(self.parts_, self.weights_))
        return f"{average}, T = {self.temperature_:.2f}"

    @property
    def table_(self) -> list[Candidate]:
        """Every candidate's score, from simple to complex."""
        n, weights = self.diagnostics_.n, dict(zip(self.parts_, self.weights_))
        return [
            Candidate(name, float(score[0]), float(score[1]), n, float(weights.get(name, 0.0)))
            for name, score in self.scores_.items()
        ]

    def table_text(self) -> str:
        """`table_` as text: held-out NLL and weight of every candidate."""
        width = max(len(row.method) for row in self.table_)
        lines = [f"{'method':<{width}}  held-out NLL ± standard error, weight"]
        for row in self.table_:
            mark = f"  {row.weight:.2f}" if row.chosen else ""
            lines.append(f"{row.method:<{width}}  {row.nll:.4f} ± {row.standard_error:.4f}{mark}")
        first, *others = self.table_
        if first.weight > 0.99 and any(row.nll < first.nll for row in others):
            lines.append(f"{first.method} is kept: the others gain little, perhaps by chance")
        return "\n".join(lines)

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        text = super().__repr__(N_CHAR_MAX)
        fitted = hasattr(self, "parts_")
        return f"{text}: {self.formula_}\n{self.table_text()}" if fitted else text

    def _check_params(self) -> None:
        from focalcal.calibrators import METHODS

        if type(self.folds) is not int or self.folds < 2:
            raise InputError(f"expected a whole number folds >= 2, got {self.folds!r}")
        if self.candidates is None:
            return
        known = [name for name in METHODS if name != self.method]
        listed = not isinstance(self.candidates, str) and len(self.candidates) > 0
        if not listed or any(name not in known for name in self.candidates):
            raise InputError(
                f"expected candidates as a list of {', '.join(known)}; got {self.candidates!r}"
            )

    @classmethod
    def _upgraded(cls, state: dict[str, Any]) -> dict[str, Any]:
        """Files written by 0.1 have one part and no temperature."""
        rest = {"temperature_": 1.0, **state}
        if "calibrator_" not in state:
            return rest
        inner = rest.pop("calibrator_")
        name = inner.get("method") if isinstance(inner, dict) else None
        return {"parts_": {str(name): inner}, "weights_": [1.0], **rest}

    def _check_state(self) -> None:
        parts = list(self.parts_.values()) if isinstance(self.parts_, dict) else [None]
        if not parts or any(
            not isinstance(part, Calibrator) or part.n_classes_ != self.n_classes_ for part in parts
        ):
            raise InputError(f"expected calibrators for {self.n_classes_} classes inside")
        weights = np.asarray(self.weights_)
        if weights.shape != (len(parts),) or weights.dtype.kind != "f":
            raise InputError(f"expected a weight for each of {len(parts)} parts")
        if not (np.all(weights > 0) and abs(weights.sum() - 1) < 1e-6):
            raise InputError(f"expected positive weights_ with sum 1, got {weights}")
        check_temperature(self.temperature_)
        scores = self.scores_.values() if isinstance(self.scores_, dict) else [None]
        if any(np.shape(s) != (2,) or np.asarray(s).dtype.kind != "f" for s in scores):
            raise InputError("expected scores_ as mean and standard error of each method")

    def _fit(self, data: FitData) -> dict[str, Any]:
        from focalcal.calibrators import make

        kept = FitData(*data.counted())
        names = list(self.candidates or default_candidates(kept.weights.sum(), data.n_classes))
        held = held_out([make(name) for name in names], kept, self.folds)
        losses, sizes = held.losses, held.sizes
        self.scores_ = {name: mean_and_error(loss, sizes) for name, loss in zip(names, losses)}
        shares = average_weights(np.minimum(losses, LARGEST), sizes)
        several = np.count_nonzero(shares) > 1
        self.temperature_ = best_temperature(held, shares) if several else 1.0
        if not gains(held, shares, self.temperature_):
            reserve = RESERVE if has_zeros(kept.logits) else 0.0
            shares = np.full(len(names), reserve / len(names))
            shares[0] += 1 - shares.sum()
            self.temperature_ = 1.0
        chosen = np.flatnonzero(shares)
        self.weights_ = shares[chosen]
        self.parts_ = {names[i]: make(names[i]) for i in chosen}
        # Repeated by `fit`, under this name.
        with warnings.catch_warnings(action="ignore", category=FitWarning):
            for part in self.parts_.values():
                part.fit(data.logits, data.labels, data.weights)
        found = {name: part.diagnostics_ for name, part in self.parts_.items()}
        outcome = {**combined(found), "at_edge": found[self.method_].at_edge}
        if len(names) == 1 and self.candidates is None:
            outcome["warnings"] += ("too few samples to choose from; nothing is calibrated",)
        return outcome

    def _log_proba(self, logits: Array) -> Array:
        parts = [part._calibrated(logits) for part in self.parts_.values()]
        if len(parts) == 1:
            return parts[0]
        return log_softmax(log_average(parts, self.weights_) * (1.0 / self.temperature_))


def default_candidates(n: float, n_classes: int) -> list[str]:
    """The methods that n samples of `n_classes` classes can support, from simple to complex."""
    if n < 30:
        return ["identity", "temperature"][: 2 if n >= 20 else 1]
    if n < 5 * n_classes:
        return ["identity", "temperature", "focal-structured"]
    return ["identity", "beta", "focal-structured", "venn-abers"]


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """Labels and weights (n,) of samples, and log p (n, K) by every fit without their fold."""

    labels: np.ndarray
    sizes: np.ndarray
    log_p: list[np.ndarray]

    @property
    def losses(self) -> np.ndarray:
        """−log p_y (M, n)."""
        rows = np.arange(len(self.labels))
        return np.stack([-log_p[rows, self.labels] for log_p in self.log_p])

    def average(self, shares: np.ndarray) -> np.ndarray:
        """log Σ w p (n, K) for weights (M,)."""
        chosen = np.flatnonzero(shares)
        return log_average([self.log_p[i] for i in chosen], shares[chosen])


def held_out(calibrators: list[Calibrator], data: FitData, folds: int) -> HeldOut:
    """The calibrators' predictions for samples that they were not fitted to."""
    shares = fold_shares(data.logits, data.labels, data.weights, folds)
    shares = shares[(shares > 0).any(axis=1)]
    if data.n * data.n_classes > MANY:
        shares = shares[:1]
    found = []
    for share in shares:
        out, own = share > 0, share < 1
        left = data.weights * (1 - share)
        if not own.any():  # one distinct sample: there is nothing to leave out
            own, left = out, data.weights
        log_p = []
        for calibrator in calibrators:
            with warnings.catch_warnings(action="ignore", category=FitWarning):
                calibrator.fit(data.logits[own], data.labels[own], left[own])
            log_p.append(calibrator.predict_log_proba(data.logits[out]))
        found.append((data.labels[out], (data.weights * share)[out], *log_p))
    labels, sizes, *log_p = (np.concatenate(each) for each in zip(*found))
    return HeldOut(labels, sizes, log_p)


def best_temperature(held: HeldOut, shares: np.ndarray) -> float:
    """The T that minimises the NLL of the average, shrunk to 1 if samples are few."""
    beta = fit_inverse_temperature(held.average(shares), held.labels, held.sizes).beta
    n = float(held.sizes.sum())
    return float(np.clip(beta, 0.2, 5.0) ** (-n / (n + CAUTION)))


def best_alone(names: Sequence[str], held: HeldOut) -> str:
    """The method of lowest loss, or the first of PREFERRED within one standard error of it."""
    losses = dict(zip(names, np.minimum(held.losses, LARGEST)))
    lowest = min(names, key=lambda name: mean_and_error(losses[name], held.sizes)[0])
    for name in PREFERRED:
        if name in losses:
            excess, error = gain_and_error(losses[name] - losses[lowest], held.sizes)
            if excess <= error:
                return name
    return lowest


def gains(held: HeldOut, shares: np.ndarray, temperature: float) -> bool:
    """Whether the tempered average beats the first candidate, significantly or by a wide margin."""
    log_p = np.maximum(log_softmax(held.average(shares) / temperature), -LARGEST)
    gain = log_p - np.maximum(held.log_p[0], -LARGEST)
    mean, error = gain_and_error(gain[np.arange(len(gain)), held.labels], held.sizes)
    if_right = np.sum(np.exp(log_p) * gain, axis=1)
    expected = (mean + mean_and_error(if_right, held.sizes)[0]) / 2
    return bool(mean > TOLERANCE * error or expected > WORTH)


def gain_and_error(gain: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    """Mean gain and its standard error, for which gains are clipped to ±1.

    A few large gains are no reason for doubt.
    """
    clipped = np.clip(gain, -1, 1)
    return float(mean_and_error(gain, weights)[0]), float(mean_and_error(clipped, weights)[1])


def log_average(parts: Sequence[Array], shares: np.ndarray) -> Array:
    """log Σ w p (N, K) of log-probabilities."""
    xp = namespace(parts[0])
    shares = xp.log(like(shares, parts[0]))
    return functools.reduce(xp.logaddexp, [part + shares[i] for i, part in enumerate(parts)])


def mean_and_error(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Weighted mean and its standard error; a weight w counts as w samples."""
    total = float(weights.sum())
    mean = float(weights @ values) / total
    variance = float(weights @ (values - mean) ** 2) / total if math.isfinite(mean) else math.inf
    return np.array([mean, math.sqrt(variance / total)])


def average_weights(losses: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Weights (M,) of the average with the lowest mean loss, small ones set to zero."""
    shares = mixture_weights(losses, sizes)
    kept = shares >= min(SMALLEST, shares.max())
    shares = np.zeros(len(losses))
    shares[kept] = mixture_weights(losses[kept], sizes)
    return shares


def mixture_weights(losses: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Expectation–maximisation for the weights (M,), which never raises the mean loss."""
    number = len(losses)
    likelihood = np.exp(-losses)
    shares = np.full(number, 1.0 / number)
    for _ in range(500):
        each = shares[:, None] * likelihood
        each /= each.sum(axis=0)
        before, shares = shares, each @ sizes + PRIOR_SAMPLES / number
        shares /= shares.sum()
        if np.abs(shares - before).max() < 1e-6:
            break
    return shares
