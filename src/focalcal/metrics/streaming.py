"""Metrics of merged statistics, with error bounds.

Means and fixed-bin errors are exact; metrics that depend on the order of confidences are computed
from a fine histogram and have an error bound.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from focalcal.bins import Bins
from focalcal.errors import InputError
from focalcal.metrics.declare import METRICS, named
from focalcal.stats import CalibrationStats


@dataclasses.dataclass(frozen=True)
class Streamed:
    """A metric of a stream: its exact value on all samples lies within ±error_bound.

    A bound of 0 means exact up to float64 rounding.
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
        return named(self.metrics, name)


def check_streamed(names: Sequence[str]) -> Sequence[str]:
    """The names, if `compute` has each of these metrics even when samples are not kept."""
    known = [name for name, declared in METRICS.items() if declared.streams]
    for name in names:
        if name not in known:
            raise InputError(f"expected a metric of {', '.join(known)}; got {name!r}")
    return names


def compute(stats: CalibrationStats) -> StreamedEvaluation:
    """All metrics of the samples seen so far."""
    if stats.n == 0:
        raise InputError("expected at least one sample, got none; call update first")
    streams = stats.exact is None
    metrics = {}
    for name, m in METRICS.items():
        if not stats.has(m.needs) or (streams and not m.streams):
            continue
        bound = m.bound(stats) if streams and m.bound is not None else 0.0
        metrics[name] = Streamed(float(m.of(stats)), bound, stats.n)
    columns = len(stats.classes.counts)
    return StreamedEvaluation(stats.n, columns, metrics, stats.top)
