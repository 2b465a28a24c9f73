"""`CalibrationStats`: the sums and bins of samples, from which every metric is computed.

Columns of samples become sums and bins; sums and bins of two sets of samples add up. So one object
serves a data set in memory, a stream, the workers of a cluster and the resamples of a bootstrap.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, Self

import numpy as np

from focalcal import bins as _bins
from focalcal import kernels
from focalcal._checks import check_whole
from focalcal.bins import Bins
from focalcal.columns import Columns, Input, map_columns, read
from focalcal.errors import InputError
from focalcal.ordered import Ordered, cell_search, fine_edges

SETTINGS = ("n_classes", "bins", "threshold", "kind")
TABLES = ("top", "classes", "fine")
PARTS = ("counts", "confidence_sums", "correct_sums")

SUMS: dict[str, Callable[[Columns, float], np.ndarray]] = {
    "weight": lambda c, t: np.ones(len(c)),
    "brier": lambda c, t: c.brier,
    # Infinite losses are counted apart: an infinite sum could not be merged or stored.
    "nll": lambda c, t: np.where(c.nll < np.inf, c.nll, 0.0),
    "zero": lambda c, t: c.nll == np.inf,
    "entropy": lambda c, t: c.entropy,
    "true_class_probability": lambda c, t: np.exp(-c.nll),
    "high": lambda c, t: at_least(c.confidence, t),
}
"""What is summed over samples, apart for right and wrong ones: functions of (columns, threshold).

A metric's declaration may add to it.
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
    bins of equal mass of every class. Resamples have a leading axis. What is not known is None.
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
        self.bins = _bins.check_bins(self.bins)
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
        """Add a batch: labels (N,) and probabilities (N, n_classes), weights (N,).

        given: instead of y_prob `logits` (N, n_classes) or, for statistics of kind "event",
        `confidence` (N,); `quick`: whether compiled loops are used.
        """
        return self.add(read(y_true, y_prob, sample_weight=sample_weight, **given))

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
                for total, function in zip(sums, SUMS.values()):
                    kernel.split_sum(function(c, self.threshold), c.correct, w, total)
                odds = kernels.log_odds(c.confidence)
                kernel.bins_of(c.confidence, c.correct, w, near, True, top)
                kernel.class_bins_of(c.probs, data.labels[rows], w, near, classes)
                kernel.cells_of(c.confidence, odds, c.correct, w, cells, fine)
            return vector

        return self._add(len(data), sum(map_columns(data, run)))

    def merge(self, other: CalibrationStats) -> Self:
        """Add the samples that `other` has seen; the settings must be the same."""
        mine, theirs = self.settings(), other.settings()
        if mine != theirs:
            raise InputError(f"expected statistics with the same settings, {mine}, got {theirs}")
        self.fine, self.exact, self.even = self.cells(), None, None
        return self._add(other.n, other.to_vector()[1:])

    def __add__(self, other: CalibrationStats) -> CalibrationStats:
        """Both together; neither is changed, so that a cluster may merge them again."""
        return copy.copy(self).merge(other)

    def compute(self) -> Any:
        """All metrics of the samples seen so far, a `StreamedEvaluation`."""
        from focalcal.metrics.streaming import compute

        return compute(self)

    def to_json(self) -> str:
        """The state as JSON text; floats keep every digit."""
        from focalcal.metrics.streaming import to_json

        return to_json(self)

    @classmethod
    def from_json(cls, text: str) -> CalibrationStats:
        """The statistics that `to_json` wrote; anything else is a FileFormatError."""
        from focalcal.metrics.streaming import from_json

        return from_json(text)

    def to_vector(self) -> np.ndarray:
        """The state as one float64 vector; vectors of statistics with equal settings add up.

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
                f"expected a vector of shape {expected}, as these settings make, got {vector.shape}"
            )
        return self._add(round(vector[0]), vector[1:])

    def _views(self, flat: np.ndarray) -> list[np.ndarray]:
        """Sums (S, 2) and tables (3, …) within a vector that holds one after the other."""
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
        """The classes that the Brier score counts: class 1 only for one column."""
        b = self.classes
        if self.kind != "binary":
            return b
        return Bins(b.edges, *(getattr(b, part)[..., 1:, :] for part in PARTS))

    def mean(self, name: str, within: str | None = None) -> np.ndarray:
        """Mean of a named sum over all samples, or the "right" or "wrong" ones: NaN for none."""
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
