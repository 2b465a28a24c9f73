"""evaluate, fit and apply over many files, as typed in a shell."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from focalcal import calibrators, metrics
from focalcal.cli import app
from focalcal.predictions import Predictions
from focalcal.scale import Source

from .conftest import ROWS

runner = CliRunner()


def run(*arguments):
    result = runner.invoke(app, [str(a) for a in arguments])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def test_evaluate_fit_apply(memory, pattern, tmp_path):
    z, y = memory
    record = json.loads(run("evaluate", pattern, "--json"))
    probs = Predictions(logits=z, labels=y).probabilities()
    assert record["metrics"]["ece"]["value"] == pytest.approx(metrics.ece(y, probs), abs=1e-9)
    assert (record["n"], record["files"], record["passes"]) == (ROWS, 3, 1)
    assert "within ±" in run("evaluate", pattern, "--engine", "stream", "--bins", "10")

    saved = tmp_path / "t.json"
    fitted = json.loads(run("fit", pattern, "-o", saved, "--json"))
    assert fitted["passes"] <= 3
    there = calibrators.make("temperature").fit(z, y)
    assert calibrators.load(saved).temperature_ == pytest.approx(there.temperature_, rel=1e-9)
    assert "passes over the files" in run("fit", pattern, "-o", saved, "--method", "temperature")

    assert f"{ROWS} rows" in run("apply", saved, pattern, "-o", tmp_path / "out")
    out = Source.open(tmp_path / "out")
    found = np.concatenate([b.probs for p in out.partitions for b in p.batches()])
    np.testing.assert_allclose(found, there.predict_proba(z), atol=1e-6)


def test_a_scheduler_needs_the_engine(pattern):
    result = runner.invoke(app, ["evaluate", pattern, "--scheduler", "tcp://127.0.0.1:1"])
    assert "expected --engine dask" in str(result.exception)


def command(*arguments, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "focalcal", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **options,
    )


def test_dask_on_the_command_line(pattern):
    pytest.importorskip("distributed")
    process = command("evaluate", pattern, "--engine", "dask", "--json")
    out, err = process.communicate(timeout=100)
    assert process.returncode == 0, err
    assert json.loads(out)["n"] == ROWS
    assert "Traceback" not in err
