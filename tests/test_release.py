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
import focalcal_papers
from focalcal.cli import COMMANDS, PAPERS

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = {"focalcal": ROOT, "focalcal_papers": ROOT / "papers"}
PROJECTS = {
    name: tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    for name, folder in FOLDERS.items()
}
PROJECT = PROJECTS["focalcal"]
every_package = pytest.mark.parametrize("package", FOLDERS)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Folder with both sdists, and the wheels built from the unpacked sdists alone."""
    pytest.importorskip("hatchling", reason="hatchling is not installed")
    out = tmp_path_factory.mktemp("dist")
    hatch = [sys.executable, "-m", "hatchling", "build", "-d", str(out), "-t"]
    for name, folder in FOLDERS.items():
        subprocess.run([*hatch, "sdist"], cwd=folder, check=True, capture_output=True)
        version = f"{name}-{PROJECTS[name]['version']}"
        with tarfile.open(out / f"{version}.tar.gz") as archive:
            archive.extractall(out, filter="data")
        subprocess.run([*hatch, "wheel"], cwd=out / version, check=True, capture_output=True)
    return out


def environment(folder, wheels):
    """The python of a fresh environment in which pip has installed these wheels.

    Their dependencies are links to the ones of this environment, so that no network is needed;
    what is installed of this source tree is left out, so only the wheels provide it.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    site = next((folder / "lib").glob("python3.*")) / "site-packages"
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-index"]
    subprocess.run([*pip, "--no-deps", *map(str, wheels)], check=True, capture_output=True)
    for folder in (Path(p) for p in sys.path if p.endswith("site-packages")):
        for entry in folder.iterdir():
            if "focalcal" not in entry.name and not (site / entry.name).exists():
                (site / entry.name).symlink_to(entry)
    return python


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    return environment(tmp_path_factory.mktemp("clean"), built.glob("focalcal-*.whl"))


@pytest.fixture(scope="module")
def installed_both(built, tmp_path_factory):
    return environment(tmp_path_factory.mktemp("both"), built.glob("*.whl"))


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
    assert focalcal.__version__ == focalcal_papers.__version__ == version
    assert PROJECTS["focalcal_papers"]["version"] == version
    assert f"focalcal[torch,figures]=={version}" in PROJECTS["focalcal_papers"]["dependencies"]
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text()
    assert f"version: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert all(part.isdigit() for part in version.split("."))


@every_package
def test_the_wheel_holds_the_whole_package_and_nothing_else(built, package):
    with zipfile.ZipFile(next(built.glob(f"{package}-*.whl"))) as wheel:
        names = set(wheel.namelist())
        metadata = next(n for n in names if n.endswith("METADATA"))
        assert "License-Expression: Apache-2.0" in wheel.read(metadata).decode()
    source = FOLDERS[package] / "src"
    tracked = subprocess.run(
        ["git", "ls-files", f"src/{package}"], cwd=FOLDERS[package], capture_output=True, text=True
    )
    if tracked.returncode == 0:
        for name in tracked.stdout.split():
            if (FOLDERS[package] / name).is_file():
                path = FOLDERS[package] / name
                assert str(path.relative_to(source)) in names, name
    # Of the other package nothing: "focalcal/" is no prefix of "focalcal_papers/".
    assert all(n.startswith((f"{package}/", f"{package}-")) for n in names)
    assert not any("__pycache__" in n for n in names)
    assert f"{package}/py.typed" in names


def test_the_sdist_of_the_library_holds_nothing_of_the_papers(built):
    with tarfile.open(next(built.glob("focalcal-*.tar.gz"))) as archive:
        inside = [Path(*Path(n).parts[1:]) for n in archive.getnames()]
    assert not [p for p in inside if p.parts[:1] == ("papers",) or "focalcal_papers" in p.parts]


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


@pytest.mark.parametrize("name", PAPERS)
def test_commands_of_the_papers_come_with_their_wheel(installed, installed_both, name, tmp_path):
    alone, both = (
        run(python, python.with_name("focalcal"), name, "--help", folder=tmp_path)
        for python in (installed, installed_both)
    )
    assert (alone.returncode, both.returncode) == (2, 0), both.stderr
    assert "pip install focalcal-papers" in alone.stderr
    assert f"focalcal {name}" in both.stdout


def test_both_wheels_work_together(installed_both, tmp_path):
    for arguments in (["theory", "--json"], ["reproduce", "--list"]):
        python = installed_both
        done = run(python, python.with_name("focalcal"), *arguments, folder=tmp_path)
        assert done.returncode == 0, done.stderr


def test_every_source_file_is_short_enough_to_read():
    for path in [*(ROOT / "src").rglob("*.py"), *(ROOT / "papers" / "src").rglob("*.py")]:
        assert len(path.read_text().splitlines()) < 400, path
        ast.parse(path.read_text())
