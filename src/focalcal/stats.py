"""`CalibrationStats`: the sums and bins of samples, from which every metric is computed.

Columns of samples become sums and bins, which are additive over sets of samples. So one object
serves a data set in memory, a stream, the workers of a cluster and the resamples of a bootstrap.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
import math
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, Self

import numpy as np

from focalcal import bins as _bins
from focalcal import kernels
from focalcal._arrays import as_array, to_numpy
from focalcal._checks import check_whole
from focalcal.bins import Bins, check_bins
from focalcal.columns import Columns, Input, map_columns, read
from focalcal.errors import FileFormatError, InputError
from focalcal.ordered import Ordered, cell_search, fine_edges

SETTINGS = ("n_classes", "bins", "threshold", "kind")
TABLES = ("top", "classes", "fine")
PARTS = ("counts", "confidence_sums", "correct_sums")
_FORMAT = "focalcal.CalibrationStats"
_VERSION = 2
_OLD_TABLES = {"top": "fixed", "classes": "columns", "fine": "fine"}
_OLD_SUMS = ("nll", "zero", "entropy", "true_class_probability")
_ALWAYS = {"weight", "brier", "high", *_OLD_SUMS}

SUMS: dict[str, Callable[[Columns, float], np.ndarray]] = {
    "weight": lambda c, t: np.ones(len(c)),
    "brier": lambda c, t: c.brier,
    # Infinite losses are counted separately: an infinite sum could not be merged or stored.
    "nll": lambda c, t: np.where(c.nll < np.inf, c.nll, 0.0),
    "zero": lambda c, t: c.nll == np.inf,
    "entropy": lambda c, t: c.entropy,
    "true_class_probability": lambda c, t: np.exp(-c.nll),
    "high": lambda c, t: at_least(c.confidence, t),
}
"""Quantities summed over right and over wrong samples: functions of (columns, threshold).

