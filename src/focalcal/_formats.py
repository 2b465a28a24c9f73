"""Reading and writing named columns as npz, parquet or csv: no pickle, nothing half-written.

A table is a dict of arrays. In csv and in wide parquet files a matrix called `logits` is spelled
as columns `logits_0`, `logits_1`, …; npz and parquet list columns hold it whole.
"""

from __future__ import annotations

import csv
import json
import math
import re
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from focalcal._files import atomic_path
from focalcal.errors import FileFormatError, MissingExtraError

Table = dict[str, np.ndarray]

SUFFIXES = (".npz", ".parquet", ".csv")
METADATA = "focalcal"
_WIDE = re.compile(r"^(?P<name>.+)_(?P<index>\d+)$")


def read_table(path: str | Path) -> tuple[Table, dict[str, Any]]:
    """All columns of a file and its metadata (empty if it has none)."""
    path = Path(path)
    reader = {".npz": _read_npz, ".parquet": _read_parquet, ".csv": _read_csv}[_suffix(path)]
    if not path.exists():
        raise FileFormatError(f"no file at {path}; check the path")
    if path.stat().st_size == 0:
        raise FileFormatError(f"{path} is empty; write predictions to it first")
    return reader(path)


def write_table(path: str | Path, table: Table, metadata: dict[str, Any]) -> None:
    """Write columns and JSON metadata in the format that the suffix of `path` names."""
    path = Path(path)
    writer = {".npz": _write_npz, ".parquet": _write_parquet, ".csv": _write_csv}[_suffix(path)]
    with atomic_path(path) as temporary:
        writer(temporary, table, metadata)


def _suffix(path: Path) -> str:
    if path.suffix not in SUFFIXES:
        raise FileFormatError(
            f"expected a file ending in {', '.join(SUFFIXES)}, got {path.name!r}; "
            "save predictions in one of these formats"
        )
    return path.suffix


def _read_npz(path: Path) -> tuple[Table, dict[str, Any]]:
    table: Table = {}
    metadata: dict[str, Any] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                name = info.filename.removesuffix(".npy")
                array = _read_npy_member(archive, info, path)
                if name == METADATA:
                    metadata = _parse_metadata(str(array), path)
                else:
                    table[name] = array
    except FileFormatError:
        raise
    # A damaged archive surfaces as almost any of these from deep inside zipfile.
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, RuntimeError) as error:
        raise FileFormatError(
            f"{path} is not a readable npz file ({error}); it may be truncated, write it again"
        ) from error
    return table, metadata


def _read_npy_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> np.ndarray:
    """One array of an npz; its declared shape is compared with its size before allocating."""
    where = f"{path}: array {info.filename.removesuffix('.npy')!r}"
    with archive.open(info) as stream:
        try:
            version = np.lib.format.read_magic(stream)
            read_header = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }[version]
            shape, fortran, dtype = read_header(stream)
        except (ValueError, KeyError) as error:
            raise FileFormatError(f"{where} has no valid npy header ({error})") from error
        if dtype.hasobject:
            raise FileFormatError(
                f"{where} holds Python objects (a pickle), which are never loaded; "
                "save plain numbers with numpy.savez"
            )
        size = math.prod(shape) * dtype.itemsize
        left = info.file_size - stream.tell()
        if size != left:
            raise FileFormatError(
                f"{where} declares shape {shape} ({size} bytes) but {left} bytes follow; "
                "the file is damaged, write it again"
            )
        data = stream.read(size)
    if len(data) != size:
        raise FileFormatError(f"{where} ends early; the file is damaged, write it again")
    return np.frombuffer(data, dtype=dtype).reshape(shape, order="F" if fortran else "C")


def _write_npz(path: Path, table: Table, metadata: dict[str, Any]) -> None:
    extra = {METADATA: np.array(json.dumps(metadata))} if metadata else {}
    np.savez_compressed(path, **table, **extra)


