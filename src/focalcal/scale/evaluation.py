"""Metrics of predictions of any number: one pass, `CalibrationStats` merged."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

from focalcal import kernels
from focalcal.columns import read
from focalcal.metrics import CalibrationStats
from focalcal.scale.engines import Engine, Progress, StreamEngine
from focalcal.scale.source import Partition, Source
from focalcal.stats import SUMS


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
    engine = engine or StreamEngine()
    quick = kernels.fast(source.n * source.n_classes)
    # Sums that a metric's declaration added are unknown to the processes of a cluster.
    own = {name: f for name, f in SUMS.items() if f.__module__ != SUMS["weight"].__module__}
    function = partial(partition_statistics, bins=bins, quick=quick, sums=own)
    return engine.map_reduce(function, source.partitions, merge_statistics, progress)


def partition_statistics(
    partition: Partition, bins: int, quick: bool, sums: dict[str, Any]
) -> CalibrationStats:
    """The statistics of one row group, by compiled loops if `quick`, with further `sums`."""
    SUMS.update(sums)
    stats = None
    for batch in partition.batches():
        data = read(batch, quick=quick and kernels.numba_module() is not None)
        if stats is None:
            columns = 1 if data.kind == "binary" else data.n_classes
            stats = CalibrationStats(columns, bins=bins)
        stats.add(data)
    return stats


def merge_statistics(a: CalibrationStats, b: CalibrationStats) -> CalibrationStats:
    """Both together; neither is changed, so that a cluster may merge them again."""
    return copy.copy(a).merge(b)
