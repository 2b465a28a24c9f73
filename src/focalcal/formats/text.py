"""Text: `.csv`, `.tsv` and `.jsonl`, plain or compressed by gzip.

Text has no types, so a column is read as strings and converted only where numbers are needed:
columns that are only carried along, such as an id 007, are written as they were read.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from focalcal.errors import FileFormatError, NoRowsError
from focalcal.formats.roles import LABELS, distinct, listed

Table = dict[str, Any]
"""Columns by name; see `focalcal.formats`."""
_DELIMITERS = ",;\t|"
_SEPARATOR = re.compile(r"sep=([,;\t|])\s*")
_UTF_16 = codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE
METADATA = "focalcal"
"""The name under which a file stores JSON metadata about its columns."""


def parse_object(text: str | bytes, where: str) -> dict[str, Any]:
    """A JSON object; anything else is a FileFormatError."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise FileFormatError(f"{where} is not JSON ({error})") from error
    if not isinstance(found, dict):
        raise FileFormatError(f"{where}: expected a JSON object, got {type(found).__name__}")
    return found


def parse_metadata(text: str | bytes, path: Path) -> dict[str, Any]:
    """The metadata of a file: task, class_names, provenance; null counts as absent."""
    found = parse_object(text, f"{path}: the focalcal metadata")
    return {name: value for name, value in found.items() if value is not None}


def read_text(path: Path) -> str:
    """The text of a file, in UTF-8, or in UTF-16 as written by spreadsheets."""
    data = path.read_bytes()
    try:
        data = gzip.decompress(data) if path.suffix.lower() == ".gz" else data
        return data.decode("utf-16" if data.startswith(_UTF_16) else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path} is not UTF-8 text ({error}); save it as UTF-8") from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise FileFormatError(f"{path} is not a readable gzip file ({error})") from error


def read_delimited(path: Path) -> tuple[Table, dict[str, Any]]:
    """Columns with a header; the delimiter is the most frequent in the header of , ; | and tab.

    A first line such as `sep=;` sets it, as in spreadsheets. Empty rows and unnamed empty columns,
    which spreadsheets append, are dropped.
    """
    text = read_text(path)
    if "\n" not in text:  # lines of old Macintosh files end in \r
        text = text.replace("\r", "\n")
    first, _, rest = text.partition("\n")
    if declared := _SEPARATOR.fullmatch(first):
        text, first = rest, declared[1]
    delimiter = max(_DELIMITERS, key=first.count)
    reader = csv.reader(io.StringIO(text), delimiter=delimiter, skipinitialspace=True)
    try:
        rows = [row for row in reader if any(row)]
    except csv.Error as error:
        raise FileFormatError(f"{path} is not a readable csv file ({error})") from error
    if len(rows) < 2:
        raise NoRowsError(f"{path} has a header but no rows; write predictions to it first")
    header = [name.strip() for name in rows[0]]
    for i, row in enumerate(rows[1:]):
        if len(row) != len(header):
            raise FileFormatError(
                f"{path}: expected {len(header)} columns, got {len(row)} at row {i}; "
                f"the header is {listed(header)}"
            )
    columns = [
        (name, column) for name, column in zip(header, zip(*rows[1:])) if name or any(column)
    ]
    distinct([name for name, _ in columns], str(path))
    return {name: objects(column) for name, column in columns}, {}


def read_jsonl(path: Path) -> tuple[Table, dict[str, Any]]:
    """One JSON object per line. Nested objects become columns such as `probs.cat`."""
    rows = [row for _, row in json_lines(path)]
    if not rows:
        raise NoRowsError(f"{path} has no rows; write predictions to it first")
    return table_of(rows), {}


def json_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The location and the object of each line that is not blank."""
    # str.splitlines would also split at U+2028 and other characters that strings may contain.
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if line.strip():
            where = f"{path}: line {number}"
            yield where, parse_object(line, where)


def table_of(rows: Sequence[dict[str, Any]]) -> Table:
    """One column per name in any of the rows, with None where a row lacks it."""
    flat = [_flat(row) for row in rows]
    names = dict.fromkeys(name for row in flat for name in row)
    return {name: objects([row.get(name) for row in flat]) for name in names}


def _flat(row: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in row.items():
        inner = isinstance(value, dict)
        out |= _flat(value, f"{prefix}{name}.") if inner else {prefix + name: value}
    return out


def objects(values: Sequence[Any]) -> np.ndarray:
    """An object array (N,) of the values, even if they are lists."""
    out = np.empty(len(values), dtype=object)
    out[:] = values
    return out


def _open_to_write(path: Path) -> Any:
    opener = gzip.open if path.suffix.lower() == ".gz" else open
    return opener(path, "wt", encoding="utf-8", newline="")


def write_delimited(path: Path, table: Table, metadata: dict[str, Any]) -> None:
    names, columns = _wide(table, metadata.get("class_names"))
    delimiter = "\t" if ".tsv" in path.suffixes else ","
    with _open_to_write(path) as f:
        writer = csv.writer(f, delimiter=delimiter)
        writer.writerow(names)
        # Python's repr of a float is the shortest text that reads back to the same bits.
        writer.writerows(zip(*map(_listed, columns)))


def write_jsonl(path: Path, table: Table, metadata: dict[str, Any]) -> None:
    classes = metadata.get("class_names")
    columns = {}
    for name, values in table.items():
        column = _listed(values)
        if by_class := _by_class(name, values, classes):
            column = [dict(zip(by_class, row)) for row in column]
        columns[_one_column(name, classes) if values.ndim == 1 else name] = column
    with _open_to_write(path) as f:
        for row in zip(*columns.values()):
            record = dict(zip(columns, row))
            f.write(json.dumps(record, ensure_ascii=False, default=str) + "\n")


def _listed(values: np.ndarray) -> list[Any]:
    """Python's values, None for NaN; NumPy would list times in nanoseconds as integers."""
    if values.dtype.kind in "mM" and np.datetime_data(values.dtype)[0] == "ns":
        shorter = values.astype(f"{values.dtype.kind}8[us]")
        if not ((shorter == values) | np.isnat(values)).all():
            return [None if np.isnat(value) else str(value) for value in values]
        values = shorter
    if values.dtype.kind == "f" and np.isnan(values).any():
        values = np.where(np.isnan(values), None, values.astype(object))
    return values.tolist()


def _by_class(name: str, values: np.ndarray, classes: Sequence[str] | None) -> Sequence[str] | None:
    """The class names if this is a matrix by class; a carried matrix may have any order."""
    if not classes or values.ndim != 2 or name not in ("logits", "probs", *LABELS):
        return None
    return classes if len(classes) == len(set(classes)) == values.shape[1] else None


def _one_column(name: str, classes: Sequence[str] | None) -> str:
    """The name of a single column, which includes the name of class 1 of two."""
    named = classes and len(classes) == 2 and name in ("logits", "probs")
    return f"{name}_{classes[1]}" if named else name


def _wide(table: Table, classes: Sequence[str] | None) -> tuple[list[str], list[np.ndarray]]:
    """Matrices as one column per class, named by the class or by its number."""
    names: list[str] = []
    columns: list[np.ndarray] = []
    for name, values in table.items():
        if values.ndim == 1 or values.shape[1] == 1:
            names.append(_one_column(name, classes))
            columns.append(values.reshape(-1))
            continue
        names += [f"{name}_{j}" for j in _by_class(name, values, classes) or range(values.shape[1])]
        columns += list(values.T)
    return names, columns