A metric's declaration may add more.
"""


@dataclasses.dataclass
class CalibrationStats:
    """Running statistics of predictions in O(bins·classes) memory; metrics are functions of them.

    n_classes: columns of the predictions, 1 for one column (N,), the probability of class 1 of a
    binary classifier; bins: equally wide bins of the fixed-bin errors; threshold: of the share of
    high confidence; kind: "classes", "binary" or "event" (see `focalcal.columns`).

    >>> stats = CalibrationStats(n_classes=2)
    >>> stats.update([0, 1], [[0.9, 0.1], [0.4, 0.6]]).update([1], [[0.2, 0.8]]).n
    3
    >>> again = CalibrationStats.from_json(stats.to_json())
    >>> round(again.merge(stats).compute()["brier"].value, 4)
    0.14

    sums: (..., 2) over wrong and over right samples, by name; top: bins of the confidence; classes:
    bins (K, M) of every class; fine: a histogram of the confidence, or `exact()`: its groups; even:
    bins of equal mass of every class. Resamples have a leading axis. Unknown parts are None.
    """

    n_classes: int
    bins: int = 15
    threshold: float = 0.99
    kind: str = ""
    n: int = dataclasses.field(default=0, repr=False)
    sums: dict[str, np.ndarray] | None = dataclasses.field(default=None, repr=False)
    top: Bins | None = dataclasses.field(default=None, repr=False)
    classes: Bins | None = dataclasses.field(default=None, repr=False)
    fine: Bins | None = dataclasses.field(default=None, repr=False)
    exact: Callable[[], Ordered] | None = dataclasses.field(default=None, repr=False)
    even: Bins | None = dataclasses.field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.n_classes = check_whole(self.n_classes, "classes", 1)
        self.bins = check_bins(self.bins)
        self.threshold = check_threshold(self.threshold)
        self.kind = self.kind or ("classes" if self.n_classes > 1 else "binary")
        kinds = ("classes",) if self.n_classes > 1 else ("binary", "event")
        if self.kind not in kinds:
            raise InputError(
                f"expected kind {' or '.join(kinds)} for n_classes={self.n_classes}, "
                f"got {self.kind!r}"
            )
        if self.n == 0 and self.top is None:
            columns = 2 if self.kind == "binary" else self.n_classes
            edges = _bins.equal_width_edges(self.bins)
            self.sums = {name: np.zeros(2) for name in SUMS}
            self.top, self.classes = Bins.empty(edges), Bins.empty(edges, columns)
            self.fine = Bins.empty(fine_edges())

    def update(
        self, y_true: Any, y_prob: Any = None, sample_weight: Any = None, **given: Any
    ) -> Self:
        """Add a batch: labels (N,) and probabilities (N, n_classes), weights (N,), if any is > 0.

        given: instead of y_prob `logits` (N, n_classes) or, for statistics of kind "event",
        `confidence` (N,); `quick`: whether compiled loops are used.
        """
        w = None if sample_weight is None else to_numpy(as_array(sample_weight))
        if w is None or np.any(w):
            return self.add(read(y_true, y_prob, sample_weight=w, **given))
        checked = read(y_true, y_prob, sample_weight=np.ones_like(w), **given)
        return self.add(checked.take(np.arange(0)))  # there is nothing to add

    def add(self, data: Input) -> Self:
        """Add checked predictions, block by block."""
        given = data.settings
        if given.items() - self.settings().items():
            raise InputError(
                f"expected y_prob with {self.n_classes} classes of kind {self.kind!r}, as in this "
                f"CalibrationStats, got {given['n_classes']} of kind {data.kind!r}"
            )

        size = sum(b.counts.size for b in self.tables().values()) * len(PARTS) + 2 * len(SUMS)
        kernel, cells = kernels.pick(data.quick), cell_search()
        near = kernels.open_edges(self.top.edges, data.dtype)

        def run(blocks: Iterator[tuple[Columns, slice]]) -> np.ndarray:
            vector = np.zeros(size)
            sums, top, classes, fine = self._views(vector)
            for c, rows in blocks:
                w = None if data.weights is None else data.weights[rows]
                one = 1.0 if w is None else w
                right = one * c.correct
                wrong = one - right
                for total, function in zip(sums, SUMS.values()):
                    kernel.split_sum(function(c, self.threshold), wrong, right, total)
                odds = kernels.log_odds(c.confidence)
                kernel.bins_of(c.confidence, c.correct, w, near, top)
                kernel.class_bins_of(c.probs, data.labels[rows], w, near, classes)
                kernel.cells_of(c.confidence, odds, c.correct, w, cells, fine)
            return vector

        return self._add(len(data), sum(map_columns(data, run), np.zeros(size)))

    def merge(self, other: CalibrationStats) -> Self:
        """Add the samples that `other` has seen; the settings must be the same."""
        mine, theirs = self.settings(), other.settings()
        if mine != theirs:
            raise InputError(f"expected statistics with the same settings, {mine}, got {theirs}")
        self.fine, self.exact, self.even = self.cells(), None, None
        return self._add(other.n, other.to_vector()[1:])

    def __add__(self, other: CalibrationStats) -> CalibrationStats:
        """The statistics of both; neither is changed, so that a cluster may merge them again."""
        return copy.copy(self).merge(other)

    def compute(self) -> Any:
        """All metrics of the samples seen so far, a `StreamedEvaluation`."""
        from focalcal.metrics.streaming import compute

        return compute(self)

    def to_json(self) -> str:
        """The state as JSON text; floats keep every digit, and unknown sums are left out."""
        tables = {
            name: {part: getattr(b, part).tolist() for part in PARTS}
            for name, b in self.tables().items()
        }
        sums = {name: v.tolist() for name, v in self.sums.items() if not np.isnan(v).any()}
        state = {"format": _FORMAT, "version": _VERSION, **self.settings(), "n": self.n}
        return json.dumps(state | {"sums": sums} | tables, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The statistics that `to_json` wrote; anything else is a FileFormatError."""
        try:
            state = json.loads(text)
        except ValueError as e:
            raise FileFormatError(f"expected JSON of a CalibrationStats, got: {e}") from e
        if not isinstance(state, dict) or state.get("format") != _FORMAT:
            raise FileFormatError(f"expected JSON with format {_FORMAT!r}, got something else")
        if state.get("version") == 1:
            state = _from_version_1(state)
        if state.get("version") != _VERSION:
            raise FileFormatError(
                f"expected version {_VERSION}, got {state.get('version')!r}; "
                "read it with the focalcal that wrote it"
            )
        _expect_keys(state, {"format", "version", *SETTINGS, "n", "sums", *TABLES}, "the file")
        for name in TABLES:
            _expect_keys(state[name], set(PARTS), name)
        _expect_keys(state["sums"], set(SUMS), "sums", optional=set(SUMS) - _ALWAYS)
        try:
            size = check_whole(state["n_classes"], "classes", 1) * check_bins(state["bins"])
            if size > len(text):  # checked before memory is allocated
                raise InputError(f"{state['n_classes']} classes with {state['bins']} bins")
            stats = cls(**{name: state[name] for name in SETTINGS})
        except (TypeError, ValueError, OverflowError) as error:
            raise FileFormatError(f"expected valid settings, got: {error}") from error
        stats.n = state["n"]
        if type(stats.n) is not int or stats.n < 0:
            raise FileFormatError(f"expected n as a whole number >= 0, got {stats.n!r}")
        # Sums declared after the file was written are unknown, not 0.
        stats.sums = {name: np.full(2, np.nan) for name in SUMS} | {
            name: numbers(v, (2,), f"sums.{name}") for name, v in state["sums"].items()
        }
        for name, b in stats.tables().items():
            parts = [numbers(state[name][p], b.counts.shape, f"{name}.{p}") for p in PARTS]
            setattr(stats, name, Bins(b.edges, *parts))
        _check_consistent(stats)
        return stats

    def to_vector(self) -> np.ndarray:
        """The state as one float64 vector, additive over statistics with equal settings.

        >>> a = CalibrationStats(2).update([0, 1], [[0.9, 0.1], [0.4, 0.6]])
        >>> CalibrationStats(2).add_vector(a.to_vector() + a.to_vector()).n
        4
        """
        tables = (getattr(b, part).ravel() for b in self.tables().values() for part in PARTS)
        return np.concatenate([[float(self.n)], *self.sums.values(), *tables])

    def add_vector(self, vector: Any) -> Self:
        """Add the samples of a sum of vectors that `to_vector` made with the same settings."""
        vector, expected = np.asarray(vector, dtype=np.float64), self.to_vector().shape
        if vector.shape != expected:
            raise InputError(
                f"expected a vector of shape {expected} for these settings, got {vector.shape}"
            )
        return self._add(round(vector[0]), vector[1:])

    def _views(self, flat: np.ndarray) -> list[np.ndarray]:
        """Views of the sums (S, 2) and tables (3, …) that are concatenated in a vector."""
        shapes = [(len(SUMS), 2), *((3, *b.counts.shape) for b in self.tables().values())]
        ends = list(itertools.accumulate(map(math.prod, shapes), initial=0))
        return [flat[i:j].reshape(shape) for i, j, shape in zip(ends, ends[1:], shapes)]

    def _add(self, n: int, flat: np.ndarray) -> Self:
        sums, *tables = self._views(flat)
        self.n += n
        self.sums = {name: self.sums[name] + value for name, value in zip(SUMS, sums)}
        for (name, b), table in zip(self.tables().items(), tables):
            setattr(self, name, b + Bins(b.edges, *table))
        for name in ("ordered", "equal_mass"):
            self.__dict__.pop(name, None)
        return self

    @cached_property
    def ordered(self) -> Ordered:
        """Groups in order of confidence: exact ones, or the cells of the histogram."""
        return Ordered.of_cells(self.fine) if self.exact is None else self.exact()

    @cached_property
    def equal_mass(self) -> Bins:
        """The confidences in at most `bins` bins of equal mass."""
        return self.ordered.equal_mass(self.bins)

    @property
    def total(self) -> np.ndarray:
        """The weight of all samples."""
        return self.top.total

    @property
    def brier_classes(self) -> Bins:
        """The classes that count in the Brier score: only class 1 for one column."""
        b = self.classes
        if self.kind != "binary":
            return b
        return Bins(b.edges, *(getattr(b, part)[..., 1:, :] for part in PARTS))

    def mean(self, name: str, within: str | None = None) -> np.ndarray:
        """Mean of a named sum over all samples, or the "right" or "wrong" ones; NaN if none."""
        both, weight = self.sums[name], self.sums["weight"]
        zero = self.sums["zero"] if name == "nll" else np.zeros_like(weight)
        pick = {None: (0, 1), "wrong": (0,), "right": (1,)}[within]
        both, weight, zero = (v[..., pick].sum(axis=-1) for v in (both, weight, zero))
        return np.where(zero > 0, np.inf, _bins.ratio(both, weight))

    def has(self, needs: tuple[str, ...]) -> bool:
        """Whether parts were collected: of "sums", "top", "order", "classes", "even"."""
        parts = {"order": self.fine or self.exact}
        return all(parts.get(name, getattr(self, name, None)) is not None for name in needs)

    def settings(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in SETTINGS}

    def cells(self) -> Bins:
        return self.ordered.cells() if self.fine is None else self.fine

    def tables(self) -> dict[str, Bins]:
        return {"top": self.top, "classes": self.classes, "fine": self.cells()}


