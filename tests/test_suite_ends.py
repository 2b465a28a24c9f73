"""The suite's own settings: a worker that dies or hangs is a failure, and soon."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
OPTIONS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]

DEADLY = {
    "crash": "import os, signal\n\ndef test_it():\n    os.kill(os.getpid(), signal.SIGILL)\n",
    "hang": "import time\n\ndef test_it():\n    time.sleep(600)\n",
    # Deaf to signals, as a loop in C is: an alarm would never be handled.
    "deaf": (
        "import signal, time\n\ndef test_it():\n"
        "    signal.pthread_sigmask(signal.SIG_BLOCK, signal.Signals)\n    time.sleep(600)\n"
    ),
}


@pytest.mark.parametrize("kind", DEADLY)
def test_a_worker_that_crashes_or_hangs_ends_the_suite_with_a_failure(tmp_path, kind):
    pytest.importorskip("xdist", reason="workers are those of pytest-xdist")
    pytest.importorskip("pytest_timeout", reason="the limit is that of pytest-timeout")
    assert OPTIONS["timeout"] <= 300
    (tmp_path / "pytest.ini").write_text(
        f"[pytest]\naddopts = {OPTIONS['addopts']}\n"
        f"timeout = 3\ntimeout_method = {OPTIONS['timeout_method']}\n"
    )
    for i in range(6):
        (tmp_path / f"test_{i}.py").write_text("def test_a(): pass\n\ndef test_b(): pass\n")
    (tmp_path / "test_2.py").write_text(DEADLY[kind] + "\n\ndef test_after(): pass\n")
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 1, done.stdout
    assert "test_2.py::test_it" in done.stdout