def pyarrow_module() -> Any:
    """pyarrow with its parquet part; MissingExtraError where it is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError("pyarrow", "parquet", "reading and writing parquet") from error
    return pyarrow


def _read_parquet(path: Path) -> tuple[Table, dict[str, Any]]:
    pyarrow = pyarrow_module()
    try:
        arrow = pyarrow.parquet.read_table(path)
        metadata = (arrow.schema.metadata or {}).get(METADATA.encode(), b"{}").decode()
        names = arrow.column_names
    # Damaged names and metadata are no UTF-8.
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise FileFormatError(
            f"{path} is not a readable parquet file ({error}); it may be truncated, write it again"
        ) from error
    table = {name: column_to_numpy(arrow[name], f"{path}: column {name!r}") for name in names}
    return _gather_wide(table, path), _parse_metadata(metadata, path)


def column_to_numpy(column: Any, where: str) -> np.ndarray:
    """A pyarrow column as (N,) or, for list columns of one length, (N, K); nulls are errors."""
    pyarrow = pyarrow_module()
    column = column.combine_chunks() if isinstance(column, pyarrow.ChunkedArray) else column
    if isinstance(column, pyarrow.ChunkedArray):  # combine_chunks keeps huge columns chunked
        column = pyarrow.concat_arrays(column.chunks)
    if column.null_count:
        row = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise FileFormatError(f"{where} has a null at row {row}; fill or drop it")
    kind = column.type
    fixed = isinstance(kind, pyarrow.FixedSizeListType)
    if not is_list(kind):
        _check_number_type(kind, where)
        return column.to_numpy(zero_copy_only=False)
    if fixed:
        width = kind.list_size
    else:
        lengths = np.diff(column.offsets.to_numpy())
        if len(lengths) and (lengths != lengths[0]).any():
            row = int(np.flatnonzero(lengths != lengths[0])[0])
            raise FileFormatError(
                f"{where}: expected lists of length {lengths[0]}, as in row 0, "
                f"got {lengths[row]} at row {row}"
            )
        width = int(lengths[0]) if len(lengths) else 0
    _check_number_type(kind.value_type, where)
    # Lists of one length and no nulls lie side by side: a view, where flatten() would copy.
    start = column.offset * width if fixed or not len(column) else column.offsets[0].as_py()
    values = column.values.slice(start, len(column) * width)
    if values.null_count:
        at = int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0])
        raise FileFormatError(f"{where} has a null at row {at // width}, entry {at % width}")
    return values.to_numpy(zero_copy_only=False).reshape(len(column), width)


def is_list(kind: Any) -> bool:
    """Whether a pyarrow type is one of the list types that are read here."""
    pyarrow = pyarrow_module()
    lists = (pyarrow.FixedSizeListType, pyarrow.ListType, pyarrow.LargeListType)
    return isinstance(kind, lists)


def _check_number_type(kind: Any, where: str) -> None:
    types = pyarrow_module().types
    if not (types.is_floating(kind) or types.is_integer(kind) or types.is_boolean(kind)):
        raise FileFormatError(f"{where}: expected numbers, got {kind}; convert the column")


def _write_parquet(path: Path, table: Table, metadata: dict[str, Any]) -> None:
    pyarrow = pyarrow_module()
    columns = {name: numpy_to_column(values) for name, values in table.items()}
    arrow = pyarrow.table(columns)
    if metadata:
        arrow = arrow.replace_schema_metadata({METADATA: json.dumps(metadata)})
    pyarrow.parquet.write_table(arrow, path)


def numpy_to_column(values: np.ndarray) -> Any:
    """(N,) as a plain column, (N, K) as a fixed-size list column."""
    pyarrow = pyarrow_module()
    if values.ndim == 1:
        return pyarrow.array(values)
    flat = pyarrow.array(np.ascontiguousarray(values).reshape(-1))
    return pyarrow.FixedSizeListArray.from_arrays(flat, values.shape[1])


def _read_csv(path: Path) -> tuple[Table, dict[str, Any]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as f:
            header = [name.strip() for name in next(csv.reader(f), [])]
            body = f.read()
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path} is not UTF-8 text ({error}); save it as UTF-8") from error
    if len(set(header)) != len(header):
        raise FileFormatError(f"{path}: expected distinct column names, got {header}")
    if not body.strip():
        raise FileFormatError(f"{path} has a header but no rows; write predictions to it first")
    lines = body.splitlines()
    try:
        values = np.loadtxt(lines, delimiter=",", ndmin=2, comments=None, quotechar='"')
    except ValueError as error:
        raise _csv_fault(path, header, lines, error) from error
    if values.shape[1] != len(header):
        raise _csv_fault(path, header, lines, None)
    table = {}
    for j, name in enumerate(header):
        column = values[:, j]
        # csv has no types: a column of whole numbers is an integer column, as a person reads it.
        whole = not _WIDE.match(name) and np.isfinite(column).all() and (column % 1 == 0).all()
        table[name] = column.astype(np.int64) if whole else column
    return _gather_wide(table, path), {}


def _csv_fault(
    path: Path, header: list[str], lines: list[str], error: Exception | None
) -> FileFormatError:
    """Name the first row and column of a csv that is not a number or not as wide as the header."""
    for i, row in enumerate(csv.reader(lines)):
        if len(row) != len(header):
            return FileFormatError(
                f"{path}: expected {len(header)} columns, got {len(row)} at row {i}"
            )
        for name, text in zip(header, row):
            try:
                float(text)
            except ValueError:
                return FileFormatError(
                    f"{path}: expected a number in column {name!r}, got {text!r} at row {i}"
                )
    return FileFormatError(f"{path} is not a readable csv file ({error})")


def _write_csv(path: Path, table: Table, metadata: dict[str, Any]) -> None:
    del metadata  # csv has nowhere to put it; npz and parquet keep it
    names: list[str] = []
    columns: list[np.ndarray] = []
    for name, values in table.items():
        if values.ndim == 1:
            names.append(name)
            columns.append(values)
        else:
            names += [f"{name}_{j}" for j in range(values.shape[1])]
            columns += list(values.T)
    with path.open("w", newline="", encoding="utf-8") as f:
        writer = csv.writer(f)
        writer.writerow(names)
        # Python's repr of a float is the shortest text that reads back to the same bits.
        writer.writerows(zip(*(column.tolist() for column in columns)))


def _gather_wide(table: Table, path: Path) -> Table:
    """Columns `name_0 … name_{K-1}` become one (N, K) matrix `name`, ordered by their number."""
    groups: dict[str, dict[int, str]] = {}
    for column in table:
        if match := _WIDE.match(column):
            groups.setdefault(match["name"], {})[int(match["index"])] = column
    out = dict(table)
    for name, members in groups.items():
        if name in table:
            raise FileFormatError(
                f"{path} has both {name!r} and {members[min(members)]!r}; keep one"
            )
        if sorted(members) != list(range(len(members))):
            missing = next(i for i in range(len(members)) if i not in members)
            raise FileFormatError(
                f"{path}: expected columns {name}_0 … {name}_{max(members)}, "
                f"got no {name}_{missing}"
            )
        matrix = [out.pop(members[i]) for i in range(len(members))]
        if any(m.ndim != 1 for m in matrix):
            raise FileFormatError(f"{path}: expected numbers in {name}_*, got lists")
        out[name] = np.stack(matrix, axis=1)
    return out


def _parse_metadata(text: str, path: Path) -> dict[str, Any]:
    try:
        metadata = json.loads(text)
    except json.JSONDecodeError as error:
        raise FileFormatError(f"{path}: the focalcal metadata is not JSON ({error})") from error
    if not isinstance(metadata, dict):
        raise FileFormatError(
            f"{path}: expected focalcal metadata to be an object, got {metadata!r}"
        )
    return metadata
