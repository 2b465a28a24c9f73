"""The contract of every calibrator: fit(logits, y), predict_proba(logits), JSON in and out.

A calibrator is a thin shell around one function from logits to log-probabilities that is written
against the array API, so the same lines serve NumPy, torch on any device and the ONNX exporter.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self
from warnings import warn

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.utils.validation import check_is_fitted

from focalcal._arrays import (
    Array,
    as_array,
    as_float,
    detach,
    full_precision,
    namespace,
    on_device_of,
    to_numpy,
    two_columns,
)
from focalcal._blocks import map_rows
from focalcal._checks import check_labels, check_logits, check_weights, checking
from focalcal._labels import encode, looks_like_probabilities
from focalcal.calibrators._floor import finite, fit_floor, fit_shifted, floored, has_zeros
from focalcal.calibrators._newton import moment_sums
from focalcal.errors import FitWarning, InputError

FEW_SAMPLES_PER_CLASS = 10
LARGEST_LOGIT = 1e35
"""Larger numbers are masks, not scores, and arithmetic on them overflows."""
NEGLIGIBLE = 1e-60
"""Samples with less than this share of the largest weight are left out: products underflow."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Diagnostics:
    """How a fit went.

    objective: what was minimised; before, after: its value for softmax(z) and for the fitted map;
    iterations: passes, steps or grid points; converged: whether the solver reached its tolerance;
    at_edge: whether the optimum lies at the end of its range; n: calibration samples; n_per_class:
    of each class; warnings: what a user should know, as sentences.
    """

    objective: str = "nll"
    before: float
    after: float
    iterations: int = 0
    converged: bool = True
    at_edge: bool = False
    n: int
    n_per_class: tuple[int, ...]
    warnings: tuple[str, ...] = ()


def combined(found: dict[str, Diagnostics]) -> dict[str, Any]:
    """Fields for the `Diagnostics` of a calibrator that combines others, given by name."""
    return {
        "iterations": max(d.iterations for d in found.values()),
        "converged": all(d.converged for d in found.values()),
        "at_edge": any(d.at_edge for d in found.values()),
        "warnings": tuple(f"{name}: {note}" for name, d in found.items() for note in d.warnings),
    }


def solved(
    iterations: int, converged: bool, notes: Sequence[str] = (), **others: Any
) -> dict[str, Any]:
    """Fields for `Diagnostics` after a solver, with a warning if it did not converge."""
    if not converged:
        notes = [
            *notes,
            f"the solver did not converge in {iterations} iterations; use more data, check the "
            "logits, or raise the penalty if there is one",
        ]
    others |= {"iterations": iterations, "converged": converged, "warnings": tuple(notes)}
    return others