def at_least(confidence: np.ndarray, threshold: float) -> np.ndarray:
    """confidence ≥ threshold, the threshold rounded to the precision of the confidence."""
    return confidence >= confidence.dtype.type(threshold)


def check_threshold(threshold: float) -> float:
    """A confidence threshold in [0, 1]."""
    threshold = float(threshold)
    if not 0 <= threshold <= 1:
        raise InputError(f"expected a threshold in [0, 1], got {threshold}")
    return threshold


def _from_version_1(state: dict[str, Any]) -> dict[str, Any]:
    """The state from a file of focalcal 0.1, in which one column was the forecast of an event."""
    renamed = {new: state.get(old) for new, old in _OLD_TABLES.items()}
    s, event = state.get("sums"), state.get("n_classes") == 1
    try:
        sums = {name: [s[f"{name}_wrong"], s[f"{name}_right"]] for name in _OLD_SUMS}
        right, high = s["right"], s["high_correct"]
        if event:  # "right" was y_prob > 1/2 == y_true; how losses split by the event is unknown
            right = sum(state["fixed"]["correct_sums"])
            sums = {name: [sum(pair), 0.0] for name, pair in sums.items()}
        sums |= {
            "weight": [max(s["weight"] - right, 0.0), right],
            "brier": [s["brier"], 0.0],  # only their sum was kept
            "high": [max(s["high"] - high, 0.0), high],
        }
    except (KeyError, TypeError) as e:
        raise FileFormatError(f"wrong fields in sums of version 1: {e}") from e
    known = {k: v for k, v in state.items() if k not in _OLD_TABLES.values()}
    kind = "event" if event else "classes"
    return known | renamed | {"version": _VERSION, "kind": kind, "sums": sums}


