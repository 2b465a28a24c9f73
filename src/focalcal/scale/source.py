"""Where predictions too many to hold come from: parquet files, cut into their row groups."""

from __future__ import annotations

import dataclasses
import glob
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from focalcal.errors import FileFormatError, InputError
from focalcal.formats import roles
from focalcal.formats.arrow import column_to_numpy, column_to_plain, is_text, pyarrow_module
from focalcal.formats.columns import labels as label_values
from focalcal.formats.roles import Keys
from focalcal.formats.text import METADATA, parse_metadata
from focalcal.predictions import Predictions, concatenate

BATCH_ELEMENTS = 2**22
"""Numbers read at a time: a row group of any size takes no more memory."""
_SAMPLED_GROUPS = 32
_BUFFER = 2**18
"""Bytes of a file read at a time; else the first rows of a row group would cost reading it all."""


@dataclasses.dataclass(frozen=True)
class Columns:
    """Which columns of a file hold the logits (or probabilities) and the labels.

    values: one list column, or one column per class in class order; extra: further columns to read;
    class_names: where they are known, and needed to read labels that are texts; by_name: whether
    labels that are numbers may be class names too.
    """

    values: tuple[str, ...]
    are_logits: bool
    labels: str | None
    extra: tuple[str, ...] = ()
    class_names: tuple[str, ...] | None = None
    by_name: bool = True


