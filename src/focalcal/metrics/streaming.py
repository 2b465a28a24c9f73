"""Metrics of predictions too many to hold: update with batches, merge, compute.

The state is a fixed number of float64 sums. What is a mean or a fixed-bin error is exact; what
depends on the order of confidences is read from a fine histogram and carries an error bound.
"""

from __future__ import annotations

import dataclasses
import json
from itertools import pairwise
from typing import Any, Self

import numpy as np

from focalcal import bins as _bins
from focalcal._arrays import to_numpy
from focalcal._checks import check_whole
from focalcal.bins import Bins
from focalcal.errors import FileFormatError, InputError
from focalcal.metrics import _samples
from focalcal.metrics._cells import Cells, fine_edges
from focalcal.metrics.scores import decompose_brier
from focalcal.metrics.selective import at_least, check_threshold

_FORMAT = "focalcal.CalibrationStats"
_VERSION = 1
_SUMS = (
    "weight",
    "brier",
    "high",
    "high_correct",
    "right",
    "entropy_right",
    "entropy_wrong",
    "nll_right",
    "nll_wrong",
    "zero_right",
    "zero_wrong",
    "true_class_probability_right",
    "true_class_probability_wrong",
)
_SETTINGS = ("n_classes", "bins", "threshold")
_TABLES = ("fixed", "columns", "fine")
_PARTS = ("counts", "confidence_sums", "correct_sums")


@dataclasses.dataclass(frozen=True)
class Streamed:
    """A metric of a stream: the value of one pass over all samples lies within ±error_bound.

    A bound of 0 means exact but for float64 rounding.
    """

    value: float
    error_bound: float
    n: int


@dataclasses.dataclass(frozen=True)
class StreamedEvaluation:
    """What `CalibrationStats.compute` returns; `result["ece"]` is a `Streamed`."""

    n: int
    n_classes: int
    metrics: dict[str, Streamed]
    reliability: Bins

    def __getitem__(self, name: str) -> Streamed:
        return self.metrics[name]


