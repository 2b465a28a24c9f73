"""What is released: a wheel and an sdist that install and work without this source tree."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

import focalcal
from focalcal.cli import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Folder with the sdist, and the wheel built from the unpacked sdist alone."""
    pytest.importorskip("hatchling", reason="hatchling is not installed")
    out = tmp_path_factory.mktemp("dist")
    hatch = [sys.executable, "-m", "hatchling", "build", "-d", str(out), "-t"]
    subprocess.run([*hatch, "sdist"], cwd=ROOT, check=True, capture_output=True)
    with tarfile.open(next(out.glob("*.tar.gz"))) as archive:
        archive.extractall(out, filter="data")
    source = out / f"focalcal-{PROJECT['version']}"
    subprocess.run([*hatch, "wheel"], cwd=source, check=True, capture_output=True)
    return out


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """The python of a fresh environment in which pip has installed the wheel.

    Dependencies come from this one through a path file, so that no network is needed; the
    editable install of this source tree is a path file too, and path files of a path file's
    folder are not read, so only the wheel provides focalcal.
    """
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder, with_pip=False, symlinks=True)
    site = next((folder / "lib").glob("python3.*")) / "site-packages"
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-index"]
    wheel = next(built.glob("*.whl"))
    subprocess.run([*pip, "--no-deps", str(wheel)], check=True, capture_output=True)
    libraries = [p for p in sys.path if p.endswith("site-packages")]
    (site / "libraries.pth").write_text("\n".join(libraries) + "\n")
    return python


def run(python, *arguments, folder):
    environment = {
        k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "FOCALCAL_SHARED")
    }
    return subprocess.run(
        [python, "-P", *map(str, arguments)],
        cwd=folder,
        capture_output=True,
        text=True,
        env=environment,
    )


def test_one_version_everywhere():
    version = PROJECT["version"]
    assert focalcal.__version__ == version
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text()
    assert f"version: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert all(part.isdigit() for part in version.split("."))


def test_the_wheel_holds_the_whole_package_and_nothing_else(built):
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        names = set(wheel.namelist())
        metadata = next(n for n in names if n.endswith("METADATA"))
        assert "License-Expression: Apache-2.0" in wheel.read(metadata).decode()
    source = ROOT / "src"
    tracked = subprocess.run(
        ["git", "ls-files", "src/focalcal"], cwd=ROOT, capture_output=True, text=True
    )
    if tracked.returncode == 0:
        for name in tracked.stdout.split():
            if (ROOT / name).is_file():
                assert str((ROOT / name).relative_to(source)) in names, name
    assert all(n.startswith(("focalcal/", "focalcal-")) for n in names)
    assert not any("__pycache__" in n for n in names)
    assert "focalcal/py.typed" in names


def test_the_installed_package_is_the_wheel(installed, tmp_path):
    done = run(installed, "-c", "import focalcal; print(focalcal.__file__)", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert str(ROOT / "src") not in done.stdout


def test_the_wheel_works_from_an_empty_folder(installed, tmp_path):
    code = (
        "import numpy as np\n"
        "rng = np.random.default_rng(0)\n"
        "z = 3 * rng.normal(size=(200, 3))\n"
        "np.savez('v.npz', logits=z, labels=rng.integers(0, 3, 200))\n"
    )
    assert run(installed, "-c", code, folder=tmp_path).returncode == 0
    for arguments in (["--version"], ["fit", "v.npz", "-o", "c.json"], ["methods", "--json"]):
        done = run(installed, installed.with_name("focalcal"), *arguments, folder=tmp_path)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "c.json").is_file()


@pytest.mark.slow
@pytest.mark.skipif("demo" not in COMMANDS, reason="this version has no demo command")
def test_the_demo_writes_its_report(installed, tmp_path):
    done = run(installed, installed.with_name("focalcal"), "demo", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.rglob("*.html"))


def test_every_source_file_is_short_enough_to_read():
    for path in (ROOT / "src").rglob("*.py"):
        assert len(path.read_text().splitlines()) < 400, path
        ast.parse(path.read_text())
