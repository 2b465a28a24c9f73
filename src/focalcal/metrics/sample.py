"""Samples in memory, with columns kept for exact statistics and for resampling."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from numbers import Real
from typing import Any, Self

import numpy as np

from focalcal import bins as _bins
from focalcal import kernels
from focalcal._blocks import map_blocks
from focalcal.bins import Bins
from focalcal.columns import Columns, Input, map_columns, read
from focalcal.metrics.cells import Cells
from focalcal.ordered import Ordered, bin_starts, group_starts, in_order
from focalcal.stats import SUMS, CalibrationStats, at_least, check_threshold

EVERYTHING = ("sums", "top", "order", "classes", "even")
"""All parts of the statistics that a metric can need."""
GROUPS = 2048
"""Resampling joins neighbours in order of confidence into about this many groups."""


@dataclasses.dataclass(frozen=True)
class Sample:
    """The columns of N samples and the bins of their classes.

    values: (N,) for each name of `SUMS`, empty if only the top label is needed; classes, even:
    bins (K, M) of each class's probability, equally wide and of equal mass; probs: (K, N), kept for
    the intervals of class-wise errors.
    """

    data: Input
    bins: int
    threshold: float
    confidence: np.ndarray
    correct: np.ndarray
    values: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    classes: Bins | None = None
    even: Bins | None = None
    probs: np.ndarray | None = None

    @classmethod
    def read(
        cls,
        y_true: Any,
        y_prob: Any = None,
        needs: tuple[str, ...] = ("sums", "top", "order"),
        *,
        logits: Any = None,
        confidence: Any = None,
        bins: int = 15,
        threshold: float = 0.99,
        sample_weight: Any = None,
    ) -> Self:
        """Checked samples; `y_true` may be `Predictions`.

        >>> s = Sample.read([0, 1, 1], [[0.9, 0.1], [0.4, 0.6], [0.7, 0.3]])
        >>> float(s.stats().mean("brier")), s.take([0, 1]).n
        (0.44, 2)
        """
        given = {"logits": logits, "confidence": confidence, "sample_weight": sample_weight}
        return cls.of(read(y_true, y_prob, **given), needs, bins=bins, threshold=threshold)

    @classmethod
    def of(cls, data: Input, needs: tuple[str, ...], *, bins: int, threshold: float) -> Self:
        """The columns that metrics with these `needs` read, block by block."""
        edges, threshold = _bins.equal_width_edges(bins), check_threshold(threshold)
        settings = {"data": data, "bins": len(edges) - 1, "threshold": threshold}
        if data.top is not None and not {"sums", "classes", "even"} & set(needs):
            return cls(**settings, confidence=data.top[0], correct=data.top[1])
        n, k, kind = len(data), data.n_classes, data.dtype
        confidence, correct = np.empty(n, kind), np.empty(n, bool)
        values = {name: np.empty(n) for name in (SUMS if "sums" in needs else ())}
        probs = np.empty((k, n), kind) if "even" in needs else None
        kernel, near = kernels.pick(data.quick), kernels.open_edges(edges, kind)

        def run(blocks: Iterator[tuple[Columns, slice]]) -> np.ndarray:
            table = np.zeros((3, k, len(edges) - 1))
            for c, rows in blocks:
                confidence[rows], correct[rows] = c.confidence, c.correct
                for name, column in values.items():
                    column[rows] = SUMS[name](c, threshold)
                if probs is not None:
                    probs[:, rows] = c.probs.T
                if "classes" in needs:
                    w = None if data.weights is None else data.weights[rows]
                    kernel.class_bins_of(c.probs, data.labels[rows], w, near, table)
            return table

        table = sum(map_columns(data, run, scores="sums" in needs))
        return cls(
            **settings,
            confidence=confidence,
            correct=correct,
            values=values,
            classes=Bins(edges, *table) if "classes" in needs else None,
            even=None if probs is None else _even(data, probs, len(edges) - 1),
            probs=probs,
        )

    @property
    def n(self) -> int:
        return len(self.confidence)

    @property
    def weights(self) -> np.ndarray | None:
        return self.data.weights

    @cached_property
    def total(self) -> float:
        """The sum of the weights."""
        return float(self.n if self.weights is None else self.weights.sum())

    def sizes(self) -> dict[str, int]:
        """How many samples are right, wrong and of high confidence."""
        high = at_least(self.confidence, self.threshold)
        groups = {"right": self.correct, "wrong": ~self.correct, "high": high}
        return {name: int(np.count_nonzero(rows)) for name, rows in groups.items()}

    @cached_property
    def order(self) -> np.ndarray:
        """Rows in order of confidence. Ties are sorted by their other columns, so that resamples do
        not depend on the order of the rows."""
        first = np.argsort(self.confidence, kind="stable")
        if len(group_starts(self.confidence[first])) == self.n:
            return first
        extra = [] if self.weights is None else [self.weights]
        return np.lexsort((*extra, *self.values.values(), self.correct, self.confidence))

    @cached_property
    def class_cells(self) -> Cells:
        return Cells(self, self.classes)

    @cached_property
    def even_cells(self) -> Cells:
        return Cells(self, self.even)

    def stats(self) -> CalibrationStats:
        """The exact statistics of the samples."""
        sums = {}
        if self.values:
            w = np.ones(self.n) if self.weights is None else self.weights
            right = w * self.correct
            wrong = w - right
            sums = {name: np.array([v @ wrong, v @ right]) for name, v in self.values.items()}
        columns = self.confidence, self.correct
        return self._stats(
            sums=sums or None,
            top=_bins.bin_samples(*columns, _bins.equal_width_edges(self.bins), self.weights),
            classes=self.classes,
            exact=partial(in_order, *columns, self.weights),
            even=self.even,
        )

    def _stats(self, **parts: Any) -> CalibrationStats:
        settings = self.data.settings | {"bins": self.bins, "threshold": self.threshold}
        return CalibrationStats(**settings, n=self.n, **parts)

    def take(self, rows: Any) -> Self:
        """The samples of some rows (indices), without class-wise counts."""
        needs = ("sums", "top", "order") if self.values else ("top", "order")
        data = self.data.take(np.asarray(rows))
        return type(self).of(data, needs, bins=self.bins, threshold=self.threshold)

    def resampled(self, counts: np.ndarray) -> CalibrationStats:
        """Statistics with a leading axis: row i counts sample j of `order` counts[i, j] times.

        Beyond `GROUPS` distinct confidences, neighbours that share a bin are joined for metrics of
        the order, which changes a resample's value by far less than the resamples vary.
        """
        found = (counts @ self._products).reshape(len(counts), 2, -1)
        sums = {name: found[..., i] for i, name in enumerate(self.values)}
        starts, confidence, bins = self._groups
        right = counts * self._sorted["correct"]
        weights, hits = (np.add.reduceat(v, starts, axis=1) for v in (counts, right))
        top = (np.add.reduceat(v, bins, axis=1) for v in (weights, weights * confidence, hits))
        return self._stats(
            sums=sums or None,
            top=Bins(np.arange(len(bins) + 1.0), *top),  # the bins that are not empty
            exact=lambda: Ordered(confidence, weights, hits),
        )

    @cached_property
    def _sorted(self) -> dict[str, np.ndarray]:
        columns = self.values | {"correct": self.correct, "confidence": self.confidence}
        return {name: v[self.order].astype(np.float64) for name, v in columns.items()}

    @cached_property
    def _products(self) -> np.ndarray:
        """Factors of the counts of sorted samples, (N, 2·S): values if wrong, then if right."""
        values = [self._sorted[name] for name in self.values]
        right = self._sorted["correct"]
        parts = [v * group for group in (1 - right, right) for v in values]
        return np.stack(parts, axis=1) if parts else np.zeros((self.n, 0))

    @cached_property
    def _groups(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The start of each group of sorted samples, its mean confidence, the start of each bin."""
        confidence = self.confidence[self.order]
        starts = group_starts(confidence)
        fixed = bin_starts(confidence, _bins.equal_width_edges(self.bins))
        if len(starts) > 2 * GROUPS:
            even = np.linspace(0, self.n, GROUPS, endpoint=False).astype(int)
            even = starts[np.searchsorted(starts, even, side="right") - 1]
            starts = np.union1d(even, fixed)
        sizes = np.diff(np.append(starts, self.n))
        mean = np.add.reduceat(self._sorted["confidence"], starts) / sizes
        return starts, mean, np.asarray(np.searchsorted(starts, fixed))


