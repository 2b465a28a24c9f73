"""Evaluate out of core: one pass, `CalibrationStats` merged."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np

from focalcal import kernels
from focalcal.columns import read
from focalcal.errors import InputWarning
from focalcal.loading import carried
from focalcal.metrics import CalibrationStats
from focalcal.metrics.slicing import cut, edges_of, named_rows
from focalcal.scale.engines import Engine, Progress, StreamEngine
from focalcal.scale.source import Partition, Source
from focalcal.stats import SUMS

_SAMPLED_ROWS = 20_000


def statistics(
    source: Source,
    engine: Engine | None = None,
    *,
    bins: int = 15,
    progress: Progress | None = None,
) -> CalibrationStats:
    """The merged `CalibrationStats` of all predictions of a source, in one pass.

    What `compute()` of it returns equals the metrics in memory: exactly (but for rounding) for
    means and fixed bins, within the stated bound for equal-mass, KS, AUROC and smooth errors.
    """
    return _collect(source, engine, bins, {}, progress)[""]


def statistics_by(
    source: Source,
    engine: Engine | None = None,
    *,
    bins: int = 15,
    progress: Progress | None = None,
) -> dict[str, CalibrationStats]:
    """The statistics of every slice, "column=value", by the columns that the source carries.

    Where to cut columns of many numbers is read from a sample of the rows.
    """
    sample = source.sample(_SAMPLED_ROWS).extra
    for name, column in sample.items():
        if column.dtype == object and carried(column).dtype != object:
            warnings.warn(
                f"column {name!r} holds numbers as texts; in parts each text is a slice of its "
                "own, store numbers to have them cut as in memory",
                InputWarning,
                stacklevel=2,
            )
    edges = {name: edges_of(column) for name, column in sample.items()}
    return _collect(source, engine, bins, edges, progress)


def _collect(
    source: Source,
    engine: Engine | None,
    bins: int,
    edges: dict[str, Any],
    progress: Progress | None,
) -> dict[str, CalibrationStats]:
    # Sums that a metric's declaration added are unknown to the processes of a cluster.
    own = {name: f for name, f in SUMS.items() if f.__module__ != SUMS["weight"].__module__}
    quick = kernels.fast(source.n * source.n_classes)
    function = partial(partition_statistics, bins=bins, edges=edges, quick=quick, sums=own)
    engine = engine or StreamEngine()
    return engine.map_reduce(function, source.partitions, merge_by_slice, progress)


def partition_statistics(
    partition: Partition,
    bins: int,
    edges: dict[str, np.ndarray | None],
    quick: bool,
    sums: dict[str, Any],
) -> dict[str, CalibrationStats]:
    """The statistics of the slices of one row group; without columns to slice by, of all rows.

    edges: of each column, where to cut it; quick: by compiled loops; sums: further ones.
    """
    SUMS.update(sums)
    found: dict[str, CalibrationStats] = {}
    for batch in partition.batches():
        # As texts, so that a batch with many distinct numbers is not cut by itself.
        columns = {name: texts(cut(batch.extra[name], e)) for name, e in edges.items()}
        parts = [("", batch)]
        if columns:
            parts = [(name, batch.take(rows)) for name, rows in named_rows(columns, batch.n)]
        for name, part in parts:
            data = read(part, quick=quick)
            if name not in found:
                k = 1 if data.kind == "binary" else data.n_classes
                found[name] = CalibrationStats(k, bins=bins)
            found[name].add(data)
    return found


def texts(column: np.ndarray) -> np.ndarray:
    """Values as texts that do not depend on the type of the column: 0.1 in float32 and −0.0."""
    if column.dtype.kind in "mM":
        return np.array([str(v) for v in column])
    return np.array([str(v + 0.0 if isinstance(v, float) else v) for v in column.tolist()])


def merge_by_slice(
    a: dict[str, CalibrationStats], b: dict[str, CalibrationStats]
) -> dict[str, CalibrationStats]:
    """The slices of both together; neither is changed."""
    both = {name: a[name] + b[name] for name in a.keys() & b.keys()}
    return {**a, **b, **both}
