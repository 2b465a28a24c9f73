"""Ctrl-C in the middle of the work: exit code 130, no traceback, nothing half-written.

The signal goes to the whole group of processes, as a terminal sends it. A sitecustomize module,
read by every Python that starts, slows the work down and says when it has begun, also in workers.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from focalcal import calibrators
from focalcal.predictions import Predictions

from .conftest import write

SLOW = """
import os, pathlib, sys, time

def begun():
    (pathlib.Path(__file__).parent / f"begun-{os.getpid()}").touch()
    time.sleep(0.3)

class Slow:
    "Patches the modules that do the work as soon as they are imported."
    places = {
        "focalcal.scale.source": ("Partition", "loaded"),
        "focalcal.calibrators.temperature": ("TemperatureScaling", "_fit"),
    }
    def find_spec(self, name, path, target=None):
        if name not in self.places:
            return None
        sys.meta_path.remove(self)
        import importlib.util
        spec = importlib.util.find_spec(name)
        sys.meta_path.insert(0, self)
        plain = spec.loader.exec_module
        def exec_module(module):
            plain(module)
            owner, method = self.places[name]
            inner = getattr(getattr(module, owner), method)
            def slowed(*args, **options):
                begun()
                return inner(*args, **options)
            setattr(getattr(module, owner), method, slowed)
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Slow())
"""


@pytest.fixture
def slow(tmp_path) -> Path:
    folder = tmp_path / "slow"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(SLOW)
    return folder


def interrupt(arguments: list, ready, environment: dict | None = None) -> tuple[int, str]:
    """Run a command, send SIGINT to its group once `ready()`; its exit code and stderr."""
    process = subprocess.Popen(
        [sys.executable, "-m", "focalcal", *map(str, arguments)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, **(environment or {})},
        # A shell without job control starts a suite in the background with the signal ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 90
    while not ready() and process.poll() is None:
        assert time.monotonic() < deadline, "the work did not begin"
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=90)
    return process.returncode, err


def check_clean(folder: Path, code: int, err: str) -> None:
    assert code == 130, err
    assert "Traceback" not in err
    assert err.rstrip().endswith("interrupted")
    assert not [p for p in folder.rglob("*") if p.name.startswith(".focalcal-tmp")]


@pytest.mark.parametrize(
    ("what", "engine"),
    [("evaluate", "stream"), ("fit", "stream"), ("apply", "stream"), ("apply", "dask")],
)
def test_engines(what, engine, memory, tmp_path, slow):
    if engine == "dask":
        pytest.importorskip("distributed")
    z, y = memory
    pattern = write(tmp_path / "in", z, y)
    calibrators.make("temperature").fit(z, y).save(tmp_path / "old.json")
    before = (tmp_path / "old.json").read_bytes()
    arguments = {
        "evaluate": ["evaluate", pattern],
        "fit": ["fit", pattern, "-o", tmp_path / "old.json"],
        "apply": ["apply", tmp_path / "old.json", pattern, "-o", tmp_path / "out"],
    }[what]

    def working() -> bool:
        """Past the look at the first rows, which the command itself takes."""
        processes = len(list(slow.glob("begun-*")))
        return processes > 1 if engine == "dask" else processes > 0

    code, err = interrupt([*arguments, "--engine", engine], working, {"PYTHONPATH": str(slow)})
    check_clean(tmp_path, code, err)
    assert (tmp_path / "old.json").read_bytes() == before
    for path in (tmp_path / "out").glob("*.parquet"):  # what is there is whole
        Predictions.load(path)


@pytest.mark.parametrize("what", ["fit", "report"])
def test_in_memory(what, memory, tmp_path, slow):
    z, y = memory
    for name in ("val", "test"):
        Predictions(logits=z[:2000], labels=y[:2000]).save(tmp_path / f"{name}.npz")
    target = tmp_path / ("c.json" if what == "fit" else "r.html")
    target.write_bytes(b"old")
    arguments = ["fit", tmp_path / "val.npz", "-o", target]
    if what == "report":
        files = ["--val", tmp_path / "val.npz", "--test", tmp_path / "test.npz"]
        arguments = ["report", *files, "-o", target]
    ready = lambda: any(slow.glob("begun-*"))  # noqa: E731
    code, err = interrupt(arguments, ready, {"PYTHONPATH": str(slow)})
    check_clean(tmp_path, code, err)
    assert target.read_bytes() == b"old"


def test_training_continues_where_it_was_stopped(tmp_path):
    pytest.importorskip("torch")
    run = tmp_path / "run"
    arguments = ["train", "--dataset", "square_clusters", "--model", "logistic", "--loss", "fl-1"]
    arguments += ["--epochs", "100000", "--device", "cpu", "--out", run]
    checkpoints = run / "checkpoints"
    code, err = interrupt(arguments, lambda: any(checkpoints.glob("step-*.json")))
    check_clean(tmp_path, code, err)
    last = max(int(p.stem.removeprefix("step-")) for p in checkpoints.glob("step-*.json"))
    again = subprocess.run(
        [sys.executable, "-m", "focalcal", *map(str, arguments), "--stop-after", "0.1"],
        capture_output=True,
        text=True,
    )
    assert again.returncode == 0, again.stderr
    status = json.loads((run / "status.json").read_text())
    assert status["state"] == "paused"
    assert status["step"] > last
