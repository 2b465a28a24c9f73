"""Files as tables of named columns, read without pickle and written atomically.

A table is a dict of columns with one entry per sample: arrays (N,) or (N, M) of numbers, arrays of
strings (dtype object), or pyarrow columns, which keep types that only Arrow has until their values
are read (`columns.numbers`, `columns.plain`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from focalcal.errors import FileFormatError, InputError
from focalcal.files import atomic_path
from focalcal.formats.arrow import (
    is_dataset_folder,
    read_arrow,
    read_dataset,
    read_parquet,
    write_parquet,
)
from focalcal.formats.binary import read_npy, read_npz, read_pt, write_npz
from focalcal.formats.columns import plain
from focalcal.formats.roles import listed
from focalcal.formats.text import Table, read_delimited, read_jsonl, write_delimited, write_jsonl


class Format(NamedTuple):
    """How one kind of file is read and, if supported, written."""

    read: Callable[[Path], tuple[Table, dict[str, Any]]]
    write: Callable[[Path, Table, dict[str, Any]], None] | None = None


_DELIMITED, _LINES = Format(read_delimited, write_delimited), Format(read_jsonl, write_jsonl)
_TEXT = {".csv": _DELIMITED, ".tsv": _DELIMITED, ".jsonl": _LINES, ".ndjson": _LINES}
FORMATS = {
    ".npz": Format(read_npz, write_npz),
    ".parquet": Format(read_parquet, write_parquet),
    **_TEXT,
    **{f"{name}.gz": form for name, form in _TEXT.items()},
    ".arrow": Format(read_arrow),
    ".feather": Format(read_arrow),
    ".npy": Format(read_npy),
    ".pt": Format(read_pt),
    ".pth": Format(read_pt),
}
"""Formats by file suffix."""
SUFFIXES = tuple(name for name, form in FORMATS.items() if form.write)
"""Suffixes of the formats that can be written."""
TEXT = tuple(name for name, form in FORMATS.items() if form in (_DELIMITED, _LINES))
"""Formats without types and metadata."""


def read_table(path: str | Path, layout: str | None = None) -> tuple[Table, dict[str, Any]]:
    """All columns of a file (or of a Hugging Face dataset's folder) and its metadata.

    `layout` names a format that the suffix does not determine: lm-eval, lm-eval-norm or inspect.
    """
    path = Path(path)
    if layout is not None:
        from focalcal.formats.language_models import READERS

        if layout not in READERS:
            raise InputError(f"expected a format of {', '.join(READERS)}, got {layout!r}")
        if not path.exists():
            raise FileFormatError(f"no file or folder at {path}; check the path")
        return READERS[layout](path)
    if is_dataset_folder(path):
        return read_dataset(path)
    if path.is_dir():
        holds = listed(sorted(p.name for p in path.iterdir())) or "nothing"
        raise FileFormatError(
            f"expected a file, got the folder {path}, which holds {holds}; name a file of "
            f"predictions, or several by a pattern such as '{path / '*.csv'}'"
        )
    if not path.suffix and not path.exists():
        raise FileFormatError(f"no file or folder at {path}; check the path")
    reader = FORMATS[ending(path)].read
    if not path.exists():
        raise FileFormatError(f"no file at {path}; check the path")
    if path.stat().st_size == 0 and reader is not read_jsonl:
        raise FileFormatError(f"{path} is empty; write predictions to it first")
    return reader(path)


def write_table(path: str | Path, table: Table, metadata: dict[str, Any]) -> None:
    """Write columns and JSON metadata in the format of the suffix of `path`."""
    path = Path(path)
    writer = FORMATS[ending(path)].write
    if writer is None:
        raise FileFormatError(
            f"{path.name!r} can be read but not written; end the name in {', '.join(SUFFIXES)}"
        )
    if writer is not write_parquet:  # only parquet keeps Arrow types
        table = {name: plain(column) for name, column in table.items()}
    with atomic_path(path) as temporary:
        writer(temporary, table, metadata)


def ending(path: Path) -> str:
    """The suffix that determines the format, such as '.csv.gz'."""
    name = path.name.lower()
    found = [known for known in FORMATS if name.endswith(known)]
    if not found:
        raise FileFormatError(
            f"expected a file ending in {', '.join(FORMATS)}, got {path.name!r}; "
            "save predictions in one of these formats"
        )
    return max(found, key=len)
