"""Evaluation out of core: `CalibrationStats` merged in one pass."""

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
from focalcal.metrics.sample import slice_names
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

    Its `compute()` returns the same metrics as in memory: exactly (up to rounding) for means and
    fixed bins, within the stated bound for equal-mass, KS, AUROC and smooth errors.
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

    The cuts of columns with many numbers are determined from a sample of the rows.
    """
    sample = source.sample(_SAMPLED_ROWS).extra
    for name, column in sample.items():
        if column.dtype == object and carried(column).dtype != object:
            warnings.warn(
                f"column {name!r} holds numbers as text; when read in parts, each text is its own "
                "slice: store numbers to have them cut as in memory",
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
    # The processes of a cluster lack sums added by the declarations of other packages.
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
    """The statistics of each slice of one row group, or of all rows if there are no columns.

    edges: where to cut each column; quick: use compiled loops; sums: additional ones.
    """
    SUMS.update(sums)
    found: dict[str, CalibrationStats] = {}
    for batch in partition.batches():
        # As text, so that `named_rows` does not cut a batch with many distinct numbers again.
        columns = {name: slice_names(cut(batch.extra[name], e)) for name, e in edges.items()}
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


def merge_by_slice(
    a: dict[str, CalibrationStats], b: dict[str, CalibrationStats]
) -> dict[str, CalibrationStats]:
    """The slices of both, merged into a new dictionary."""
    both = {name: a[name] + b[name] for name in a.keys() & b.keys()}
    return {**a, **b, **both}
