"""AutoCalibrator: the method with the best cross-validated log-loss, simpler ones preferred."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from focalcal._arrays import Array
from focalcal.calibrators._folds import fold_shares
from focalcal.calibrators.base import Calibrator, FitData
from focalcal.errors import FitWarning, InputError

ORDER = (
    "identity",
    "temperature",
    "focal-temperature",
    "platt",
    "beta",
    "structured-vector",
    "structured-matrix",
    "focal-structured",
    "isotonic",
)
"""The default candidates, from few to many fitted numbers."""


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One row of `table_`: mean held-out NLL ± its standard error over `n` samples."""

    method: str
    nll: float
    standard_error: float
    n: int
    chosen: bool


class AutoCalibrator(Calibrator):
    """The simplest method whose cross-validated NLL is within one standard error of the best.

    Every candidate is fitted without each fold of the calibration data in turn and scored on that
    fold; the standard error is that of the paired difference to the best. The chosen method is
    then fitted to all the data. No other data are seen. Few samples allow few candidates:
    temperatures from 20 on, vectors from 10 per class, matrices from 20 per class and 1,000 in
    all.

    Arguments: candidates, names of methods from simple to complex, or None for the default list;
    folds ≥ 2; task. Fitted: `calibrator_`, `method_` and `table_`, the scores it chose from.

    >>> rng = np.random.default_rng(0)
    >>> z = 2 * rng.normal(size=(400, 3))
    >>> y = np.argmax(z + rng.gumbel(size=z.shape), axis=1)
    >>> AutoCalibrator(("identity", "temperature")).fit(3 * z, y).method_
    'temperature'

    The rule of one standard error: Breiman et al. 1984, Sec. 3.4.3.
    """

    method: ClassVar[str] = "auto"
    summary: ClassVar[str] = "the best of the others by cross-validated NLL, simpler ones preferred"
    state: ClassVar[tuple[str, ...]] = ("calibrator_", "scores_")

    def __init__(
        self, candidates: Sequence[str] | None = None, folds: int = 5, task: str = "auto"
    ) -> None:
        self.candidates = candidates
        self.folds = folds
        self.task = task

    @property
    def method_(self) -> str:
        """The chosen method's name."""
        return self.calibrator_.method

    @property
    def table_(self) -> list[Candidate]:
        """Every candidate's score, from simple to complex."""
        n = self.diagnostics_.n
        return [
            Candidate(name, float(score[0]), float(score[1]), n, name == self.method_)
            for name, score in self.scores_.items()
        ]

    def table_text(self) -> str:
        """`table_` for people: held-out NLL of every candidate, the chosen one marked."""
        width = max(len(row.method) for row in self.table_)
        lines = [f"{'method':<{width}}  held-out NLL ± standard error"]
        for row in self.table_:
            mark = "  ← chosen" if row.chosen else ""
            lines.append(f"{row.method:<{width}}  {row.nll:.4f} ± {row.standard_error:.4f}{mark}")
        return "\n".join(lines)

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        text = super().__repr__(N_CHAR_MAX)
        fitted = hasattr(self, "calibrator_")
        return f"{text}: {self.method_}\n{self.table_text()}" if fitted else text

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

    def _check_state(self) -> None:
        inner = self.calibrator_
        if not isinstance(inner, Calibrator) or inner.n_classes_ != self.n_classes_:
            raise InputError(f"expected a calibrator for {self.n_classes_} classes inside")
        scores = self.scores_.values() if isinstance(self.scores_, dict) else [None]
        if any(np.shape(s) != (2,) or np.asarray(s).dtype.kind != "f" for s in scores):
            raise InputError("expected scores_ as mean and standard error of each method")

    def _fit(self, data: FitData) -> dict[str, Any]:
        from focalcal.calibrators import make

        logits, labels, weights = data.numpy()
        if data.weights is not None:
            weights = np.asarray(weights * float(data.weights.sum()) / data.n)
        names = self.candidates or default_candidates(float(weights.sum()), data.n_classes)
        used = weights > 0
        kept = FitData(logits[used], labels[used], weights[used])
        losses = {name: held_out_losses(make(name), kept, self.folds) for name in names}
        chosen = simplest(losses, kept.weights)
        self.scores_ = {name: mean_and_error(loss, kept.weights) for name, loss in losses.items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)  # repeated below, under this name
            self.calibrator_ = make(chosen).fit(data.logits, data.labels, data.weights)
        inner = self.calibrator_.diagnostics_
        notes = [f"{chosen}: {note}" for note in inner.warnings]
        if len(losses) == 1 and self.candidates is None:
            notes.append("too few samples to choose from; nothing is calibrated")
        return {
            "iterations": inner.iterations,
            "converged": inner.converged,
            "at_edge": inner.at_edge,
            "warnings": tuple(notes),
        }

    def _log_proba(self, logits: Array) -> Array:
        return self.calibrator_._log_proba(logits)


def default_candidates(n: float, n_classes: int) -> list[str]:
    """The methods that n samples of so many classes can support, from simple to complex."""
    least = {
        "identity": 0.0,
        "temperature": 20.0,
        "focal-temperature": 100.0,
        "platt": 20.0,
        "beta": 100.0,
        "structured-vector": 10.0 * n_classes,
        "structured-matrix": max(1000.0, 20.0 * n_classes),
        "focal-structured": max(1000.0, 20.0 * n_classes),
        "isotonic": 1000.0,
    }
    binary_only = ("platt", "beta", "isotonic")
    return [
        name for name in ORDER if n >= least[name] and (n_classes == 2 or name not in binary_only)
    ]


def held_out_losses(calibrator: Calibrator, data: FitData, folds: int) -> np.ndarray:
    """−log p_y (N,) of each sample by fits without its fold."""
    losses = np.zeros(data.n)
    for share in fold_shares(data.logits, data.labels, data.weights, folds):
        out, own = share > 0, share < 1
        if not out.any():
            continue
        if not own.any():  # one distinct sample: there is nothing to leave out
            own = out
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)
            left = data.weights * np.where(share < 1, 1 - share, 1)
            calibrator.fit(data.logits[own], data.labels[own], left[own])
        log_p = calibrator.predict_log_proba(data.logits[out])
        losses[out] -= share[out] * log_p[np.arange(len(log_p)), data.labels[out]]
    return losses


def mean_and_error(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Weighted mean and its standard error, a weight counting as so many samples."""
    total = float(weights.sum())
    mean = float(weights @ values) / total
    variance = float(weights @ (values - mean) ** 2) / total
    return np.array([mean, math.sqrt(variance / total)])


def simplest(losses: dict[str, np.ndarray], weights: np.ndarray) -> str:
    """The first method whose mean loss exceeds the smallest by at most one standard error."""
    best = min(losses, key=lambda name: mean_and_error(losses[name], weights)[0])
    for name, loss in losses.items():
        excess, error = mean_and_error(loss - losses[best], weights)
        if excess <= error:
            return name
    return best
