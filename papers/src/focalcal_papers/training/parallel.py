"""Several runs in parallel on one machine, each in its own process.

Processes take turns on a GPU unless NVIDIA's Multi-Process Service lets their kernels overlap;
`mps=True` starts one for these runs alone and stops it with them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from focalcal.errors import InputError
from focalcal.files import write_text
from focalcal_papers.data.files import PathLike
from focalcal_papers.training.config import TrainConfig
from focalcal_papers.training.folder import RunFolder

_MPS = "nvidia-cuda-mps-control"


def train_many(
    configs: Sequence[TrainConfig],
    data_dir: PathLike | None,
    folders: Sequence[Path],
    *,
    at_once: int = 1,
    device: str = "auto",
    stop_after: float | None = None,
    mps: bool = False,
) -> list[dict[str, Any]]:
    """Train each config in its folder, `at_once` at a time; returns the `summary` of each run.

    A run that fails does not stop the others. `stop_after` seconds apply to all runs together:
    those not started by then remain new, and every run continues when the call is repeated. The
    output of a run goes to a .log file beside its folder.
    """
    if at_once < 1:
        raise InputError(f"expected at least 1 run at once, got {at_once}")
    deadline = None if stop_after is None else time.monotonic() + stop_after
    waiting = list(zip(configs, folders))
    started: dict[Path, subprocess.Popen] = {}
    with tempfile.TemporaryDirectory() as scratch, _gpu_sharing(mps) as environment:
        try:
            while waiting or _running(started):
                expired = deadline is not None and time.monotonic() > deadline
                while waiting and len(_running(started)) < at_once and not expired:
                    config, folder = waiting.pop(0)
                    recipe = Path(scratch) / f"{len(waiting)}.toml"
                    write_text(recipe, config.to_toml())
                    left = None if deadline is None else max(1.0, deadline - time.monotonic())
                    options = {"data": data_dir, "device": device, "stop-after": left}
                    started[folder] = _start(recipe, folder, options, environment)
                if expired:
                    waiting.clear()
                time.sleep(0.05)
        finally:
            for process in _running(started):
                process.terminate()
    return [_outcome(folder, started.get(folder)) for folder in folders]


def summary(folder: Path) -> dict[str, Any]:
    """A run's name, status and last traced test values."""
    run = RunFolder(folder)
    traced = [row for row in run.metrics() if "test" in row]
    return {"run": folder.name, **run.status, "test": traced[-1]["test"] if traced else None}


def _running(started: dict[Path, subprocess.Popen]) -> list[subprocess.Popen]:
    return [process for process in started.values() if process.poll() is None]


def _outcome(folder: Path, process: subprocess.Popen | None) -> dict[str, Any]:
    """The summary; a process with an error code has failed, whatever its folder's status."""
    record = summary(folder)
    if process is not None and process.returncode:
        lines = _log(folder).read_text(encoding="utf-8", errors="replace").splitlines()
        record |= {"state": "failed", "message": lines[-1] if lines else "no output"}
    return record


def _log(folder: Path) -> Path:
    # Beside the folder, which must be empty for a new run.
    return folder.parent / f"{folder.name}.log"


def _start(
    recipe: Path, folder: Path, options: dict[str, Any], environment: dict[str, str]
) -> subprocess.Popen:
    command = [sys.executable, "-m", "focalcal_papers", "train", str(recipe), "--out", str(folder)]
    for name, value in options.items():
        if value is not None:
            command += [f"--{name}", str(value)]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _log(folder).open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment)


@contextlib.contextmanager
def _gpu_sharing(wanted: bool) -> Iterator[dict[str, str]]:
    """The environment of the runs, with a Multi-Process Service for them if `wanted`."""
    if not wanted:
        yield dict(os.environ)
        return
    if shutil.which(_MPS) is None:
        raise InputError(f"expected {_MPS} on the PATH for --mps, got none; leave --mps out")
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe",
            "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log",
        }
        subprocess.run([_MPS, "-d"], env=environment, check=True)
        try:
            yield environment
        finally:
            subprocess.run([_MPS], input=b"quit\n", env=environment, check=False)
