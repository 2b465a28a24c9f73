"""Arrow columns: `.parquet`, `.arrow`, and folders written by Hugging Face datasets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from focalcal.errors import FileFormatError, needing
from focalcal.formats.roles import distinct
from focalcal.formats.text import METADATA, Table, objects, parse_metadata, parse_object


def pyarrow_module() -> Any:
    """pyarrow with its parquet module; MissingExtraError if it is not installed."""
    with needing("pyarrow", "parquet", "reading and writing parquet"):
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    return pyarrow


def read_parquet(path: Path) -> tuple[Table, dict[str, Any]]:
    pyarrow = pyarrow_module()
    return columns_of(lambda: pyarrow.parquet.read_table(path), path, "parquet")


def read_arrow(path: Path) -> tuple[Table, dict[str, Any]]:
    """An Arrow IPC file (also called feather), or a stream as written by datasets."""
    return columns_of(lambda: _open_ipc(path), path, "arrow")


def columns_of(read: Any, path: Path, kind: str) -> tuple[Table, dict[str, Any]]:
    """The columns and the metadata of the Arrow table that `read()` returns."""
    try:
        arrow = read()
        metadata = stored_metadata(arrow.schema, path)
        names = arrow.column_names
    # Damaged names and metadata may not be UTF-8.
    except (pyarrow_module().ArrowException, OSError, UnicodeDecodeError) as error:
        raise FileFormatError(
            f"{path} is not a readable {kind} file ({error}); it may be truncated, write it again"
        ) from error
    distinct(names, str(path))
    # Libraries other than pandas number unordered categories in order of occurrence.
    kinds = {field.name: field.type for field in arrow.schema if _is(field.type, "dictionary")}
    pandas = b"pandas" in (arrow.schema.metadata or {})
    ordered = [name for name, kind in kinds.items() if pandas or kind.ordered]
    categories = {name: _categories(arrow[name]) for name in ordered}
    return {name: arrow[name] for name in names}, {"categories": categories} | metadata


def stored_metadata(schema: Any, path: Path) -> dict[str, Any]:
    """What a file stores about its columns: our metadata, else that of Hugging Face's datasets."""
    stored = schema.metadata or {}
    found = parse_metadata(stored.get(METADATA.encode(), b"{}"), path)
    if found or b"huggingface" not in stored:
        return found
    record = parse_object(stored[b"huggingface"], f"{path}: the huggingface metadata")
    return _class_labels(record.get("info"))


def _class_labels(info: Any) -> dict[str, Any]:
    """The class names of the ClassLabel columns in the info of a dataset."""
    features = info.get("features") if isinstance(info, dict) else None
    kinds = features.items() if isinstance(features, dict) else ()
    labels = {k: x for k, x in kinds if isinstance(x, dict) and x.get("_type") == "ClassLabel"}
    names = {k: x["names"] for k, x in labels.items() if isinstance(x.get("names"), list)}
    return {"categories": names, "are_codes": True} if names else {}


def _open_ipc(path: Path) -> Any:
    import pyarrow.ipc

    try:
        return pyarrow.ipc.open_file(path).read_all()
    except pyarrow.ArrowInvalid:
        return pyarrow.ipc.open_stream(pyarrow.memory_map(str(path))).read_all()


def is_dataset_folder(path: Path) -> bool:
    """Whether it was written by `Dataset.save_to_disk` or `DatasetDict.save_to_disk`."""
    return (path / "dataset_info.json").is_file() or (path / "dataset_dict.json").is_file()


def read_dataset(path: Path) -> tuple[Table, dict[str, Any]]:
    """A Hugging Face dataset on disk, read as the Arrow files it consists of."""
    if (path / "dataset_dict.json").is_file():
        splits = sorted(p.parent.name for p in path.glob("*/dataset_info.json"))
        raise FileFormatError(
            f"{path} holds the splits {', '.join(splits)}; name one, as in {path / splits[0]}"
            if splits
            else f"{path}: expected splits with a dataset_info.json, got none"
        )
    info = _object(path / "dataset_info.json")
    state = _object(path / "state.json") if (path / "state.json").is_file() else {}
    names = [part["filename"] for part in state.get("_data_files", [])]
    files = [path / name for name in names] or sorted(path.glob("*.arrow"))
    if not files:
        raise FileFormatError(f"{path}: expected .arrow files beside dataset_info.json, got none")
    if state.get("_indices_files"):
        raise FileFormatError(
            f"{path} is a selection of another dataset; write it with flatten_indices() first"
        )
    pyarrow = pyarrow_module()
    parts = [pyarrow.table(columns_of(lambda f=f: _open_ipc(f), f, "arrow")[0]) for f in files]
    whole = pyarrow.concat_tables(parts)
    return {name: whole[name] for name in whole.column_names}, _class_labels(info)


