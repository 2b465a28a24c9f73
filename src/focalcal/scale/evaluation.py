"""Metrics of predictions of any number: one pass, `CalibrationStats` merged."""

from __future__ import annotations

import copy
from functools import partial

from focalcal._arrays import two_columns
from focalcal.metrics import CalibrationStats
from focalcal.scale._logits import LogitStats
from focalcal.scale.engines import Engine, Progress, StreamEngine
from focalcal.scale.source import FEW_CLASSES, Partition, Source


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
    function = partial(partition_statistics, bins=bins)
    return engine.map_reduce(function, source.partitions, merge_statistics, progress)


def partition_statistics(partition: Partition, bins: int) -> CalibrationStats:
    """The statistics of one row group."""
    if partition.columns.are_logits and partition.n_classes <= FEW_CLASSES:
        collected = LogitStats(partition.n_classes, bins)
        for batch in partition.batches():
            collected.update(two_columns(batch.logits), batch.labels)
        return collected.result()
    stats = CalibrationStats(partition.n_classes, bins=bins)
    for batch in partition.batches():
        stats.update(batch.labels, batch.probabilities())
    return stats


def merge_statistics(a: CalibrationStats, b: CalibrationStats) -> CalibrationStats:
    """Both together; neither is changed, so that a cluster may merge them again."""
    return copy.copy(a).merge(b)
