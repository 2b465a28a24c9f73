"""`show` and `export`, and what every command promises to people and to programs."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from focalcal.calibrators import AutoCalibrator, load
from focalcal.cli import app, terminal
from focalcal.errors import InputError
from focalcal.predictions import Predictions

runner = CliRunner()


def run(*arguments):
    result = runner.invoke(app, [str(a) for a in arguments], env={"COLUMNS": "80"})
    assert result.exit_code == 0, (result.output, result.exception)
    return result


@pytest.fixture
def data(tmp_path, rng):
    z = 3 * rng.normal(size=(300, 3))
    y = np.argmax(z / 2 + rng.gumbel(size=z.shape), axis=1)
    np.savez(tmp_path / "val.npz", logits=z, labels=np.array(["a", "b", "c"])[y])
    return z, y


@pytest.fixture
def cal(tmp_path, data):
    run("fit", tmp_path / "val.npz", "-o", tmp_path / "cal.json", "--classes", "a,b,c")
    return tmp_path / "cal.json"


def test_show(cal):
    text = run("show", cal).stdout
    assert text.startswith(f"temperature: temperature = {load(cal).temperature_:.6g}")
    assert "3 classes: a, b, c" in text
    assert "300 calibration samples" in text
    assert json.loads(run("show", cal, "--json").stdout) == json.loads(cal.read_text())


def test_show_labels_and_an_infinite_loss(tmp_path):
    p = np.array([[0.2, 0.8], [0.6, 0.4], [1.0, 0.0]] * 20)
    np.savez(tmp_path / "zero.npz", probs=p, labels=[0, 1, 1] * 20)
    assert "nll: ∞ → " in run("fit", tmp_path / "zero.npz", "-o", tmp_path / "z.json").stdout
    Predictions(
        logits=p, labels=(p > 0.5).astype(int), task="multilabel", class_names=("sport", "music")
    ).save(tmp_path / "many.npz")
    run("fit", tmp_path / "many.npz", "-o", tmp_path / "m.json")
    assert "2 labels: sport, music" in run("show", tmp_path / "m.json").stdout


def test_a_file_of_predictions_is_no_calibrator(tmp_path, data):
    result = runner.invoke(app, ["show", str(tmp_path / "val.npz")])
    assert "got a file that is not text" in str(result.exception)


def test_show_a_saved_decision(cal):
    fitted = load(cal)
    fitted.decision_ = {"threshold": 0.875}
    fitted.save(cal)
    assert "decides alone from confidence 0.875" in run("show", cal).stdout


def test_export(cal, tmp_path, data):
    onnxruntime = pytest.importorskip("onnxruntime")
    out = tmp_path / "cal.onnx"
    assert json.loads(run("export", cal, "-o", out, "--json").stdout)["file"] == str(out)
    assert "saved to" in run("export", cal, "-o", out).stdout
    session = onnxruntime.InferenceSession(out)
    z = data[0].astype(np.float32)
    found = session.run(None, {session.get_inputs()[0].name: z})[0]
    np.testing.assert_allclose(found, load(cal).predict_proba(z), atol=1e-5)
    result = runner.invoke(app, ["export", str(cal), "-o", str(tmp_path / "cal.json2")])
    assert isinstance(result.exception, InputError)
    assert "ending in .onnx" in str(result.exception)


def test_auto_shows_what_it_chose_from(tmp_path, data):
    options = ("--method", "auto", "--set", 'candidates=["identity", "temperature"]')
    command = ("fit", tmp_path / "val.npz", "-o", tmp_path / "auto.json", "--classes", "a,b,c")
    text = run(*command, *options).stdout
    formula = load(tmp_path / "auto.json").formula_
    assert text.startswith(f"auto: {formula}, chosen from")
    assert "temperature" in formula
    assert "held-out NLL" in text
    record = json.loads(run(*command, *options, "--json").stdout)
    assert record["chosen"] == formula
    assert [row["method"] for row in record["candidates"]] == ["identity", "temperature"]
    auto = AutoCalibrator(("identity", "temperature"))
    assert repr(auto) == "AutoCalibrator(candidates=('identity', 'temperature'))"
    assert "held-out NLL" in repr(auto.fit(*data))


def test_probabilities_given_as_logits_are_noticed(tmp_path, rng):
    p = rng.dirichlet(np.ones(3), 200)
    np.savez(tmp_path / "p.npz", logits=p, labels=rng.integers(0, 3, 200))
    text = " ".join(run("fit", tmp_path / "p.npz", "-o", tmp_path / "c.json").output.split())
    assert "they look like probabilities; if they are, pass" in text
    assert text.count("rows sum to 1") == 1
    notes = load(tmp_path / "c.json").diagnostics_.warnings
    assert any("look like probabilities" in note for note in notes)


def test_the_same_file_twice_is_a_warning_on_the_page(tmp_path, data):
    file = tmp_path / "val.npz"
    few = ("--methods", "temperature", "--resamples", 5, "--classes", "a,b,c")
    for name in ("r.html", "r.md"):
        said = run("report", "--val", file, "--test", file, "-o", tmp_path / name, *few).stdout
        assert "validation and test predictions are the same" in " ".join(said.split())
        assert "validation and test predictions are the same" in (tmp_path / name).read_text()
    record = run("report", "--val", file, "--test", file, "-o", tmp_path / "r.md", *few, "--json")
    assert len(json.loads(record.stdout)["warnings"]) == 1


@pytest.mark.parametrize("name", [c.name or c.callback.__name__ for c in app.registered_commands])
def test_every_help_has_an_example(name):
    assert f"Example: focalcal {name}" in " ".join(run(name, "--help").stdout.split())


@pytest.mark.parametrize("name", ["methods", "doctor"])
def test_eighty_columns(name):
    assert max(map(len, run(name).stdout.splitlines())) <= 80


def test_logs_say_how_far_long_work_is(monkeypatch, capsys):
    monkeypatch.setattr(terminal, "LOG_EVERY", 0.0)
    with terminal.progress("reading") as tick:
        tick(0.0)
        tick(0.5)
        tick(1.0)
    said = capsys.readouterr().err
    assert said.startswith("reading, 50 % done, about 0 s left")
    assert said.count("\n") == 1
    assert [terminal._duration(s) for s in (8, 600, 7200)] == ["8 s", "10 min", "2.0 h"]
    with terminal.working("fitting"):
        pass
    monkeypatch.setattr(terminal, "LOG_EVERY", 0.001)
    with terminal.working("fitting"):
        __import__("time").sleep(0.1)
    assert capsys.readouterr().err.endswith("fitting …\n")
    with terminal.quietly(True), terminal.working("fitting"), terminal.progress("x") as tick:
        tick(0.5)
        __import__("time").sleep(0.1)
    assert capsys.readouterr().err == ""


def test_parts_are_imported_when_they_are_used():
    code = (
        "import focalcal, sys\n"
        "assert 'focalcal.metrics' not in sys.modules\n"
        "print(focalcal.metrics.ece([0, 1], [[.9, .1], [.2, .8]]), focalcal.Predictions.__name__)\n"
        "assert 'metrics' in dir(focalcal)\n"
        "focalcal.nonsense"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "Predictions" in done.stdout
    assert "has no attribute 'nonsense'" in done.stderr
