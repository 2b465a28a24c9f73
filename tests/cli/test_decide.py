"""`focalcal decide`: goals, costs, and a threshold saved with its calibrator."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from focalcal import calibrators, decisions
from focalcal.cli import app
from focalcal.errors import FileFormatError

runner = CliRunner()


@pytest.fixture
def file(tmp_path, rng):
    truth = 2 * rng.normal(size=(4000, 3))
    labels = np.argmax(truth + rng.gumbel(size=truth.shape), axis=1)
    path = tmp_path / "test.npz"
    np.savez(path, logits=truth, labels=labels)
    return path


def decide(*arguments):
    result = runner.invoke(app, ["decide", *map(str, arguments)])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def test_the_answer_is_in_the_first_line_and_fits(file):
    out = decide(file, "--target-accuracy", 0.9)
    assert out.startswith("Decide alone from confidence 0.")
    assert "Guarantee: accuracy of at least 90 %" in out
    assert all(len(line) <= 80 for line in out.splitlines())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_printed_threshold_decides_as_the_exact_one(tmp_path, rng, dtype):
    p = rng.uniform(0.5, 1, 500).astype(dtype)
    y = (rng.random(500) < p).astype(int)
    exact = decisions.threshold(y, p, max_error=0.1)
    printed = float(exact.rule.split(":")[0].split()[-1])
    confidence = np.maximum(p, 1 - p)
    first_left_out = confidence[confidence < exact.threshold].max()
    assert np.nextafter(first_left_out, dtype(1)) == printed
    np.testing.assert_array_equal(
        decisions.decide(p, threshold=printed), decisions.decide(p, threshold=exact.threshold)
    )
    fitted = calibrators.TemperatureScaling().fit(np.log(p / (1 - p)), y)
    fitted.decision_ = {"threshold": exact.threshold}
    fitted.save(tmp_path / "cal.json")
    shown = runner.invoke(app, ["show", str(tmp_path / "cal.json")]).stdout
    assert f"from confidence {printed!r}\n" in shown


def test_json_equals_the_library(file):
    record = json.loads(decide(file, "--max-error", 0.05, "--json"))
    with np.load(file) as data:
        probs = np.exp(data["logits"] - data["logits"].max(axis=1, keepdims=True))
        probs /= probs.sum(axis=1, keepdims=True)
        found = decisions.threshold(data["labels"], probs, max_error=0.05)
    assert record["threshold"] == pytest.approx(found.threshold, rel=1e-12)
    assert record["guarantee"] == found.guarantee


def test_a_goal_out_of_reach_says_so(file):
    out = decide(file, "--target-accuracy", 0.99999)
    assert out.startswith("No threshold reaches the goal")
    assert json.loads(decide(file, "--target-accuracy", 0.99999, "--json"))["threshold"] is None


def test_costs_from_text_and_from_a_file_agree(file, tmp_path):
    costs = tmp_path / "costs.csv"
    costs.write_text("0,1,1\n5,0,1\n5,1,0\n", encoding="utf-8-sig")  # as spreadsheets write
    text = "[[0,1,1],[5,0,1],[5,1,0]]"
    one = decide(file, "--costs", costs, "--abstain-cost", 0.3)
    assert one == decide(file, "--costs", text, "--abstain-cost", 0.3)
    assert one.startswith("Mean cost ")
    assert "decided alone" in one


def test_costs_tell_when_probabilities_are_not_calibrated(file, tmp_path):
    with np.load(file) as data:
        np.savez(tmp_path / "sure.npz", logits=3 * data["logits"], labels=data["labels"])
    assert "not calibrated" in " ".join(
        decide(tmp_path / "sure.npz", "--abstain-cost", 0.3).split()
    )


def test_a_threshold_is_saved_with_its_calibrator_until_it_is_fitted_again(file, tmp_path):
    with np.load(file) as data:
        logits, labels = data["logits"], data["labels"]
    path = tmp_path / "cal.json"
    calibrators.TemperatureScaling().fit(logits, labels).save(path)
    decide(file, "--target-accuracy", 0.9, "--calibrator", path, "--save")
    loaded = calibrators.load(path)
    assert loaded.decision_["goal"] == "target_accuracy"
    assert 0 < loaded.decision_["threshold"] < 1
    loaded.fit(logits, labels).save(path)
    assert "decision" not in json.loads(path.read_text())


def test_a_damaged_decision_is_refused(file, tmp_path):
    path = tmp_path / "cal.json"
    with np.load(file) as data:
        calibrators.TemperatureScaling().fit(data["logits"], data["labels"]).save(path)
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document | {"decision": {"threshold": 2}}))
    with pytest.raises(FileFormatError, match=r"decision\.threshold in \[0, 1\]"):
        calibrators.load(path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "got none"),
        (["--max-error", "0.1", "--abstain-cost", "1"], "got both"),
        (["--max-error", "0.1", "--save"], "--save with --calibrator"),
        (["--costs", "[[0,1],[1"], "costs as a .csv"),
        (["--costs", "nope"], "rows such as [[0,1],[9,0]], got nope: nope not found"),
        (["--costs", "."], "costs as a .csv file of numbers"),
    ],
)
def test_bad_requests_are_input_errors(file, arguments, message):
    result = runner.invoke(app, ["decide", str(file), *arguments])
    assert result.exit_code != 0
    assert message in str(result.exception)


def test_multilabel_files_are_refused(tmp_path):
    from focalcal.predictions import Predictions

    path = tmp_path / "many.npz"
    Predictions(probs=np.full((4, 3), 0.5), labels=np.zeros((4, 3), int), task="multilabel").save(
        path
    )
    result = runner.invoke(app, ["decide", str(path), "--max-error", "0.1"])
    assert "label by label" in str(result.exception)