def _even(data: Input, probs: np.ndarray, m: int) -> Bins:
    """Equal-mass bins of each class, (K, M); if ties leave fewer, the last edges are inf."""
    k = len(probs)
    tables, edges = np.zeros((3, k, m)), np.full((k, m + 1), np.inf)
    by_label = np.argsort(data.labels, kind="stable")
    ends = np.searchsorted(data.labels[by_label], np.arange(k + 1))

    def some(classes: slice) -> None:
        for j in range(classes.start, classes.stop):
            mine = by_label[ends[j] : ends[j + 1]]
            b = _bins.even_bins(probs[j], mine, m, data.weights)
            edges[j, : len(b)] = b.edges[:-1]
            tables[:, j, : len(b)] = b.counts, b.confidence_sums, b.correct_sums

    map_blocks(some, k, 4)
    return Bins(edges, *tables)


def of_samples(*needs: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Turn a function of a `Sample` with these parts into one that takes the arguments of `read`.

    Further arguments of the function follow.
    """
    data = [p for p in inspect.signature(Sample.read).parameters.values() if p.name != "needs"]
    names = {p.name for p in data}

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def measure(y_true: Any, y_prob: Any = None, *more: Any, **options: Any) -> Any:
            given = {name: options.pop(name) for name in names & set(options)}
            return function(Sample.read(y_true, y_prob, needs, **given), *more, **options)

        own = inspect.signature(function)
        both = sorted([*data, *list(own.parameters.values())[1:]], key=lambda p: p.kind)
        measure.__signature__ = own.replace(parameters=both)  # type: ignore[attr-defined]
        return measure

    return decorate


def slices(groups: Any) -> Iterator[tuple[Any, np.ndarray]]:
    """Each value of a column of groups (N,), with its rows; None is a value too.

    >>> [(name, rows.tolist()) for name, rows in slices([2, 1, None, 2])]
    [(1, [1]), (2, [0, 3]), (None, [2])]
    """
    column = np.asarray(groups)
    keys = column
    if column.dtype == object:
        keys = numbers_of(column, slice_names(column))
    _, first, index = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(index, kind="stable")
    yield from zip(column[first], np.split(order, np.cumsum(np.bincount(index))[:-1]))


def slice_name(value: Any) -> str:
    """The name of a column's value, for any type that a file gives it: 1.0 is 1, −0.0 is 0.

    >>> slice_name(1.0), slice_name(np.datetime64("2026-05-01T00:00:00.000"))
    ('1', '2026-05-01')
    """
    if isinstance(value, float | np.floating):
        return str(value + 0.0).removesuffix(".0")
    if isinstance(value, np.datetime64) and not np.isnat(value):  # as pandas writes it to text
        day, _, time = str(value).partition("T")
        time = time.rstrip("0").rstrip(".") if "." in time else time
        return f"{day} {time}".removesuffix(" 00:00:00").strip()
    return str(value)


def slice_names(values: Any) -> np.ndarray:
    """The names of a column's values (N,)."""
    return np.array([slice_name(value) for value in np.asarray(values)], dtype=str)


def numbers_of(column: np.ndarray, otherwise: np.ndarray) -> np.ndarray:
    """A column of numbers and None as floats, with NaN for None; `otherwise` for any other."""
    plain = all(x is None or isinstance(x, Real) for x in column)
    return column.astype(np.float64) if plain else otherwise
