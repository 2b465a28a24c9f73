"""The origin of a result: version, commit, library versions, hardware, date."""

from __future__ import annotations

import datetime
import functools
import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from focalcal import __version__

_LIBRARIES = ("numpy", "scipy", "scikit-learn", "torch", "triton", "dask", "pyarrow")


def provenance() -> dict[str, Any]:
    """A JSON-ready record of the code and machine that produce a result.

    >>> sorted(provenance())
    ['commit', 'date', 'focalcal', 'hardware', 'python', 'versions']
    """
    return {
        "focalcal": __version__,
        "commit": commit(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "versions": {name: found for name in _LIBRARIES if (found := version_of(name))},
        "hardware": _hardware(),
    }


@functools.cache
def commit() -> str | None:
    """Commit of the source tree this package runs from, "-dirty" if changed; None outside git.

    `FOCALCAL_COMMIT` overrides it, for copies of a tree without its history.
    """
    if override := os.environ.get("FOCALCAL_COMMIT"):
        return override
    here = Path(__file__).resolve()
    if here.parents[1].name != "src":  # an installed copy must not report another repository
        return None
    try:
        out = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            cwd=here.parents[2],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return out.stdout.strip() or None


def version_of(package: str) -> str | None:
    """The installed version, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _hardware() -> dict[str, Any]:
    record: dict[str, Any] = {"cpu": _cpu_name(), "cores": os.cpu_count()}
    # Only a process that already uses torch has a GPU to report; importing it here costs seconds.
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        record["gpu"] = torch.cuda.get_device_name()
    return record


@functools.cache
def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