def _object(path: Path) -> dict[str, Any]:
    return parse_object(path.read_text(encoding="utf-8"), str(path))


def is_column(x: Any) -> bool:
    """Whether this is an Arrow column, without importing pyarrow."""
    return type(x).__module__.split(".")[0] == "pyarrow"


def _categories(column: Any) -> list[str]:
    """The category names of a dictionary column (a pandas categorical), in their order."""
    chunks = column.unify_dictionaries().chunks
    return [str(name) for name in chunks[0].dictionary.to_pylist()] if chunks else []


def column_to_plain(column: Any) -> np.ndarray:
    """Any Arrow column as NumPy: times and floats (NaT or NaN where one is missing), integers and
    booleans where none is, otherwise Python's objects, also for times with a zone."""
    complete = not column.null_count and _is_number(column.type)
    local = _is(column.type, "temporal") and getattr(column.type, "tz", None) is None
    if complete or local or _is(column.type, "floating"):
        return np.asarray(column)
    return objects(column.to_pylist())


def column_to_numpy(column: Any, where: str) -> np.ndarray:
    """A pyarrow column as (N,) or, for list columns of one length, (N, K); nulls are errors."""
    pyarrow = pyarrow_module()
    if isinstance(column, pyarrow.ChunkedArray):
        # combine_chunks() keeps huge columns chunked; concat_arrays() needs at least one chunk.
        column = pyarrow.concat_arrays(column.chunks or [pyarrow.array([], column.type)])
    if column.null_count:
        raise FileFormatError(f"{where} has a null at row {_first_null(column)}; fill or drop it")
    if not is_list(column.type):
        return _numbers(column, where)
    fixed = _is(column.type, "fixed_size_list")  # one length is enough to check
    lengths = pyarrow.compute.list_value_length(column[:1] if fixed else column).to_numpy()
    other = np.flatnonzero(lengths != lengths[:1])
    if len(other):
        raise FileFormatError(
            f"{where}: expected lists of length {lengths[0]}, as in row 0, "
            f"got {lengths[other[0]]} at row {other[0]}"
        )
    width = int(lengths[0]) if len(lengths) else 0
    values = column.flatten()  # a view, since no list is null
    if values.null_count:
        row, entry = divmod(_first_null(values), width)
        raise FileFormatError(f"{where} has a null at row {row}, entry {entry}")
    return _numbers(values, where).reshape(len(column), width)


def _numbers(column: Any, where: str) -> np.ndarray:
    """An array of numbers or booleans without nulls."""
    if _is(column.type, "decimal"):
        column = column.cast("float64")
    if not _is_number(column.type):
        raise FileFormatError(f"{where}: expected numbers, got {column.type}; convert the column")
    return column.to_numpy(zero_copy_only=False)


def _first_null(column: Any) -> int:
    return int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])


def is_text(kind: Any) -> bool:
    """Whether a pyarrow type holds strings, plain or as categories."""
    kind = kind.value_type if _is(kind, "dictionary") else kind
    return _is(kind, "string", "large_string", "string_view")


def is_list(kind: Any) -> bool:
    """Whether a pyarrow type is one of the list types that are read here."""
    return _is(kind, "list", "large_list", "fixed_size_list")


def _is_number(kind: Any) -> bool:
    return _is(kind, "floating", "integer", "boolean")


def _is(kind: Any, *names: str) -> bool:
    """Whether a pyarrow type has one of these names."""
    from pyarrow import types

    return any(getattr(types, f"is_{name}")(kind) for name in names)


def write_parquet(path: Path, table: Table, metadata: dict[str, Any]) -> None:
    pyarrow = pyarrow_module()
    columns = {
        name: values if is_column(values) else numpy_to_column(values)
        for name, values in table.items()
    }
    arrow = pyarrow.table(columns)
    if metadata:
        arrow = arrow.replace_schema_metadata({METADATA: json.dumps(metadata)})
    pyarrow.parquet.write_table(arrow, path)


def numpy_to_column(values: np.ndarray) -> Any:
    """(N,) as a plain column, (N, K) as a fixed-size list column."""
    pyarrow = pyarrow_module()
    if values.ndim == 1:
        return pyarrow.array(values.tolist() if values.dtype == object else values)
    flat = pyarrow.array(np.ascontiguousarray(values).reshape(-1))
    return pyarrow.FixedSizeListArray.from_arrays(flat, values.shape[1])