class CalibrationStats:
    """Running statistics of predictions in O(bins·classes) memory.

    n_classes: columns of y_prob, or 1 for (N,) probabilities of y_true = 1; bins: equally wide
    bins of the fixed-bin errors; threshold: of the share of high confidence.

    >>> stats = CalibrationStats(n_classes=2)
    >>> stats.update([0, 1], [[0.9, 0.1], [0.4, 0.6]]).update([1], [[0.2, 0.8]]).n
    3
    >>> again = CalibrationStats.from_json(stats.to_json())
    >>> round(again.merge(stats).compute()["brier"].value, 4)
    0.14
    """

    def __init__(self, n_classes: int, bins: int = 15, threshold: float = 0.99) -> None:
        self.n_classes = check_whole(n_classes, "classes", 1)
        self.bins = _bins.check_bins(bins)
        self.threshold = check_threshold(threshold)
        self.n = 0
        self._sums = dict.fromkeys(_SUMS, 0.0)
        edges = _bins.equal_width_edges(self.bins)
        self._fixed = _empty(edges, ())
        self._columns = _empty(edges, (self.n_classes,))
        self._fine = _empty(fine_edges(), ())

    def update(self, y_true: Any, y_prob: Any, sample_weight: Any = None) -> Self:
        """Add a batch: labels (N,), probabilities (N, n_classes) or (N,), weights (N,)."""
        labels, probs = map(to_numpy, _samples.labels_and_probs(y_true, y_prob))
        columns = 1 if probs.ndim == 1 else probs.shape[1]
        if columns != self.n_classes:
            raise InputError(
                f"expected y_prob with {self.n_classes} classes, as in this CalibrationStats, "
                f"got {columns}"
            )
        weights = _samples.sample_weights(sample_weight, len(labels))
        confidence, correct = _samples.top_of(labels, probs)
        self._add_sums(labels, probs, confidence, correct, weights)
        self._fixed += _bins.bin_samples(confidence, correct, self._fixed.edges, weights)
        # float64 here, so that a cell's edges are the same numbers for every precision.
        wide = confidence.astype(np.float64)
        self._fine += _bins.bin_samples(wide, correct, self._fine.edges, weights)
        if probs.ndim == 1:
            labels, probs = _samples.one_column(labels, probs)
        self._columns += _bins.bin_columns(labels, probs, self._columns.edges, weights)
        self.n += len(labels)
        return self

    def merge(self, other: CalibrationStats) -> Self:
        """Add the samples that `other` has seen; the settings must be the same."""
        mine, theirs = self._settings(), other._settings()
        if mine != theirs:
            raise InputError(f"expected statistics with the same settings, {mine}, got {theirs}")
        self.n += other.n
        self._sums = {name: value + other._sums[name] for name, value in self._sums.items()}
        self._fixed += other._fixed
        self._columns += other._columns
        self._fine += other._fine
        return self

    def compute(self) -> StreamedEvaluation:
        """All metrics of the samples seen so far."""
        if self.n == 0:
            raise InputError("expected at least one sample, got none; call update first")
        exact = self._exact()
        cells = Cells.of(self._fine)
        bounded = {
            "adaptive_ece": cells.adaptive_ece(self.bins),
            "ks_error": cells.ks_error(),
            "auroc_of_confidence": cells.auroc(),
            "smooth_ece": cells.smooth_ece(),
        }
        metrics = {name: Streamed(float(v), 0.0, self.n) for name, v in exact.items()}
        metrics |= {name: Streamed(*pair, self.n) for name, pair in bounded.items()}
        return StreamedEvaluation(self.n, self.n_classes, metrics, self._fixed)

    def to_json(self) -> str:
        """The state as JSON text; floats keep every digit."""
        return json.dumps(
            {
                "format": _FORMAT,
                "version": _VERSION,
                **self._settings(),
                "n": self.n,
                "sums": self._sums,
                **{
                    name: {part: getattr(b, part).tolist() for part in _PARTS}
                    for name, b in self._tables().items()
                },
            },
            allow_nan=False,
        )

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The statistics that `to_json` wrote; anything else is a FileFormatError."""
        try:
            state = json.loads(text)
        except ValueError as e:
            raise FileFormatError(f"expected JSON of a CalibrationStats, got: {e}") from e
        if not isinstance(state, dict) or state.get("format") != _FORMAT:
            raise FileFormatError(f"expected JSON with format {_FORMAT!r}, got something else")
        if state.get("version") != _VERSION:
            raise FileFormatError(
                f"expected version {_VERSION}, got {state.get('version')!r}; "
                "read it with the focalcal that wrote it"
            )
        _expect_keys(state, {"format", "version", *_SETTINGS, "n", "sums", *_TABLES}, "the file")
        _expect_keys(state["columns"], set(_PARTS), "columns")
        _expect_lengths(state["columns"]["counts"], state["n_classes"], state["bins"])
        try:
            stats = cls(*(state[name] for name in _SETTINGS))
        except (TypeError, ValueError, OverflowError) as e:
            raise FileFormatError(f"expected valid settings, got: {e}") from e
        stats.n = _whole(state["n"])
        _expect_keys(state["sums"], set(_SUMS), "sums")
        stats._sums = {k: float(_numbers(state["sums"][k], (), f"sums.{k}")) for k in _SUMS}
        for name, b in stats._tables().items():
            _expect_keys(state[name], set(_PARTS), name)
            parts = [_numbers(state[name][p], b.counts.shape, f"{name}.{p}") for p in _PARTS]
            setattr(stats, f"_{name}", Bins(b.edges, *parts))
        stats._check_consistent()
        return stats

    def to_vector(self) -> np.ndarray:
        """The state as one float64 vector; vectors of statistics with equal settings add up.

        >>> a = CalibrationStats(2).update([0, 1], [[0.9, 0.1], [0.4, 0.6]])
        >>> CalibrationStats(2).add_vector(a.to_vector() + a.to_vector()).n
        4
        """
        tables = (getattr(b, part).ravel() for b in self._tables().values() for part in _PARTS)
        return np.concatenate([[float(self.n)], list(self._sums.values()), *tables])

    def add_vector(self, vector: Any) -> Self:
        """Add the samples of a sum of vectors that `to_vector` made with the same settings."""
        vector = np.asarray(vector, dtype=np.float64)
        own = self.to_vector()
        if vector.shape != own.shape:
            raise InputError(
                f"expected a vector of shape {own.shape}, as these settings make, "
                f"got {vector.shape}"
            )
        total = own + vector
        self.n = round(total[0])
        self._sums = dict(zip(_SUMS, total[1 : 1 + len(_SUMS)].tolist()))
        start = 1 + len(_SUMS)
        for name, b in self._tables().items():
            size = b.counts.size
            ends = [start + size * i for i in range(len(_PARTS) + 1)]
            parts = [total[i:j].reshape(b.counts.shape) for i, j in pairwise(ends)]
            setattr(self, f"_{name}", Bins(b.edges, *parts))
            start = ends[-1]
        return self

    def _check_consistent(self) -> None:
        """FileFormatError where parts cannot come from the same samples; rounding is allowed."""
        s, most = self._sums, 1 + 1e-6
        weight, right = s["weight"], s["right"]
        limits = dict.fromkeys(("right", "high", "zero_wrong"), weight)
        limits |= {"high_correct": min(s["high"], right), "zero_right": right}
        limits |= {"true_class_probability_right": right, "true_class_probability_wrong": weight}
        wrong = [name for name, limit in limits.items() if s[name] > limit * most]
        for name, b in self._tables().items():
            fits = [
                np.allclose(b.total, weight, rtol=1e-6, atol=0),
                (b.correct_sums <= b.counts * most).all(),
                (b.confidence_sums <= b.counts * b.edges[1:] * most).all(),
            ]
            wrong += [] if all(fits) else [name]
        if wrong or (self.n == 0) != (weight == 0):
            raise FileFormatError(
                f"expected statistics of one set of samples, got {', '.join(wrong) or 'n'} that "
                "disagree with the weight; the file is damaged, write it again"
            )

    def _settings(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _SETTINGS}

    def _tables(self) -> dict[str, Bins]:
        return {name: getattr(self, f"_{name}") for name in _TABLES}

    def _add_sums(
        self,
        labels: np.ndarray,
        probs: np.ndarray,
        confidence: np.ndarray,
        correct: np.ndarray,
        weights: np.ndarray | None,
    ) -> None:
        right = correct if probs.ndim == 2 else _samples.predicted_right(labels, probs)
        high = at_least(confidence, self.threshold)
        p_true = _samples.true_class_probability(labels, probs)
        zero = p_true == 0
        # Zero probabilities are counted apart: an infinite sum could not be merged or stored.
        split = {
            "entropy": _samples.entropy(labels, probs),
            "nll": _samples.negative_log(np.where(zero, 1.0, p_true)),
            "zero": zero,
            "true_class_probability": p_true,
        }
        new = {
            "weight": len(labels) if weights is None else weights.sum(),
            "brier": _total(_samples.squared_error(labels, probs), weights),
            "high": _total(high, weights),
            "high_correct": _total(high & correct, weights),
            "right": _total(right, weights),
        }
        for name, values in split.items():
            mass = values if weights is None else values * weights
            pair = np.bincount(right, weights=mass, minlength=2)
            new[f"{name}_wrong"], new[f"{name}_right"] = pair
        for name, value in new.items():
            self._sums[name] += float(value)

    def _exact(self) -> dict[str, float]:
        s = self._sums
        weight, right = s["weight"], s["right"]
        wrong = weight - right
        nll_right = _mean(s["nll_right"], right, s["zero_right"])
        nll_wrong = _mean(s["nll_wrong"], wrong, s["zero_wrong"])
        zero = s["zero_right"] + s["zero_wrong"]
        brier = s["brier"] / weight
        split = decompose_brier(brier, self._columns, self.n)
        fixed = self._fixed
        return {
            "accuracy": right / weight,
            "error": wrong / weight,
            "nll": _mean(s["nll_right"] + s["nll_wrong"], weight, zero),
            "brier": brier,
            "brier_calibration": split.calibration,
            "brier_refinement": split.refinement,
            "ece": _bins.mean_gap(fixed),
            "mce": _bins.max_gap(fixed),
            "rms_calibration_error": _bins.rms_gap(fixed),
            "classwise_ece": np.mean(_bins.mean_gap(self._columns)),
            "confidence_gap": (fixed.confidence_sums.sum() - fixed.correct_sums.sum()) / weight,
            "high_confidence_share": s["high"] / weight,
            "high_confidence_accuracy": _mean(s["high_correct"], s["high"]),
            "entropy_right": _mean(s["entropy_right"], right),
            "entropy_wrong": _mean(s["entropy_wrong"], wrong),
            "nll_right": nll_right,
            "nll_wrong": nll_wrong,
            "true_class_probability_right": _mean(s["true_class_probability_right"], right),
            "true_class_probability_wrong": _mean(s["true_class_probability_wrong"], wrong),
        }


def _total(values: np.ndarray, weights: np.ndarray | None) -> float:
    return values.sum(dtype=np.float64) if weights is None else (values * weights).sum()


def _mean(total: float, weight: float, zeros: float = 0.0) -> float:
    """total/weight: NaN for no weight, infinite if some of it had probability zero."""
    if weight <= 0:
        return float("nan")
    return float("inf") if zeros > 0 else total / weight


def _empty(edges: np.ndarray, shape: tuple[int, ...]) -> Bins:
    return Bins(edges, *(np.zeros((*shape, len(edges) - 1)) for _ in _PARTS))


def _expect_keys(found: Any, expected: set[str], where: str) -> None:
    if not isinstance(found, dict) or set(found) != expected:
        keys = set(found) if isinstance(found, dict) else set()
        missing, extra = sorted(expected - keys), sorted(keys - expected)
        raise FileFormatError(f"wrong fields in {where}: missing {missing}, unknown {extra}")


def _expect_lengths(rows: Any, n_classes: Any, bins: Any) -> None:
    """Before tables of a declared size are made, what is there must have that size."""
    found = (len(rows), len(rows[0])) if _is_table(rows) else None
    if found != (n_classes, bins):
        raise FileFormatError(
            f"expected valid settings, {(n_classes, bins)} the shape of columns.counts, got {found}"
        )


def _is_table(rows: Any) -> bool:
    return isinstance(rows, list) and len(rows) > 0 and isinstance(rows[0], list)


def _whole(n: Any) -> int:
    if isinstance(n, bool) or not isinstance(n, int) or n < 0:
        raise FileFormatError(f"expected n as a whole number >= 0, got {n!r}")
    return n


def _numbers(values: Any, shape: tuple[int, ...], where: str) -> np.ndarray:
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as e:
        raise FileFormatError(f"expected numbers in {where}, got: {e}") from e
    if array.shape != shape:
        raise FileFormatError(f"expected {where} of shape {shape}, got {array.shape}")
    if not (np.isfinite(array).all() and (array >= 0).all()):
        raise FileFormatError(f"expected finite numbers >= 0 in {where}, got {array.min()}")
    return array
