"""Atomic file writing: a partial file never has the final name."""

from __future__ import annotations

import contextlib
import glob
import os
import re
import secrets
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from focalcal.errors import InputError

_PREFIX = ".focalcal-tmp-"
POSIX = os.name == "posix"
DAY = 86_400


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside `path`; it replaces `path` on success, else it is removed.

    The old file stays intact until the new one is complete and flushed to disk. A temporary
    left by a killed process is removed by the next write to the same name.
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"expected a file to write, got the folder {path}")
    path.parent.mkdir(parents=True, exist_ok=True)
    prefix = f"{_PREFIX}{path.name}-"
    _remove_orphans(path.parent, prefix)
    # The suffix is kept because writers such as matplotlib and NumPy choose a format by it.
    temporary = path.parent / f"{prefix}{os.getpid()}-{secrets.token_hex(8)}{path.suffix}"
    with _naming(path):
        temporary.touch(exist_ok=False)
    try:
        yield temporary
        with _naming(path):
            with temporary.open("rb+") as f:
                os.fsync(f.fileno())
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Make system errors about a temporary file name the caller's path."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def natural(name: str) -> tuple[str, str]:
    """A key that sorts names by the numbers in them.

    >>> sorted(["week10", "week9", "day1"], key=natural)
    ['day1', 'week9', 'week10']
    """
    return re.sub("[0-9]+", lambda number: number[0].zfill(20), name), name


def files_at(where: str | os.PathLike[str]) -> list[str]:
    """The file, or the files of a folder (parquet only) or a pattern, in natural order."""
    path = Path(where)
    if path.is_file():
        return [str(path)]
    if path.is_dir():
        return sorted(map(str, path.glob("*.parquet")), key=natural)
    return sorted(glob.glob(str(where), recursive=True), key=natural)  # noqa: PTH207 (of any folder)


def check_suffix(path: str | os.PathLike[str], suffixes: Sequence[str]) -> Path:
    """The path, if its name ends in one of these; call it before computing the contents."""
    path = Path(path)
    if path.suffix.lower() not in suffixes:
        raise InputError(f"expected a name ending in {', '.join(suffixes)}, got {path.name!r}")
    return path


def output_paths(
    inputs: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str], suffixes: Sequence[str]
) -> list[Path]:
    """Where each file goes: its path below the inputs' common folder, under `out`.

    A single input may also go to a file, if the name of `out` ends in one of the suffixes. No
    output may be an input.
    """
    out = Path(out).absolute()
    names = [str(Path(name).absolute()) for name in inputs]
    if out.name.lower().endswith(tuple(suffixes)):
        if len(names) > 1:
            raise InputError(f"expected a folder for {len(names)} files, got {out.name}")
        outputs = [out]
    else:
        common = os.path.commonpath([str(Path(name).parent) for name in names])
        outputs = [out / Path(name).relative_to(common) for name in names]
    same = {Path(name).resolve() for name in names} & {path.resolve() for path in outputs}
    if same:
        raise InputError(
            f"expected outputs apart from the inputs, got {sorted(same)[0]} as both; "
            "give another name"
        )
    return outputs


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` as UTF-8, atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _remove_orphans(folder: Path, prefix: str) -> None:
    """Remove temporaries of processes that no longer run."""
    for orphan in folder.glob(f"{glob.escape(prefix)}*"):
        pid = orphan.name.removeprefix(prefix).split("-", 1)[0]
        with contextlib.suppress(OSError):  # another writer may have removed it
            if pid.isdigit() and not _alive(int(pid), orphan):
                orphan.unlink()


def _alive(pid: int, temporary: Path) -> bool:
    if not POSIX:  # where os.kill would terminate the process: judge by age
        return time.time() - temporary.stat().st_mtime < DAY
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        pass
    return True