@dataclasses.dataclass(frozen=True)
class FitData:
    """Validated fitting data: logits (N, K) with K ≥ 2, labels (N,), weights (N,) > 0 or None.

    `logits` keeps the caller's kind, device and precision; `labels` lives on the same device.
    """

    logits: Array
    labels: Array
    weights: Array | None

    @property
    def n(self) -> int:
        return int(self.logits.shape[0])

    @property
    def n_classes(self) -> int:
        return int(self.logits.shape[1])

    def numpy(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(logits, labels, weights) as float64, int64 and float64 NumPy; weights have mean 1."""
        logits, labels, weights = self.counted()
        return logits, labels, weights / weights.mean()

    def counted(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """As `numpy`, but weight 2 counts as two samples."""
        weights = np.ones(self.n) if self.weights is None else to_numpy(self.weights)
        logits, labels = to_numpy(self.logits), to_numpy(self.labels)
        return logits.astype(np.float64), labels.astype(np.int64), weights.astype(np.float64)


def check_usable_logits(logits: Any, zeros: bool = False) -> Array:
    """`check_logits`, and no larger than LARGEST_LOGIT: a mask such as −3e38 is an error.

    zeros: rows (N, K) may contain −∞, the logarithm of a probability of zero.
    """
    if zeros and has_zeros(logits):
        logits = as_float(logits)
        check_usable_logits(finite(logits))
        return logits
    logits = check_logits(logits)
    xp = namespace(logits)
    with np.errstate(over="ignore"):
        if isinstance(logits, np.ndarray) and np.vdot(logits, logits) <= 1e30:
            return logits  # one fast product suffices for all usual logits
    largest = float(to_numpy(xp.max(xp.abs(logits))))
    if largest > LARGEST_LOGIT:
        raise InputError(
            f"expected logits up to {LARGEST_LOGIT:g}, got {largest:g}; "
            "replace masks of impossible classes, for example by the row's largest logit minus 1e4"
        )
    return logits


class Calibrator(ClassifierMixin, BaseEstimator):
    """Base class of all calibrators; a subclass defines `_fit`, `_log_proba` and class variables.

    With task="auto" logits (N,), (N, 1) and (N, 2) are binary, wider ones multiclass. With
    task="multilabel" logits and 0/1 labels are (N, C), and every label has a calibrator of its own.

    Methods for log-odds have a mode: "ovr" calibrates each class against the rest and normalises
    the rows, so the predicted class may change; "top-label" calibrates the confidence of the
    predicted class, which stays on top, and scales the other classes in proportion.

    Fitted: `n_classes_`, `diagnostics_` (see `Diagnostics`), `floor_`, `class_names_` if the labels
    were text, and `labels_`, the calibrators of a multi-label task.
    """

    method: ClassVar[str]
    """Name on the command line and in saved files, e.g. "temperature"."""
    summary: ClassVar[str]
    """One line for `focalcal methods`."""
    preserves_accuracy: ClassVar[bool] = False
    """Whether the predicted class can never change."""
    state: ClassVar[dict[str, str | None]] = {}
    """Fitted attributes that define the map and are saved, with their shapes: K classes, J columns,
    L = 2^m − 1 edges, P = L + 1 pieces, or a digit; "" is a number, and None is not checked."""
    takes_sums: ClassVar[bool] = False
    """Whether `_fit` accepts `calibrators.sums.SampledData`, for data that do not fit in memory."""
    floors: ClassVar[str] = "zeros"
    """When `floor_` is learnt: "zeros" (if logits of −∞ are given), "always", or "never"."""

    diagnostics_: Diagnostics
    n_classes_: int
    floor_: float = 0.0
    """Added to the softmax of the logits before anything else; 0 is no floor."""

    def __init__(self, task: str = "auto") -> None:
        self.task = task

    def _fit(self, data: FitData) -> dict[str, Any]:
        """Learn the attributes named in `state`; return the fields of `Diagnostics` that apply."""
        raise NotImplementedError

    def _floor_loss(self, data: FitData) -> float:
        """The mean NLL that `floor_` minimises: most maps can sharpen or shift what is flat."""
        return fit_shifted(data.logits, data.labels, data.weights)[0].loss

    def _log_proba(self, logits: Array) -> Array:
        """Log-probabilities (N, K) of float logits (N, K), in array API operations only."""
        raise NotImplementedError

    def _check_params(self) -> None:
        """Refuse settings that make no sense; called by `fit` and after loading a file."""

    @classmethod
    def _upgraded(cls, state: dict[str, Any]) -> dict[str, Any]:
        """The `state` of a file in the form of this release; converts files of earlier ones."""
        return state

    def _fitted(self) -> dict[str, Any]:
        """What defines the map: attributes by name, or the calibrators of a multi-label task."""
        names = ["labels_"] if self.task == "multilabel" else [*self.state]
        names += ["floor_"] if self.floor_ > 0 else []
        return {name: getattr(self, name) for name in names}

    def _check_state(self) -> None:
        """Refuse loaded `state` of the right shape but with impossible values (InputError)."""

    def fit(self, logits: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit to calibration logits (N, K) and labels (N,); see the class for the objective."""
        if self.task not in ("auto", "multilabel"):
            raise InputError(f"expected task 'auto' or 'multilabel', got {self.task!r}")
        with checking(self):
            self._check_params()
        self._forget()
        logits = detach(check_usable_logits(logits, zeros=self.task != "multilabel"))
        if self.task == "multilabel":
            return self._fit_labels(logits, y, sample_weight)
        logits = two_columns(logits)
        n, k = logits.shape
        y, names = encode(y, k, name="y")
        if names is not None:
            self.class_names_ = names
        labels = on_device_of(check_labels(y, n, k, name="y"), logits)
        if sample_weight is not None:
            sample_weight = on_device_of(check_weights(sample_weight, n, 1e12), logits)
            used = sample_weight > NEGLIGIBLE * sample_weight.max()
            if not bool(used.all()):
                logits, labels, sample_weight = logits[used], labels[used], sample_weight[used]
        self.n_classes_, sample = k, (logits, labels, sample_weight)
        if self.floors == "always" or (self.floors == "zeros" and has_zeros(logits)):
            self.floor_ = fit_floor(*sample, lambda *part: self._floor_loss(FitData(*part)))
        data = given = FitData(*sample)
        if self.floor_ > 0:  # in float64: folds must not depend on how float32 is rounded
            wide = namespace(logits).astype(logits, namespace(logits).float64)
            data = dataclasses.replace(given, logits=self._floored(wide))
        outcome = {"before": softmax_nll(given), "warnings": (), **self._fit(data)}
        if "after" not in outcome:
            outcome["after"] = map_nll(self._log_proba, data)
        if looks_like_probabilities(data.logits):
            outcome["warnings"] += (
                "the logits lie in [0, 1] and their rows sum to 1: they look like probabilities; "
                "if they are, pass their logarithms (on the command line: --probs NAME)",
            )
        counts = np.bincount(to_numpy(labels), minlength=k)
        self._diagnose(**outcome, n=given.n, n_per_class=tuple(counts.tolist()))
        return self

    def _forget(self) -> None:
        """Remove attributes left by an earlier fit, or by a decision about it."""
        for name in ("decision_", "class_names_", "floor_"):
            self.__dict__.pop(name, None)

    def _diagnose(self, *, warnings: tuple[str, ...], **outcome: Any) -> None:
        """Set `diagnostics_`, with a note on missing classes and few samples, and warn."""
        n, counts, notes = outcome["n"], outcome["n_per_class"], list(warnings)
        missing = [i for i, c in enumerate(counts) if c == 0]
        if missing and self.state:
            shown = ", ".join(map(str, missing[:5])) + (", …" if len(missing) > 5 else "")
            notes.append(
                f"no calibration sample of {len(missing)} of {len(counts)} classes ({shown}); "
                "the data do not determine their calibration"
            )
        if self.state and n < FEW_SAMPLES_PER_CLASS * 2:
            notes.append(
                f"only {n} calibration samples; a fit from so few is mostly noise, "
                f"use {FEW_SAMPLES_PER_CLASS} per class or more"
            )
        repeated = tuple(f": {note}" for note in notes)  # notes of a part, given for the whole too
        notes = [note for note in notes if not note.endswith(repeated)]
        self.diagnostics_ = Diagnostics(warnings=tuple(notes), **outcome)
        for message in notes:
            warn(f"{type(self).__name__}: {message}", FitWarning, stacklevel=3)

    def predict_log_proba(self, logits: Any) -> Array:
        """Calibrated log-probabilities, of the same kind, device and precision as `logits`."""
        logits = self._checked(logits)
        with full_precision(logits):
            return self._calibrated(logits)

    def _checked(self, logits: Any) -> Array:
        """Logits (N, K) with as many classes or labels as fitted; −∞ only if there is a floor."""
        check_is_fitted(self, "n_classes_")
        logits = self._shaped(check_usable_logits(logits, zeros=self.task != "multilabel"))
        return self._finite(logits) if has_zeros(logits) else logits

    def _finite(self, logits: Array) -> Array:
        """Logits (N, K) without −∞, unless there is a floor."""
        return logits if self.task == "multilabel" or self.floor_ > 0 else finite(logits)

    def _shaped(self, logits: Array) -> Array:
        multilabel, given = self.task == "multilabel", tuple(logits.shape)
        logits = logits if multilabel else two_columns(logits)
        if logits.ndim != 2 or logits.shape[1] != self.n_classes_:
            raise InputError(
                f"expected logits for {self.n_classes_} {'labels' if multilabel else 'classes'}, "
                f"as fitted, got shape {given}; refit or pass the matching logits"
            )
        return logits

    def _calibrated(self, logits: Array) -> Array:
        """Log-probabilities (N, K), for any kind of array: the floor, then `_log_proba`."""
        if self.task == "multilabel":
            columns = [c._calibrated(logits[:, j])[:, 1] for j, c in enumerate(self.labels_)]
            return namespace(logits).stack(columns, axis=1)
        return self._log_proba(self._floored(two_columns(logits)))

    def _floored(self, logits: Array) -> Array:
        return floored(logits, self.floor_) if self.floor_ > 0 else logits

    def predict_proba(self, logits: Any) -> Array:
        """Calibrated probabilities (N, K); (N, 2) for binary logits; (N, C) for multi-label."""
        log_proba = self.predict_log_proba(logits)
        return namespace(log_proba).exp(log_proba)

    @property
    def classes_(self) -> np.ndarray:
        """What `predict` returns, in the order of the columns (K,), as scikit-learn expects it."""
        return np.arange(self.n_classes_)

    def predict(self, logits: Any) -> Array:
        """The index of the most probable class (N,), or 0/1 per label (N, C) for multi-label."""
        proba = self.predict_proba(logits)
        xp = namespace(proba)
        if self.task == "multilabel":
            return xp.astype(proba > 0.5, xp.int64)
        return xp.argmax(proba, axis=1)

    def score(self, logits: Any, y: Any, sample_weight: Any = None) -> float:
        """The accuracy of `predict`; y as in `fit`, text labels by the fitted class names."""
        y, _ = encode(y, self.n_classes_, getattr(self, "class_names_", None), name="y")
        return super().score(logits, y, sample_weight)

    def save(self, path: Any) -> None:
        """Write this fitted calibrator as a small versioned JSON file."""
        from focalcal.calibrators.persistence import save

        save(self, path)

    def to_torch(self) -> Any:
        """This fitted map as a `torch.nn.Module`: logits in, probabilities out, no parameters."""
        from focalcal.calibrators.to_torch import CalibratorModule

        return CalibratorModule(self)

    def to_onnx(self, path: Any, *, dtype: str = "float32", compute: str = "float64") -> None:
        """Write this fitted map as an ONNX file, logits (N, K) to probabilities (N, K).

        dtype: of input and output, "float16" to "float64"; compute: the precision in between,
        "float32" for runtimes without double arithmetic (the result then differs by up to 1e-5).
        A binary calibrator takes two columns, as `predict_proba` returns them.
        """
        from focalcal.calibrators.to_onnx import export

        export(self, path, dtype=dtype, compute=compute)

    def _fit_labels(self, logits: Array, y: Any, sample_weight: Any) -> Self:
        labels = as_array(y)
        if logits.ndim != 2 or tuple(labels.shape) != tuple(logits.shape):
            raise InputError(
                "expected multi-label logits and y of one shape (N, labels), "
                f"got {tuple(logits.shape)} and {tuple(labels.shape)}"
            )
        self.labels_ = [
            clone(self).set_params(task="auto").fit(logits[:, j], labels[:, j], sample_weight)
            for j in range(logits.shape[1])
        ]
        self.n_classes_ = int(logits.shape[1])
        parts = [c.diagnostics_ for c in self.labels_]
        self.diagnostics_ = Diagnostics(
            objective=parts[0].objective,
            before=float(np.mean([d.before for d in parts])),
            after=float(np.mean([d.after for d in parts])),
            n=parts[0].n,
            n_per_class=tuple(d.n_per_class[1] for d in parts),
            **combined({f"label {j}": d for j, d in enumerate(parts)}),
        )
        return self


def softmax_nll(data: FitData) -> float:
    """Mean NLL of softmax(z) on the fitting data."""
    sums = moment_sums(data.logits, data.labels, data.weights, 1.0, quick=False)
    return float(sums[0] / sums[4])


def map_nll(log_proba: Callable[[Array], Array], data: FitData) -> float:
    """Mean NLL of a map on the fitting data, block by block."""

    def block(rows: slice) -> tuple[float, float]:
        log_p = log_proba(data.logits[rows])
        xp = namespace(log_p)
        own = xp.take_along_axis(log_p, data.labels[rows][:, None], axis=1)[:, 0]
        loss = -xp.astype(own, xp.float64)
        w = xp.ones_like(loss)
        if data.weights is not None:
            w = xp.astype(data.weights[rows], xp.float64)
        return float(xp.sum(w * loss)), float(xp.sum(w))

    loss, total = np.sum(map_rows(block, data.logits), axis=0)
    return float(loss / total)
