"""Predictions that do not fit in memory: the row groups of parquet files."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self, Unpack

import numpy as np

from focalcal import loading
from focalcal.errors import FileFormatError, InputError, NoRowsError
from focalcal.files import files_at
from focalcal.formats import classes, roles
from focalcal.formats.arrow import (
    column_to_plain,
    columns_of,
    is_list,
    is_text,
    pyarrow_module,
    stored_metadata,
)
from focalcal.formats.roles import KeyOptions, Keys, Roles
from focalcal.predictions import Predictions, concatenate

BATCH_ELEMENTS = 2**22
"""Numbers read at a time, which bounds the memory for row groups of any size."""
_SINGLE_LABEL = "expected a single-label task, got multilabel; read such files one by one"
_SAMPLED_GROUPS = 32
_BUFFER = 2**18
"""Bytes of a file read at a time, so that the first rows can be read without the whole group."""


@dataclasses.dataclass(frozen=True)
class Partition:
    """One row group of one file.

    columns: its columns; metadata: the meaning of numeric labels; keys: with the class names, if
    known; extra: further columns to read; n_classes: of the whole source.
    """

    path: str
    row_group: int
    rows: int
    columns: Roles
    metadata: dict[str, Any]
    keys: Keys
    extra: tuple[str, ...]
    n_classes: int = 0

    def batches(self, rows: int | None = None) -> Iterator[Predictions]:
        """Its predictions in order, checked, a bounded number of rows at a time."""
        columns = self.columns
        size = rows or max(1, BATCH_ELEMENTS // max(self.n_classes, len(columns.values)))
        names = [*columns.values, *columns.labels, *self.extra]
        group, start = self.row_group, 0
        with open_parquet(self.path) as file:
            self._check(file)
            pieces = file.iter_batches(size, row_groups=[group], columns=names, use_threads=False)
            try:
                for piece in pieces:
                    yield self.loaded(piece, start).predictions
                    start += piece.num_rows
                if start != self.rows:
                    raise OSError(f"{start} rows instead of {self.rows}")
            except (pyarrow_module().ArrowException, OSError) as error:
                raise self._damaged(error) from error

    def table(self, file: Any) -> Any:
        """All columns of this row group of its open file."""
        self._check(file)
        try:
            return file.read_row_group(self.row_group, use_threads=False)
        except (pyarrow_module().ArrowException, OSError) as error:
            raise self._damaged(error) from error

    def _check(self, file: Any) -> None:
        group, meta = self.row_group, file.metadata
        found = meta.row_group(group).num_rows if group < meta.num_row_groups else 0
        if found != self.rows:
            raise FileFormatError(
                f"{self.path}: row group {group} has {found} rows, expected {self.rows}, as "
                "when it was opened; has the file changed since?"
            )

    def _damaged(self, error: Exception) -> FileFormatError:
        return FileFormatError(
            f"{self.path}: row group {self.row_group} cannot be read ({error}); "
            "it may be damaged, write it again"
        )

    def loaded(self, batch: Any, start: int) -> loading.Loaded:
        """A record batch or table of this row group as checked predictions."""
        where = f"{self.path}, row group {self.row_group}, from row {start}"
        found = self.columns
        table = {name: batch.column(name) for name in found.values + found.labels}
        values = loading.matrix(table, found.values, where, by_class=True)
        table |= loading.named_labels(table, self.metadata, found, self.keys, where)
        k = max(values.shape[1], 2) if values.ndim == 2 else 2
        if self.n_classes and k != self.n_classes:
            raise InputError(
                f"{where}: expected {self.n_classes} classes, as in the first file, got {k}"
            )
        read = loading.read(values, table, self.metadata, found, self.keys, where, quiet=True)
        if read.predictions.task == "multilabel":
            raise FileFormatError(f"{where}: {_SINGLE_LABEL}")
        extra = {name: column_to_plain(batch.column(name)) for name in self.extra}
        given = dataclasses.replace(read.predictions, extra=extra) if extra else read.predictions
        return dataclasses.replace(read, predictions=given)


@dataclasses.dataclass(frozen=True)
class Source:
    """Predictions in parquet files, in the order of their names and rows.

    partitions: the row groups that are not empty; n: the total number of rows.
    """

    partitions: tuple[Partition, ...]
    n_classes: int
    n: int

    @classmethod
    def open(
        cls,
        where: str | Path | Sequence[str | Path],
        *,
        extra: Sequence[str] = (),
        **keys: Unpack[KeyOptions],
    ) -> Self:
        """Read the footers of parquet files given as paths, folders or patterns, ``'p/*.parquet'``.

        A matrix is a list column, a fixed-size list column or one column per class, `logits_0`,
        `logits_1`, …; every file must have the same. `keys` are those of `Predictions.load`;
        `extra` columns are carried.
        """
        named = Keys.of(keys)
        paths = find_files(where)
        partitions: list[Partition] = []
        for path in paths:
            with open_parquet(path) as file:
                if file.metadata.num_rows == 0:
                    continue
                columns, metadata, named = _columns(path, file.schema_arrow, named)
                missing = [name for name in extra if name not in file.schema_arrow.names]
                if missing:
                    names = ", ".join(file.schema_arrow.names)
                    raise FileFormatError(f"{path}: expected {missing[0]!r}, got columns {names}")
                first = partitions[0] if partitions else None
                shared = _shared(columns, named)
                if first and shared != (expected := _shared(first.columns, first.keys)):
                    raise FileFormatError(
                        f"{path}: expected the columns of {first.path}, {expected}, got {shared}; "
                        "read such files separately"
                    )
                meta = file.metadata
                partitions += [
                    Partition(
                        path,
                        i,
                        meta.row_group(i).num_rows,
                        columns,
                        metadata,
                        named,
                        tuple(extra),
                    )
                    for i in range(meta.num_row_groups)
                ]
        partitions = [p for p in partitions if p.rows]
        if not partitions:
            raise NoRowsError(f"expected predictions in {where}, got files without rows")
        if names := _names_in_labels(partitions, Keys.of(keys)):
            return cls.open(where, extra=extra, **{**keys, "classes": names})
        begin = next(partitions[0].batches(rows=1))
        if begin.class_names and not partitions[0].keys.classes:  # those of a ClassLabel
            return cls.open(where, extra=extra, **{**keys, "classes": begin.class_names})
        partitions = [dataclasses.replace(p, n_classes=begin.n_classes) for p in partitions]
        return cls(tuple(partitions), begin.n_classes, sum(p.rows for p in partitions))

    @property
    def paths(self) -> tuple[str, ...]:
        """The files, each once, in order."""
        return tuple(dict.fromkeys(p.path for p in self.partitions))

    def sample(self, rows: int) -> Predictions:
        """About `rows` rows from row groups spread evenly over the source, as a starting point.

        Reads only the beginning of each chosen row group.
        """
        count = min(_SAMPLED_GROUPS, len(self.partitions))
        chosen = np.unique(np.linspace(0, len(self.partitions) - 1, count).astype(int))
        each = max(1, -(-rows // len(chosen)))
        return concatenate([next(self.partitions[i].batches(rows=each)) for i in chosen])


def find_files(where: str | Path | Sequence[str | Path]) -> list[str]:
    """Absolute paths of the parquet files that a path, folder or pattern names, 2 before 10."""
    given = [where] if isinstance(where, str | Path) else list(where)
    found: list[str] = []
    for item in given:
        names = files_at(item)
        if not names:
            raise FileFormatError(f"no parquet files at {item}; check the path or the pattern")
        found += [str(Path(name).absolute()) for name in names]
    wrong = [name for name in found if not name.endswith(".parquet")]
    if wrong:
        raise FileFormatError(
            f"expected files ending in .parquet, got {wrong[0]}; "
            "other formats are read whole: name one file and no engine"
        )
    if len(set(found)) != len(found):
        twice = next(name for name in found if found.count(name) > 1)
        raise InputError(f"expected each file once, got {twice} twice; its rows would count twice")
    return found


def open_parquet(path: str) -> Any:
    """An open ParquetFile; FileFormatError if it is missing or damaged."""
    pyarrow = pyarrow_module()
    try:
        file = pyarrow.parquet.ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER)
        _ = file.schema_arrow.names  # raises if a damaged name is not UTF-8
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise FileFormatError(
            f"{path} is not a readable parquet file ({error}); it may be missing or truncated"
        ) from error
    return file


def _names_in_labels(partitions: Sequence[Partition], keys: Keys) -> tuple[str, ...] | None:
    """Class names given only by text labels: collected from all labels, as when read in memory."""
    first = partitions[0]
    path = first.path
    with open_parquet(path) as file:
        schema = file.schema_arrow
    found = roles.find(list(schema.names), keys, path)
    found = dataclasses.replace(found, ids=None, are_logits=False)  # as the values below
    stored = stored_metadata(schema, Path(path))
    own = keys.classes or found.class_names or stored.get("class_names")
    if len(own or ()) > 1 or len(found.labels) != 1:
        return None
    label, pyarrow = found.labels[0], pyarrow_module()
    if not is_text(schema.field(label).type):
        return None

    def distinct() -> Any:
        parts = []
        for partition in partitions:
            with open_parquet(partition.path) as file:
                group = file.read_row_group(partition.row_group, columns=[label])
                parts.append(group.column(label).drop_null().unique())
        return pyarrow.table({label: pyarrow.chunked_array(parts)}, metadata=schema.metadata)

    table, metadata = columns_of(distinct, Path(path), "parquet")
    columns = dataclasses.replace(first.columns, labels=())
    start = next(dataclasses.replace(first, columns=columns).batches(rows=1))
    shape = len(table[label]), start.n_classes
    if not shape[0]:
        return None
    values = np.full(shape[:1] if start.one_column else shape, 1 / shape[1])
    try:
        return loading.read(values, table, metadata, found, keys, path).predictions.class_names
    except classes.MissingLabel:  # reading names its row
        return None
    except InputError as error:
        raise FileFormatError(f"{error}, as in --classes a,b,c") from error


def _shared(columns: Roles, keys: Keys) -> Roles:
    """What all files must share: the columns in any order, and the class names."""
    values, labels = (tuple(sorted(names)) for names in (columns.values, columns.labels))
    return dataclasses.replace(columns, values=values, labels=labels, class_names=keys.classes)


def _columns(path: str, schema: Any, keys: Keys) -> tuple[Roles, dict[str, Any], Keys]:
    """The columns, the meaning of labels, and the keys with the class names, if known."""
    metadata = stored_metadata(schema, Path(path))
    roles.distinct(schema.names, path)
    found = roles.find(list(schema.names), keys, path, metadata.get("class_names"))
    if "multilabel" in (metadata.get("task"), keys.task):
        raise FileFormatError(f"{path}: {_SINGLE_LABEL}")
    single = len(found.values) == 1 and not is_list(schema.field(found.values[0]).type)
    own = metadata.get("class_names")
    names, order = classes.class_names(found, own, keys, single, None, path)
    stored = sorted(own or ()) == sorted(names or ())  # then numbers mean these names
    if order is not None and len(found.labels) == 1 and not stored:
        kind = schema.field(found.labels[0]).type
        if not (is_text(kind) or is_list(kind)):
            # Naming the folder: Python shows equal warnings once, and there may be many files.
            classes.warn_of_order(names, str(Path(path).parent))
    kept = ("class_names", "labels", "categories", "are_codes")
    meaning = {name: metadata[name] for name in kept if name in metadata}
    return dataclasses.replace(found, ids=None), meaning, dataclasses.replace(keys, classes=names)
