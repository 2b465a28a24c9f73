"""`focalcal doctor`: what it finds is what is there."""

from __future__ import annotations

import importlib.metadata
import json

import pytest
from typer.testing import CliRunner

from focalcal.cli import app, doctor

runner = CliRunner()


@pytest.fixture(scope="module")
def record():
    return json.loads(runner.invoke(app, ["doctor", "--json"]).stdout)


def test_versions_are_those_installed(record):
    found = {p["package"]: p["version"] for p in record["needed"]}
    assert found["numpy"] == importlib.metadata.version("numpy")
    assert all(p["ok"] for p in record["needed"])
    assert {"torch", "onnx", "parquet", "figures", "dask"} <= set(record["extras"])
    assert record["threads"]["usable_cores"] >= 1


def test_text_names_version_and_threads():
    result = runner.invoke(app, ["doctor"])
    assert result.exit_code == 0
    assert result.stdout.startswith("focalcal ")
    assert "cores usable" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_what_is_missing_or_old_is_said(monkeypatch):
    needs = ["numpy>=999", "no-such-package>=1; extra == 'torch'", "pytest; extra == 'dev'"]
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: needs)
    result = runner.invoke(app, ["doctor"], env={"COLUMNS": "120"})
    assert result.exit_code == 1
    assert "numpy >= 999, found" in result.stdout
    assert "absent (no-such-package): pip install 'focalcal[torch]'" in result.stdout
    assert "pytest" not in result.stdout


def test_versions_compare_as_numbers():
    assert doctor._numbers("2.13.0+cpu") > doctor._numbers("2.9")