@dataclasses.dataclass(frozen=True)
class Partition:
    """One row group of one file; `n_classes` is what the whole source has."""

    path: str
    row_group: int
    rows: int
    columns: Columns
    n_classes: int = 0

    def batches(self, rows: int | None = None) -> Iterator[Predictions]:
        """Its predictions in order, checked, a bounded number of rows at a time."""
        size = rows or max(1, BATCH_ELEMENTS // max(self.n_classes, len(self.columns.values)))
        names = [*self.columns.values, *filter(None, [self.columns.labels]), *self.columns.extra]
        start = 0
        with open_parquet(self.path) as file:
            self._check_rows(file.metadata)
            try:
                for piece in file.iter_batches(
                    size, row_groups=[self.row_group], columns=names, use_threads=False
                ):
                    yield self.predictions(piece, start)
                    start += piece.num_rows
            except (pyarrow_module().ArrowException, OSError) as error:
                raise self._damaged(error) from error
        if start != self.rows:
            raise self._damaged(f"{start} rows instead of {self.rows}")

    def _check_rows(self, metadata: Any) -> None:
        group = self.row_group
        rows = metadata.row_group(group).num_rows if group < metadata.num_row_groups else 0
        if rows != self.rows:
            raise FileFormatError(
                f"{self.path}: row group {group} has {rows} rows, expected {self.rows}, as when "
                "it was opened; did the file change meanwhile?"
            )

    def _damaged(self, what: object) -> FileFormatError:
        return FileFormatError(
            f"{self.path}: row group {self.row_group} cannot be read ({what}); "
            "it may be damaged, write it again"
        )

    def predictions(self, batch: Any, start: int) -> Predictions:
        """A record batch or table of this row group as checked predictions."""
        name = self.columns.labels
        labels = None if name is None else self._labels(batch, name, start)
        extra = {name: column_to_plain(batch.column(name)) for name in self.columns.extra}
        return self._checked(self._values(batch, start), labels, extra, start)

    def _values(self, batch: Any, start: int) -> np.ndarray:
        """Its values (N, K), or (N,) for class 1 of two."""
        names = self.columns.values
        arrays = [self._column(batch, name, start) for name in names]
        if len(arrays) > 1 and any(a.ndim != 1 for a in arrays):
            where = self._where(start)
            raise FileFormatError(f"{where}: expected numbers in {names[0]} …, got lists")
        values = arrays[0] if len(arrays) == 1 else np.stack(arrays).T
        k = max(values.shape[1], 2) if values.ndim == 2 else 2
        if self.n_classes and k != self.n_classes:
            raise InputError(
                f"{self._where(start)}: expected {self.n_classes} classes, as in the first file, "
                f"got {k}"
            )
        return values

    def _labels(self, batch: Any, name: str, start: int) -> np.ndarray:
        where = f"{self._where(start)}: column {name!r}"
        found, _ = label_values(batch.column(name), where)
        return roles.class_labels(found, self.columns.class_names, self.columns.by_name, where)

    def _column(self, batch: Any, name: str, start: int) -> np.ndarray:
        return column_to_numpy(batch.column(name), f"{self._where(start)}: column {name!r}")

    def _checked(
        self, values: np.ndarray, labels: np.ndarray | None, extra: dict[str, Any], start: int
    ) -> Predictions:
        name = "logits" if self.columns.are_logits else "probs"
        try:
            names = self.columns.class_names
            return Predictions(**{name: values}, labels=labels, class_names=names, extra=extra)
        except InputError as error:
            raise InputError(f"{self._where(start)}: {error}") from error

    def _where(self, start: int) -> str:
        return f"{self.path}, row group {self.row_group}, from row {start}"


@dataclasses.dataclass(frozen=True)
class Source:
    """Predictions in parquet files, in the order of their names and rows.

    partitions: the row groups, empty ones left out; n: rows in all.
    """

    partitions: tuple[Partition, ...]
    n_classes: int
    n: int

    @classmethod
    def open(
        cls,
        where: str | Path | Sequence[str | Path],
        *,
        logits_key: str | None = None,
        probs_key: str | None = None,
        labels_key: str | None = None,
        logits_prefix: str | None = None,
        probs_prefix: str | None = None,
        classes: Sequence[str] | None = None,
        labels_required: bool = True,
        extra: Sequence[str] = (),
    ) -> Self:
        """Read the footers of parquet files given as paths, folders or patterns, ``'p/*.parquet'``.

        A matrix is a list column, a fixed-size list column or one column per class, `logits_0`,
        `logits_1`, …; every file must have the same. Keys, prefixes and class names are those of
        `Predictions.load`; `extra` are carried.
        """
        names = None if classes is None else tuple(map(str, classes))
        keys = Keys(logits_key, probs_key, labels_key, None, logits_prefix, probs_prefix, names)
        paths = find_files(where)
        partitions: list[Partition] = []
        for path in paths:
            with open_parquet(path) as file:
                columns = _columns(path, _schema(path, file), keys, labels_required)
                columns = dataclasses.replace(columns, extra=tuple(extra))
                missing = [name for name in extra if name not in file.schema_arrow.names]
                if missing:
                    names = ", ".join(file.schema_arrow.names)
                    raise FileFormatError(f"{path}: expected {missing[0]!r}, got columns {names}")
                if partitions and columns != partitions[0].columns:
                    raise FileFormatError(
                        f"{path}: expected the columns of {partitions[0].path}, "
                        f"{partitions[0].columns}, got {columns}; read such files apart"
                    )
                meta = file.metadata
                partitions += [
                    Partition(path, i, meta.row_group(i).num_rows, columns)
                    for i in range(meta.num_row_groups)
                ]
        partitions = [p for p in partitions if p.rows]
        if not partitions:
            raise FileFormatError(f"expected predictions in {where}, got files without rows")
        first = next(partitions[0].batches(rows=1))
        partitions = [dataclasses.replace(p, n_classes=first.n_classes) for p in partitions]
        return cls(tuple(partitions), first.n_classes, sum(p.rows for p in partitions))

    @property
    def paths(self) -> tuple[str, ...]:
        """The files, each once, in order."""
        return tuple(dict.fromkeys(p.path for p in self.partitions))

    def sample(self, rows: int) -> Predictions:
        """About `rows` rows from row groups spread evenly over the source: a start, not a result.

        Reads only the beginning of each chosen row group.
        """
        count = min(_SAMPLED_GROUPS, len(self.partitions))
        chosen = np.unique(np.linspace(0, len(self.partitions) - 1, count).astype(int))
        each = max(1, -(-rows // len(chosen)))
        return concatenate([next(self.partitions[i].batches(rows=each)) for i in chosen])


def find_files(where: str | Path | Sequence[str | Path]) -> list[str]:
    """Absolute paths of the parquet files that a path, a folder or a pattern names, sorted."""
    given = [where] if isinstance(where, str | Path) else list(where)
    found: list[str] = []
    for item in map(str, given):
        if Path(item).is_file():
            names = [item]
        elif Path(item).is_dir():
            names = [str(p) for p in Path(item).glob("*.parquet")]
        else:
            names = glob.glob(item, recursive=True)  # noqa: PTH207 (Path.glob wants a folder)
        if not names:
            raise FileFormatError(f"no parquet files at {item}; check the path or the pattern")
        found += sorted(str(Path(name).absolute()) for name in names)
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
        return pyarrow.parquet.ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise FileFormatError(
            f"{path} is not a readable parquet file ({error}); it may be missing or truncated"
        ) from error


def _schema(path: str, file: Any) -> Any:
    schema = file.schema_arrow
    try:
        _ = schema.names
    except UnicodeDecodeError as error:
        raise FileFormatError(
            f"{path}: expected column names in UTF-8 ({error}); the file may be damaged"
        ) from error
    return schema


def _columns(path: str, schema: Any, keys: Keys, labels_required: bool) -> Columns:
    text = (schema.metadata or {}).get(METADATA.encode(), b"{}").decode(errors="replace")
    metadata = parse_metadata(text, Path(path))
    required = labels_required or keys.labels is not None
    found = roles.find(list(schema.names), keys, path, required)
    if metadata.get("task") == "multilabel" or len(found.labels) > 1:
        raise FileFormatError(
            f"{path}: expected a single-label task, got multilabel; read such files one by one"
        )
    own = found.class_names or metadata.get("class_names")
    if own and len(own) == 1:
        own = roles.two_names(own[0], None)
    names, order = roles.class_order(None if own is None else tuple(own), keys.classes, path)
    values = found.values
    if order is not None:
        if len(values) == 1:
            raise FileFormatError(f"{path}: expected the classes in the order {', '.join(names)}")
        values = tuple(values[i] for i in order)
    label = found.labels[0] if found.labels else None
    if label and names is None and is_text(schema.field(label).type):
        raise FileFormatError(
            f"{path}: expected class names for the texts in {label!r}; "
            "give them in the order of the columns with --classes a,b,c"
        )
    by_name = roles.labels_by_name(metadata)
    return Columns(values, found.are_logits, label, class_names=names, by_name=by_name)