def _check_consistent(stats: CalibrationStats) -> None:
    """FileFormatError if parts cannot come from the same samples, up to rounding."""
    s, most = stats.sums, 1 + 1e-6
    weight = s["weight"].sum()
    names = ("zero", "true_class_probability", "high")
    wrong = [name for name in names if s[name].sum() > weight * most]
    for name, b in stats.tables().items():
        fits = [
            np.allclose(b.total, weight, rtol=1e-6, atol=0),
            (b.correct_sums <= b.counts * most).all(),
            (b.confidence_sums <= b.counts * b.edges[1:] * most).all(),
        ]
        wrong += [] if all(fits) else [name]
    if not np.allclose(stats.top.correct_sums.sum(), s["weight"][1], rtol=1e-6, atol=0):
        wrong.append("weight")
    if wrong or (stats.n == 0) != (weight == 0):
        raise FileFormatError(
            f"expected statistics of one set of samples, got {', '.join(wrong) or 'n'} that "
            "disagree with the weight; the file is damaged, write it again"
        )


def _expect_keys(found: Any, expected: set[str], where: str, optional: Any = frozenset()) -> None:
    keys = set(found) if isinstance(found, dict) else set()
    missing, extra = sorted(expected - optional - keys), sorted(keys - expected)
    if missing or extra or not isinstance(found, dict):
        raise FileFormatError(f"wrong fields in {where}: missing {missing}, unknown {extra}")


def numbers(values: Any, shape: tuple[int, ...], where: str) -> np.ndarray:
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as e:
        raise FileFormatError(f"expected numbers in {where}, got: {e}") from e
    if array.shape != shape:
        raise FileFormatError(f"expected {where} of shape {shape}, got {array.shape}")
    if not (np.isfinite(array).all() and (array >= 0).all()):
        raise FileFormatError(f"expected finite numbers >= 0 in {where}, got {array.min()}")
    return array
