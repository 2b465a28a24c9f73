"""Apply a calibrator to files of any size, one by one."""

from __future__ import annotations

import dataclasses
import json
from functools import partial
from itertools import chain
from operator import add
from pathlib import Path
from typing import Any

import numpy as np

from focalcal.calibrators import Calibrator
from focalcal.errors import InputError
from focalcal.files import atomic_path, output_paths
from focalcal.formats.arrow import numpy_to_column, pyarrow_module
from focalcal.formats.classes import labels_by_name, metadata_of
from focalcal.formats.roles import distinct, not_overwritten
from focalcal.formats.text import METADATA
from focalcal.predictions import like_given
from focalcal.scale.engines import Engine, Progress, StreamEngine
from focalcal.scale.source import Partition, Source, open_parquet, stored_metadata


def apply(
    source: Source,
    calibrator: Calibrator,
    out: str | Path,
    engine: Engine | None = None,
    *,
    floor: float | None = None,
    provenance: dict[str, Any] | None = None,
    progress: Progress | None = None,
) -> list[Path]:
    """Write calibrated probabilities of every file of the source under the folder `out`.

    Each output has the name, the row groups and the row order of its input. The column `probs`
    replaces the logits (or probabilities); all other columns are kept. Every file is written
    atomically, and a second run writes the same bytes. For a single input, `out` may also be a
    file ending in .parquet. provenance: added to that of each file. Returns the files written.
    """
    if calibrator.n_classes_ != source.n_classes:
        raise InputError(
            f"expected predictions of {calibrator.n_classes_} classes, as fitted, "
            f"got {source.n_classes}"
        )
    engine = engine or StreamEngine()
    outputs = output_paths(source.paths, out, (".parquet",))
    parts = [tuple(p for p in source.partitions if p.path == path) for path in source.paths]
    tasks = list(zip(parts, map(str, outputs)))
    step = provenance or {"calibrator": {"method": calibrator.method}}
    work = partial(calibrate_file, calibrator=calibrator, floor=floor, provenance=step)
    engine.map_reduce(work, tasks, add, progress)
    return outputs


def calibrate_file(
    task: tuple[tuple[Partition, ...], str],
    calibrator: Calibrator,
    floor: float | None,
    provenance: dict[str, Any],
) -> int:
    """Write one output file from the row groups of one input; returns the number of rows."""
    (partitions, output), rows = task, 0
    with open_parquet(partitions[0].path) as file, atomic_path(output) as temporary:
        tables = (_calibrated(p, file, calibrator, floor, provenance) for p in partitions)
        first = next(tables)
        with pyarrow_module().parquet.ParquetWriter(temporary, first.schema) as writer:
            for table in chain([first], tables):
                writer.write_table(table, row_group_size=max(1, table.num_rows))
                rows += table.num_rows
    return rows


def _calibrated(
    partition: Partition,
    file: Any,
    calibrator: Calibrator,
    floor: float | None,
    provenance: dict[str, Any],
) -> Any:
    """A row group with calibrated probabilities; its labels are checked if present."""
    table = partition.table(file)
    keys = dataclasses.replace(partition.keys, labels_required=False)
    loaded = dataclasses.replace(partition, keys=keys).loaded(table, 0)
    predictions, replaced = loaded.predictions, partition.columns.values
    probs = calibrator.predict_proba(predictions.as_logits(floor))
    for name in partition.columns.labels:
        if isinstance(labels := loaded.table[name], np.ndarray):  # in the order of the classes
            column = numpy_to_column(labels)
            column = column if labels.ndim == 2 else column.cast("string")  # even if all missing
            table = table.set_column(table.column_names.index(name), name, column)
    before = table.column_names[: table.column_names.index(replaced[0])]
    place = sum(name not in replaced for name in before)
    given = stored_metadata(table.schema, partition.path).get("provenance", {})
    by_name = labels_by_name(partition.metadata)
    metadata = metadata_of("auto", predictions.class_names, by_name)
    metadata |= {"provenance": given | provenance}
    schema = {**(table.schema.metadata or {}), METADATA.encode(): json.dumps(metadata)}
    table = table.drop_columns(list(replaced))
    names = [not_overwritten(name) for name in table.column_names]
    distinct(names, partition.path)
    table = table.rename_columns(names)
    table = table.add_column(place, "probs", numpy_to_column(like_given(probs, predictions)))
    return table.replace_schema_metadata(schema)
