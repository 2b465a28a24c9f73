"""`focalcal report`: files in, one whole file out, one line when something is wrong."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from focalcal.cli import app
from focalcal.errors import FocalcalError
from report.toys import toy

runner = CliRunner()
FEW = ["--methods", "temperature,vector", "--resamples", "40"]


@pytest.fixture
def folder(tmp_path):
    for name, seed in (("a", 0), ("b", 1)):
        (tmp_path / name).mkdir()
        val, test = toy(seed, 600)
        val.save(tmp_path / name / "val.npz")
        test.save(tmp_path / name / "test.npz")
    return tmp_path


def _files(folder):
    return ["--val", str(folder / "a/val.npz"), "--test", str(folder / "a/test.npz")]


@pytest.mark.parametrize(
    ("name", "start"), [("r.html", "<!doctype"), ("r.md", "# Cali"), ("r.json", "{")]
)
def test_each_format(folder, name, start):
    path = folder / name
    result = runner.invoke(app, ["report", *_files(folder), "-o", str(path), *FEW])
    assert result.exit_code == 0, result.output
    assert path.read_text().startswith(start)
    assert "Over-confident by" in result.stdout
    assert name in result.stdout


def test_several_models_and_json_on_stdout(folder):
    models = [f"one={folder / 'a'}", str(folder / "b")]
    out = ["-o", str(folder / "out"), "--output-format", "json", "--json"]
    result = runner.invoke(app, ["report", *models, *out, *FEW])
    assert result.exit_code == 0, result.output
    assert [m["name"] for m in json.loads(result.stdout)["models"]] == ["one", "b"]
    assert len(json.loads((folder / "out").read_text())["models"]) == 2


def test_keys_are_passed_on(folder):
    with np.load(folder / "a/val.npz") as data:
        np.savez(folder / "v.npz", z=data["logits"], t=data["labels"])
    keys = ["--logits-key", "z", "--labels-key", "t"]
    files = ["--val", str(folder / "v.npz"), "--test", str(folder / "v.npz")]
    result = runner.invoke(app, ["report", *files, *keys, "-o", str(folder / "r.json"), *FEW])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "got neither"),
        (["--val", "a/val.npz"], "expected --test FILE"),
        (["--test", "a/test.npz"], "calibrators are fitted on them; to measure a single file"),
        (["x=a", "--val", "a/val.npz"], "got both"),
        (["=a"], "expected NAME=FOLDER"),
        (["x=nowhere"], "expected a folder"),
        (["x=a", "--output-format", "pdf"], "expected a format"),
        (["x=a", "--methods", "magic"], "expected methods among"),
        (["--val", "a/val.npz", "--test", "none.npz"], "no file at"),
    ],
)
def test_bad_input_writes_nothing(folder, monkeypatch, arguments, message):
    monkeypatch.chdir(folder)
    result = runner.invoke(app, ["report", *arguments, "-o", "r.html"])
    assert isinstance(result.exception, FocalcalError | OSError)
    assert message in str(result.exception)
    assert not (folder / "r.html").exists()


def test_a_failing_report_keeps_the_old_page(folder):
    path = folder / "r.html"
    path.write_text("old")
    (folder / "a/test.npz").write_bytes(b"PK damaged")
    result = runner.invoke(app, ["report", *_files(folder), "-o", str(path), *FEW])
    assert result.exit_code != 0
    assert path.read_text() == "old"
    assert {p.name for p in folder.iterdir()} == {"a", "b", "r.html"}
