"""Finding the files of a data set."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Sequence
from pathlib import Path

from focalcal.errors import FileFormatError

PathLike = str | os.PathLike[str]


def check_folder(folder: PathLike | None, name: str) -> Path:
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


def locate(
    folder: PathLike | None, name: str, subfolders: Sequence[str], files: Sequence[str], source: str
) -> Path:
    """`find_folder`, with an error that lists the missing files and where to get them."""
    folder = check_folder(folder, name)
    place = find_folder(folder, subfolders, files)
    if place is None:
        raise missing_files(name, folder, files, source)
    return place


def missing_files(name: str, folder: Path, files: Sequence[str], source: str) -> FileFormatError:
    absent = [file for file in files if not (folder / file).exists()]
    return FileFormatError(
        f"expected the files of {name}, did not find {', '.join(absent)} in {folder}; "
        f"download them from {source} and unpack them into {folder}"
    )


def check_count(got: int, expected: int | None, what: str, place: Path, get: str) -> None:
    """Require as many samples in a file or folder as in the official one; None: any number."""
    if expected is not None and got != expected:
        raise FileFormatError(
            f"expected {expected} {what}, got {got} in {place}; "
            f"{get} it again, or pass complete=False to use a shortened copy"
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
