"""Finding the files a data set is made of, and saying what is missing."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Sequence
from pathlib import Path

from focalcal.errors import FileFormatError


def check_folder(folder: str | os.PathLike[str] | None, name: str) -> Path:
    """The folder as a path; None or a folder that does not exist is an error."""
    if folder is None or not Path(folder).is_dir():
        raise FileFormatError(
            f"expected a folder with the files of {name}, got {folder}; "
            "create it and put the files there"
        )
    return Path(folder)


def find_folder(folder: Path, names: Sequence[str], files: Sequence[str]) -> Path | None:
    """`folder` or the first of its sub-folders `names` that holds every one of `files`."""
    for place in (folder, *(folder / name for name in names)):
        if all((place / file).exists() for file in files):
            return place
    return None


def missing_files(name: str, folder: Path, files: Sequence[str], source: str) -> FileFormatError:
    """The error for absent files: which, where they are usually had, where to put them."""
    return FileFormatError(
        f"expected the files of {name}, did not find {', '.join(files)} in {folder}; "
        f"they are usually had from {source}; unpack them into {folder}"
    )


def read_bytes(path: Path) -> bytes:
    """The content of a file, unzipped if its name ends in .gz."""
    if path.suffix != ".gz":
        return path.read_bytes()
    try:
        with gzip.open(path, "rb") as f:
            return f.read()
    except (EOFError, OSError, zlib.error) as error:
        raise FileFormatError(
            f"expected a whole gzip file, got a damaged one at {path} ({error}); fetch it again"
        ) from error
