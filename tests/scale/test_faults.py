"""Faults while writing: the old file stays whole, and the next run leaves nothing stray.

A full disk is stood in for by a limit on file size: write() then fails in the middle of a file
just as it does on a full one (EFBIG in place of ENOSPC).
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import numpy as np
import pytest

from focalcal import calibrators
from focalcal.files import atomic_path
from focalcal.predictions import Predictions

PREPARE = """
import os, resource, signal, sys
import numpy as np
from focalcal.predictions import Predictions
rng = np.random.default_rng(0)
z = rng.normal(size=(4000, 5)); y = np.argmax(z + rng.gumbel(size=z.shape), axis=1)
target = sys.argv[1]
if target.endswith(".json"):
    from focalcal import calibrators
    fitted = calibrators.make("temperature").fit(z, y)
    write = lambda: fitted.save(target)
else:
    write = lambda: Predictions(logits=z, labels=y).save(target)
"""
FULL_DISK = """
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))
try:
    write()
except OSError as error:
    print("refused", error.errno)
"""
KILLED = """
import focalcal.files
os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)  # written, but not yet renamed
write()
"""
KINDS = ["p.npz", "p.parquet", "p.csv", "c.json"]


def run(code: str, target: Path) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", PREPARE + textwrap.dedent(code), str(target)],
        capture_output=True,
        text=True,
    )


def strays(folder: Path) -> list[str]:
    return [p.name for p in folder.iterdir() if p.name.startswith(".focalcal-tmp")]


@pytest.mark.parametrize("name", KINDS)
def test_a_full_disk_keeps_the_old_file(tmp_path, name):
    target = tmp_path / name
    target.write_bytes(b"old")
    done = run(FULL_DISK, target)
    assert done.stdout.startswith("refused"), done.stderr
    assert target.read_bytes() == b"old"
    assert strays(tmp_path) == []


@pytest.mark.parametrize("name", KINDS)
def test_killed_before_the_rename(tmp_path, name):
    target = tmp_path / name
    target.write_bytes(b"old")
    assert run(KILLED, target).returncode == -signal.SIGKILL
    assert target.read_bytes() == b"old"
    assert len(strays(tmp_path)) == 1
    with atomic_path(target) as temporary:
        temporary.write_bytes(b"new")
    assert target.read_bytes() == b"new"
    assert strays(tmp_path) == []


AS_ORDINARY_USER = """
import tempfile
real, target = target, os.path.join(tempfile.mkdtemp(), os.path.basename(target))
write()  # everything is imported now: another user may not be able to read this Python
target = real
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    write()
except OSError as error:
    print("refused", type(error).__name__)
else:
    print("written")
"""


@pytest.fixture
def open_folder():
    """A folder that every user can reach; pytest's own are for one user only."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.parametrize("name", KINDS)
def test_a_folder_that_cannot_be_written(open_folder, name):
    """root may write anywhere, so the writer becomes an ordinary user first."""
    for mode, said in ((0o555, "refused PermissionError"), (0o777, "written")):
        folder = open_folder / oct(mode)
        folder.mkdir()
        (folder / name).write_bytes(b"old")
        folder.chmod(mode)
        done = run(AS_ORDINARY_USER, folder / name)
        if "Operation not permitted" in done.stderr:
            pytest.skip("this process may not become another user: " + done.stderr[-200:])
        assert done.stdout.strip() == said, done.stderr
        assert ((folder / name).read_bytes() == b"old") == (said != "written")
        assert strays(folder) == []


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("keep", [0, 10, 0.5, 0.98])
def test_truncated_files_are_one_line_on_the_command_line(
    tmp_path, rng, name, keep, capsys, monkeypatch
):
    from focalcal import cli

    z = rng.normal(size=(200, 3))
    y = np.argmax(z + rng.gumbel(size=z.shape), axis=1)
    good = tmp_path / "good.npz"
    Predictions(logits=z, labels=y).save(good)
    path = tmp_path / name
    if name == "c.json":
        calibrators.make("isotonic").fit(z, y).save(path)
        arguments = ["apply", str(path), str(good), "-o", str(tmp_path / "out.npz")]
    else:
        Predictions(logits=z, labels=y).save(path)
        arguments = ["evaluate", str(path), "--resamples", "2"]
    data = path.read_bytes()
    cut = data[: keep if isinstance(keep, int) else int(len(data) * keep)]
    path.write_bytes(cut.rstrip(b"\r\n") if name == "p.csv" else cut)
    monkeypatch.setattr(sys, "argv", ["focalcal", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    err = capsys.readouterr().err
    if name == "p.csv" and keep in (0.5, 0.98) and stop.value.code in (0, None):
        pytest.skip("a csv cut between two digits is a valid csv; no reader can tell")
    assert stop.value.code == 2
    assert err.count("\n") == 1
    assert not (tmp_path / "out.npz").exists()
