"""Writing files so that nothing half-written ever carries the final name."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

_PREFIX = ".focalcal-tmp-"


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it replaces `path`, on failure it vanishes.

    The old file stays intact until the new one is complete and flushed to disk. A temporary
    left by a killed process is removed by the next write to the same name.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    prefix = f"{_PREFIX}{path.name}-"
    _remove_orphans(path.parent, prefix)
    # The suffix is kept because writers such as matplotlib and NumPy choose a format by it.
    handle, name = tempfile.mkstemp(
        prefix=f"{prefix}{os.getpid()}-", suffix=path.suffix, dir=path.parent
    )
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb+") as f:
            os.fsync(f.fileno())
        # mkstemp creates private files; give the result the permissions a plain open would.
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` as UTF-8, atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _remove_orphans(folder: Path, prefix: str) -> None:
    """Remove temporaries of processes that no longer run."""
    for orphan in folder.glob(f"{prefix}*"):
        pid = orphan.name.removeprefix(prefix).split("-", 1)[0]
        if pid.isdigit() and not _alive(int(pid)):
            orphan.unlink(missing_ok=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
