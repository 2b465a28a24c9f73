"""`focalcal evaluate`: the table, the JSON, and one-line errors."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from focalcal import metrics
from focalcal.bins import bin_samples, equal_width_edges
from focalcal.cli import app
from focalcal.cli.evaluate import reliability_sketch, verdict
from focalcal.metrics import METRICS
from focalcal.metrics.declare import p_text

runner = CliRunner()


@pytest.fixture
def file(tmp_path, rng):
    logits = rng.normal(size=(300, 4)) * 3
    labels = rng.integers(0, 4, size=300)
    path = tmp_path / "preds.npz"
    np.savez(path, logits=logits, labels=labels)
    return path


def test_json_equals_the_library(file):
    result = runner.invoke(app, ["evaluate", str(file), "--json", "--resamples", "20"])
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    with np.load(file) as data:
        labels, probs = data["labels"], np.exp(data["logits"])
    probs /= probs.sum(axis=1, keepdims=True)
    assert record["metrics"]["ece"]["value"] == pytest.approx(metrics.ece(labels, probs), rel=1e-12)
    assert record["n"] == 300


def test_table_names_every_metric_and_gives_a_verdict(file):
    result = runner.invoke(app, ["evaluate", str(file), "--resamples", "20"])
    assert result.exit_code == 0
    for m in filter(lambda m: m.show, METRICS.values()):
        assert m.title in result.stdout
    assert "over-confident by" in result.stdout


def test_confidences_of_an_event(tmp_path, rng):
    """Independent: a plain loop over the bins. Below 0.5 the forecast is not turned round."""
    c = rng.random(500)
    right = rng.random(500) < c
    path = tmp_path / "answers.csv"
    rows = "".join(f"{x!r},{int(y)}\n" for x, y in zip(c.tolist(), right))
    path.write_text(f"confidence,correct\n{rows}")
    names = ["--probs", "confidence", "--labels", "correct", "--resamples", "20", "--event"]
    result = runner.invoke(app, ["evaluate", str(path), *names, "--json"])
    found = json.loads(result.stdout)["metrics"]
    assert found["accuracy"]["value"] == pytest.approx(right.mean())
    bins = [(c > i / 15) & (c <= (i + 1) / 15) for i in range(15)]
    ece = sum(abs((c - right)[rows].sum()) for rows in bins) / 500
    assert found["ece"]["value"] == pytest.approx(ece)
    assert (
        "500 samples, forecasts of an event"
        in runner.invoke(app, ["evaluate", str(path), *names]).stdout
    )
    result = runner.invoke(app, ["evaluate", str(path), *names, "--by", "confidence"])
    assert "expected --event with one file in memory" in str(result.exception)


def test_an_event_has_one_confidence(file):
    result = runner.invoke(app, ["evaluate", str(file), "--event"])
    assert "one forecast per sample" in str(result.exception)


def test_recalibrate_splits_the_losses(file, tmp_path):
    options = ["evaluate", str(file), "--resamples", "20", "--recalibrate", "temperature"]
    record = json.loads(runner.invoke(app, [*options, "--json"]).stdout)
    split = record["recalibrated"]
    assert split["method"] == "temperature"
    assert split["nll"]["value"] == pytest.approx(record["metrics"]["nll"]["value"])
    assert "of which temperature removes" in runner.invoke(app, options).stdout
    several = tmp_path / "several.npz"
    np.savez(several, logits=np.ones((9, 2)), labels=np.tile([1, 0, 1], (2, 3)).T)
    result = runner.invoke(app, ["evaluate", str(several), *options[2:], "--task", "multilabel"])
    assert "one label per sample" in str(result.exception)
    for more in (["--by", "label"], ["--engine", "threads"]):
        result = runner.invoke(app, [*options, *more])
        assert "--recalibrate with one file in memory" in str(result.exception)


def test_sketch_marks_confidence_and_accuracy():
    edges = equal_width_edges(2)
    bins = bin_samples(np.array([0.75, 0.75]), np.array([1.0, 0.0]), edges)
    lines = reliability_sketch(bins, width=8).splitlines()[1:]
    assert len(lines) == 1  # no rows for the empty bins at either end
    assert "████  │" in lines[0]
    assert lines[0].endswith("+25.0")


@pytest.mark.parametrize("columns", [20, 60, 80, 200])
def test_bars_fit_the_terminal(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    bins = bin_samples(np.array([0.75, 0.75]), np.array([1.0, 1.0]), equal_width_edges(2))
    (line,) = reliability_sketch(bins).splitlines()[1:]
    assert len(line) == min(max(columns, 36), 68)
    assert line.endswith(" −25.0")


def test_keys_and_bins_are_passed_on(tmp_path, rng):
    np.savez(tmp_path / "p.npz", a=rng.dirichlet(np.ones(3), size=50), b=rng.integers(0, 3, 50))
    arguments = ["--probs-key", "a", "--labels-key", "b", "--bins", "7", "--resamples", "5"]
    result = runner.invoke(app, ["evaluate", str(tmp_path / "p.npz"), *arguments, "--json"])
    assert len(json.loads(result.stdout)["reliability"]["counts"]) == 7


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "no file at"), ("", "is empty"), ("logits_1,labels\nx,1\n", "got 'x' at row 0")],
)
def test_bad_files_are_one_line_and_exit_code_two(tmp_path, content, message):
    path = tmp_path / "p.csv"
    if content is not None:
        path.write_text(content)
    out = subprocess.run(
        [sys.executable, "-m", "focalcal", "evaluate", str(path)], capture_output=True, text=True
    )
    assert out.returncode == 2
    assert message in out.stderr
    assert out.stderr.count("\n") == 1
    assert "Traceback" not in out.stderr


def test_golden_file(shared_data):
    path = shared_data / "logits" / "cifar10_resnet50_flsd53.npz"
    keys = ["--logits-key", "test_logits", "--labels-key", "test_labels"]
    result = runner.invoke(app, ["evaluate", str(path), *keys, "--resamples", "10"])
    assert "95.02 %" in result.stdout
    assert "1.55 %" in result.stdout


def test_p_values_are_not_more_exact_than_they_are():
    assert p_text(1 / 1001) == "p < .001"
    assert p_text(0.0312) == "p = .031"


def test_errors_that_cancel_are_not_called_over_confidence():
    rng = np.random.default_rng(0)
    confidence = np.repeat([0.95, 0.6], 2000)
    correct = rng.random(4000) < np.repeat([0.8, 0.75], 2000)
    found = verdict(metrics.evaluate(correct.astype(int), confidence=confidence, resamples=200))
    assert found.startswith("Not calibrated: miscalibrated both ways (on balance ")


def test_a_binary_file_has_no_rows_for_confidences_below_a_half(tmp_path, rng):
    s = rng.normal(size=200)
    np.savez(tmp_path / "p.npz", logits=s, labels=(s + rng.logistic(size=200) > 0).astype(int))
    text = runner.invoke(app, ["evaluate", str(tmp_path / "p.npz"), "--resamples", "20"]).stdout
    assert "0.47–0.53" in text
    assert "0.00–0.07" not in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(("scale", "told"), [(1.0, False), (4.0, True)])
def test_what_to_do_is_said_where_confidences_are_wrong(tmp_path, rng, scale, told):
    z = 2 * rng.normal(size=(1000, 3))
    y = np.argmax(z + rng.gumbel(size=z.shape), axis=1)
    np.savez(tmp_path / "p.npz", logits=scale * z, labels=y)
    result = runner.invoke(app, ["evaluate", str(tmp_path / "p.npz"), "--resamples", "50"])
    assert ("To correct it: focalcal fit" in result.stdout) is told
