"""Every metric for each slice of the data, with tests corrected for the number of slices."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from focalcal._checks import check_level, check_whole
from focalcal.bins import ratio_or_zero
from focalcal.columns import read
from focalcal.errors import InputError
from focalcal.metrics.declare import named, p_text, percent
from focalcal.metrics.resampling import check_resamples, consistency_test, p_value
from focalcal.metrics.sample import EVERYTHING, Sample, numbers_of, slice_name, slices
from focalcal.metrics.streaming import Streamed
from focalcal.metrics.summary import Estimate, evaluate_sample, plain
from focalcal.stats import CalibrationStats

LEAST = 100
"""The fewest samples with which a slice is tested."""
CUTS = 5
"""Parts of equal mass into which a column of many numbers is cut."""
MANY = 20
"""A column with more distinct numbers than this is cut."""


@dataclasses.dataclass(frozen=True)
class Slice:
    """The samples with one value of a column.

    metrics: by name, with intervals that hold for all slices together (bounds out of core), empty
    if there are too few samples; ece: observed; expected_ece: of a calibrated model with as many
    samples; p_value: of the test of "calibrated", with Holm's correction for the slices.
    """

    name: str
    n: int
    metrics: dict[str, Estimate | Streamed] = dataclasses.field(default_factory=dict)
    ece: float = math.nan
    expected_ece: float = math.nan
    p_value: float = math.nan

    @property
    def enough(self) -> bool:
        return bool(self.metrics)


@dataclasses.dataclass(frozen=True)
class SlicedEvaluation:
    """All slices in order of their names; `least`: the fewest samples with which one is tested."""

    slices: tuple[Slice, ...]
    level: float
    least: int

    def __getitem__(self, name: str) -> Slice:
        return named({s.name: s for s in self.slices}, name)

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, numbers and None (for a value that is undefined or infinite)."""
        worst = self.worst
        return plain(dataclasses.asdict(self)) | {"worst": worst.name if worst else None}

    @property
    def worst(self) -> Slice | None:
        """The slice whose ECE exceeds chance most, among those shown to be miscalibrated."""
        shown = [s for s in self.slices if s.p_value <= 1 - self.level]
        return max(shown, key=lambda s: s.ece - s.expected_ece, default=None)

    @property
    def tested(self) -> int:
        """How many slices have enough samples."""
        return sum(s.enough for s in self.slices)

    @property
    def verdict(self) -> str:
        """One sentence: the worst slice, or that none is shown to be miscalibrated."""
        if self.tested == 0:
            return f"No slice has the {self.least} samples that a test needs."
        if (worst := self.worst) is None:
            return f"No slice of {self.tested} is shown to be miscalibrated."
        return (
            f"Worst slice: {worst.name}, ECE {percent(worst.ece)} (chance alone "
            f"{percent(worst.expected_ece)}), {p_text(worst.p_value)}, {worst.n:,} samples."
        )

    @property
    def too_few(self) -> str:
        """A sentence that names the slices left out; empty if there are none."""
        small = [f"{s.name} ({s.n})" for s in self.slices if not s.enough]
        return f"Too few samples (under {self.least}): {', '.join(small)}." if small else ""


def evaluate_by(
    y_true: Any,
    y_prob: Any = None,
    *,
    by: Any,
    least: int = LEAST,
    bins: int = 15,
    threshold: float = 0.99,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> SlicedEvaluation:
    """Every metric for every value of one or several columns.

    Each slice is tested for "calibrated" by consistency resampling of its ECE; p-values are
    corrected by Holm's method, so that with probability `level` no calibrated slice is called
    miscalibrated. Intervals hold for all m slices together: their level is 1 − (1 − level)/m
    (Bonferroni). Slices of fewer than `least` samples are named but neither measured nor tested.

    y_true, y_prob: as in `evaluate`, or `Predictions` and None; by: a column (N,), a mapping of
    names to columns, or names of columns that the `Predictions` carry. Numbers with more than 20
    distinct values are cut into 5 parts of equal mass; missing ones are a slice of their own.

    >>> rng = np.random.default_rng(0)
    >>> p = rng.uniform(0.5, 1.0, 2000)
    >>> country = np.repeat(["FI", "SE"], 1000)
    >>> y = (rng.random(2000) < np.where(country == "SE", p - 0.15, p)).astype(int)
    >>> evaluate_by(y, p, by={"country": country}, resamples=100).worst.name
    'country=SE'

    Holm 1979.
    """
    check_level(level)
    least, resamples = check_whole(least, "least", 1), check_resamples(resamples)
    data = read(y_true, y_prob)
    rows = named_rows(_columns(y_true, by), len(data))
    m = max(sum(len(r) >= least for _, r in rows), 1)

    def measured(name: str, r: np.ndarray) -> Slice:
        sample = Sample.of(data.take(r), EVERYTHING, bins=bins, threshold=threshold)
        e = evaluate_sample(sample, resamples, 1 - (1 - level) / m, seed)
        # Holm's correction multiplies by up to m, so p-values must be that much finer.
        test = consistency_test(sample, e.test.ece, max(resamples, 2000, 200 * m), seed)
        return Slice(name, len(r), e.metrics, test.ece, test.expected_ece, test.p_value)

    found = [measured(name, r) if len(r) >= least else Slice(name, len(r)) for name, r in rows]
    return SlicedEvaluation(tuple(holm(found)), level, least)


def of_statistics(
    stats: Mapping[str, CalibrationStats], *, least: int = LEAST, level: float = 0.95
) -> SlicedEvaluation:
    """The same from one `CalibrationStats` per slice, as collected by a stream or a cluster.

    Hits per bin are drawn from the binomial with its mean confidence, which varies a little more
    than hits with different confidences (Hoeffding 1956).
    """

    def measured(name: str, s: CalibrationStats) -> Slice:
        ece, null = _null_of(s)
        return Slice(name, s.n, s.compute().metrics, ece, float(null.mean()), p_value(null, ece))

    some = sorted(stats.items())
    found = [measured(name, s) if s.n >= least else Slice(name, s.n) for name, s in some]
    return SlicedEvaluation(tuple(holm(found)), level, least)


def _null_of(s: CalibrationStats, draws: int = 20_000) -> tuple[float, np.ndarray]:
    """The ECE, and its values if hits per bin are binomial; weights count as in memory."""
    n, expected = s.top.counts, s.top.confidence_sums
    mean = np.clip(ratio_or_zero(expected, n), 0, 1)
    rng = np.random.default_rng(0)
    whole = np.floor(n + rng.random((draws, len(n))))
    hits = rng.binomial(whole.astype(np.int64), mean) + (n - whole) * mean
    value = np.abs(expected - s.top.correct_sums).sum() / s.total
    return float(value), np.abs(expected - hits).sum(axis=1) / float(s.total)


def holm(found: Iterable[Slice]) -> list[Slice]:
    """The slices with p-values corrected by Holm's method; NaN where a slice is not tested."""
    found = list(found)
    tested = sorted((s for s in found if s.enough), key=lambda s: s.p_value)
    corrected, largest = {}, 0.0
    for i, s in enumerate(tested):
        largest = max(largest, min((len(tested) - i) * s.p_value, 1.0))
        corrected[s.name] = largest
    return [dataclasses.replace(s, p_value=corrected.get(s.name, math.nan)) for s in found]


def named_rows(columns: Mapping[str, Any], n: int) -> list[tuple[str, np.ndarray]]:
    """ "column=value" of each slice, with its rows; columns are sliced one by one."""
    rows = []
    for name, column in columns.items():
        column = np.asarray(column)
        if column.shape != (n,):
            raise InputError(f"expected column {name!r} of shape ({n},), got {column.shape}")
        for value, where in slices(cut(column, edges_of(column))):
            called = slice_name(value)
            rows.append((f"{name}={called}" if name else called, where))
    if not rows:
        raise InputError("expected at least one column to slice by, got none")
    return rows


def edges_of(column: np.ndarray) -> np.ndarray | None:
    """Where to cut a column of many numbers into parts of equal mass; None for any other."""
    if column.dtype == object:
        column = numbers_of(column, column)
    if column.dtype.kind not in "fiu" or len(np.unique(column)) <= MANY:
        return None
    known = column[np.isfinite(column)]
    return np.unique(np.quantile(known, np.linspace(0, 1, CUTS + 1))) if len(known) else None


def cut(column: np.ndarray, edges: np.ndarray | None) -> np.ndarray:
    """The values themselves, or, with edges, the part that each number lies in, "nan" for None."""
    if edges is None:
        return column
    column = column.astype(np.float64)
    # The leading digit sorts the parts in numerical order.
    names = [f"{i}: {a:g} – {b:g}" for i, (a, b) in enumerate(pairwise(edges), 1)]
    parts = np.array(names)[np.clip(np.searchsorted(edges, column) - 1, 0, len(names) - 1)]
    return np.where(np.isnan(column), "nan", parts)


def _columns(given: Any, by: Any) -> dict[str, Any]:
    if isinstance(by, Mapping):
        return dict(by)
    names = [by] if isinstance(by, str) else by
    if hasattr(given, "column") and all(isinstance(name, str) for name in names):
        return {name: given.column(name) for name in names}
    return {"": by}
