"""`focalcal fit`, `apply` and `methods`: the same numbers as the library."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from focalcal.calibrators import METHODS, PriorCorrection, TemperatureScaling, load
from focalcal.cli import app
from focalcal.errors import FocalcalError
from focalcal.predictions import Predictions

runner = CliRunner()


def run(*arguments):
    return runner.invoke(app, [str(a) for a in arguments])


@pytest.fixture
def files(tmp_path, rng):
    paths = {}
    for name, n in (("val", 400), ("test", 90)):
        z = 3 * rng.normal(size=(n, 4))
        y = np.argmax(z / 2 + rng.gumbel(size=z.shape), axis=1)
        paths[name] = tmp_path / f"{name}.npz"
        np.savez(paths[name], logits=z, labels=y)
    return paths


def test_fit_and_apply_equal_the_library(files, tmp_path):
    cal, out = tmp_path / "cal.json", tmp_path / "out.npz"
    result = run("fit", files["val"], "-o", cal)
    assert result.exit_code == 0, result.output
    val, test = np.load(files["val"]), np.load(files["test"])
    expected = TemperatureScaling().fit(val["logits"], val["labels"])
    assert load(cal).temperature_ == expected.temperature_
    assert f"temperature = {expected.temperature_:.6g}" in result.stdout

    result = run("apply", cal, files["test"], "-o", out)
    assert result.exit_code == 0, result.output
    written = Predictions.load(out)
    np.testing.assert_array_equal(written.probs, expected.predict_proba(test["logits"]))
    np.testing.assert_array_equal(written.labels, test["labels"])
    assert written.provenance["calibrator"]["method"] == "temperature"


def test_settings_reach_the_calibrator(files, tmp_path):
    cal = tmp_path / "cal.json"
    result = run(
        "fit", files["val"], "-o", cal, "--method", "focal-temperature",
        "--objective", "adaptive_ece", "--search", "line",
        "--set", "temperatures=[0.5, 1.0, 1.5, 2.0, 2.5]", "--set", "bins=10", "--json",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert record["params"]["objective"] == "adaptive_ece"
    assert record["params"]["search"] == "line"
    assert record["params"]["bins"] == 10
    assert record["diagnostics"]["objective"] == "adaptive_ece"
    assert load(cal).get_params()["temperatures"] == [0.5, 1.0, 1.5, 2.0, 2.5]


def test_gamma_is_an_option_and_warnings_are_printed(files, tmp_path):
    result = run("fit", files["val"], "-o", tmp_path / "c.json", "--method", "focal", "--gamma", 3)
    assert result.exit_code == 0, result.output
    assert "warning:" in result.stdout
    assert load(tmp_path / "c.json").gamma == 3.0


def test_apply_without_labels(files, tmp_path):
    cal = tmp_path / "cal.json"
    run("fit", files["val"], "-o", cal)
    bare = tmp_path / "bare.npz"
    np.savez(bare, logits=np.load(files["test"])["logits"])
    result = run("apply", cal, bare, "-o", tmp_path / "out.npz")
    assert result.exit_code == 0, result.output
    assert Predictions.load(tmp_path / "out.npz", labels_required=False).labels is None


def test_probabilities_are_calibrated_as_their_logits(files, tmp_path):
    val = np.load(files["val"])
    p = np.exp(val["logits"])
    p /= p.sum(axis=1, keepdims=True)
    np.savez(tmp_path / "probs.npz", probs=p, labels=val["labels"])
    run("fit", files["val"], "-o", tmp_path / "a.json")
    run("fit", tmp_path / "probs.npz", "-o", tmp_path / "b.json")
    a, b = load(tmp_path / "a.json"), load(tmp_path / "b.json")
    assert a.temperature_ == pytest.approx(b.temperature_, rel=1e-9)


def test_multilabel(tmp_path, rng):
    z = rng.normal(size=(200, 3))
    y = (z + rng.logistic(size=z.shape) > 0).astype(int)
    np.savez(tmp_path / "val.npz", logits=z, labels=y)
    cal = tmp_path / "cal.json"
    result = run("fit", tmp_path / "val.npz", "-o", cal, "--task", "multilabel")
    assert result.exit_code == 0, result.output
    result = run("apply", cal, tmp_path / "val.npz", "-o", tmp_path / "out.npz")
    assert result.exit_code == 0, result.output
    written = Predictions.load(tmp_path / "out.npz")
    assert written.task == "multilabel"
    assert written.probs.shape == (200, 3)


def test_methods_lists_every_method():
    text = run("methods").stdout
    listed = json.loads(run("methods", "--json").stdout)
    assert [m["method"] for m in listed] == list(METHODS)
    for name in METHODS:
        assert name in text


@pytest.mark.parametrize(
    "arguments",
    [
        ("--method", "magic"),
        ("--set", "bins"),
        ("--set", "gamma=1"),
        ("--set", "task=both"),
        ("--set", "temperatures={}"),
        ("--objective", "accuracy"),
    ],
)
def test_wrong_settings_are_refused(files, tmp_path, arguments):
    result = run("fit", files["val"], "-o", tmp_path / "cal.json", *arguments)
    assert isinstance(result.exception, FocalcalError)
    assert "expected" in str(result.exception)
    assert not (tmp_path / "cal.json").exists()


def test_apply_corrects_for_other_class_shares(files, tmp_path):
    cal, out = tmp_path / "cal.json", tmp_path / "out.npz"
    run("fit", files["val"], "-o", cal)
    logits = np.load(files["test"])["logits"]
    shares = [0.4, 0.3, 0.2, 0.1]
    for given, expected in (
        ("0.4,0.3,0.2,0.1", PriorCorrection(target_prior=shares).wrap(load(cal))),
        ("estimate", PriorCorrection().wrap(load(cal)).adapt(logits)),
    ):
        result = run("apply", cal, files["test"], "-o", out, "--target-prior", given)
        assert result.exit_code == 0, result.output
        assert "corrected for class shares" in result.stderr
        written = Predictions.load(out).probs
        np.testing.assert_allclose(written, expected.predict_proba(logits), atol=1e-12)
    even = ["--train-prior", "0.25,0.25,0.25,0.25"]
    run("apply", cal, files["test"], "-o", out, "--target-prior", "0.4,0.3,0.2,0.1", *even)
    expected = PriorCorrection([0.25] * 4, shares).wrap(load(cal)).predict_proba(logits)
    np.testing.assert_allclose(Predictions.load(out).probs, expected, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--train-prior", "0.5,0.5"], "expected --target-prior with"),
        (["--target-prior", "0.7,0.1,0.1,0.1", "--by", "x"], "without --by"),
        (["--target-prior", "half"], "as numbers such as 0.9,0.1, got 'half'"),
        (["--target-prior", "0.5,0.5"], "expected target_prior as 4 numbers"),
    ],
)
def test_class_shares_that_make_no_sense_are_refused(files, tmp_path, options, message):
    cal, out = tmp_path / "cal.json", tmp_path / "out.npz"
    run("fit", files["val"], "-o", cal)
    with pytest.raises(FocalcalError, match=message):
        raise run("apply", cal, files["test"], "-o", out, *options).exception
    assert not out.exists()


def test_class_shares_are_estimated_from_one_file(files, tmp_path):
    cal = tmp_path / "cal.json"
    run("fit", files["val"], "-o", cal)
    options = ["-o", tmp_path / "out", "--target-prior", "estimate"]
    with pytest.raises(FocalcalError, match="expected one file to estimate from, got 2"):
        raise run("apply", cal, tmp_path / "*.npz", *options).exception


def test_a_calibrator_is_json_whatever_its_name_promises(files, tmp_path):
    result = run("fit", files["val"], "-o", tmp_path / "cal.onnx")
    assert isinstance(result.exception, FocalcalError)
    assert "expected a name ending in .json" in str(result.exception)
    assert not (tmp_path / "cal.onnx").exists()


def test_apply_never_overwrites_predictions(files, tmp_path):
    cal = tmp_path / "cal.json"
    run("fit", files["val"], "-o", cal)
    before = files["test"].read_bytes()
    result = run("apply", cal, files["test"], "-o", files["test"])
    assert "expected outputs apart from the inputs" in str(result.exception)
    assert files["test"].read_bytes() == before
    for week in ("1", "2"):  # files of one name in several folders
        (tmp_path / week).mkdir()
        Predictions.load(files[{"1": "val", "2": "test"}[week]]).save(tmp_path / week / "p.csv")
    assert run("apply", cal, tmp_path / "*/p.csv", "-o", tmp_path / "out").exit_code == 0
    sizes = [Predictions.load(tmp_path / "out" / week / "p.csv").n for week in ("1", "2")]
    assert sizes == [400, 90]
    for output in ("one", "one.csv"):  # a pattern of one file: a folder, or a file
        assert run("apply", cal, tmp_path / "1/*.csv", "-o", tmp_path / output).exit_code == 0
    assert (tmp_path / "one/p.csv").read_bytes() == (tmp_path / "one.csv").read_bytes()


@pytest.mark.parametrize("names", [None, ("yes", "no")])
def test_one_column_stays_one_column(tmp_path, rng, names):
    """So that its Brier score is counted alike before and after."""
    p = rng.uniform(size=400)
    y = (rng.random(400) < p).astype(int)
    given = Predictions(probs=p, labels=y, class_names=names)
    cal = tmp_path / "cal.json"
    for ending in ("npz", "parquet", "csv", "jsonl"):
        given.save(tmp_path / f"p.{ending}")
        run("fit", tmp_path / f"p.{ending}", "-o", cal)
        expected = load(cal).predict_proba(given.as_logits())[:, 1]
        out = tmp_path / f"out.{ending}"
        assert run("apply", cal, tmp_path / f"p.{ending}", "-o", out).exit_code == 0
        written = Predictions.load(out)
        np.testing.assert_allclose(written.probs, expected)
        np.testing.assert_array_equal(written.labels, y)
        assert written.class_names == names
    arguments = ("apply", cal, tmp_path / "p.parquet", "-o", tmp_path / "s.parquet")
    assert run(*arguments, "--engine", "stream").exit_code == 0
    np.testing.assert_allclose(Predictions.load(tmp_path / "s.parquet").probs, expected)


@pytest.mark.parametrize("ending", ["npz", "parquet"])
def test_files_in_another_class_order_than_the_calibrator(tmp_path, rng, ending):
    """Every command counts as right what is right by the names of the largest logit and label."""
    z, y = 2 * rng.normal(size=(300, 3)), rng.integers(0, 3, 300)
    cal, test, out = tmp_path / "cal.json", tmp_path / f"test.{ending}", tmp_path / f"o.{ending}"
    Predictions(logits=z, labels=y, class_names=("c", "a", "b")).save(tmp_path / "val.npz")
    run("fit", tmp_path / "val.npz", "-o", cal)
    y = np.where(rng.random(300) < 0.7, z.argmax(axis=1), y)
    names = ("a", "b", "c")
    Predictions(logits=z, labels=y, class_names=names).save(test)
    accuracy = np.mean([names[i] == names[j] for i, j in zip(z.argmax(axis=1), y)])
    parts = [[], ["--engine", "stream"]] if ending == "parquet" else [[]]
    for more in parts:
        assert run("apply", cal, test, "-o", out, *more).exit_code == 0
        written = Predictions.load(out)
        assert written.class_names == ("c", "a", "b")
        assert [written.class_names[i] for i in written.labels] == [names[i] for i in y]
        for file in (test, out):
            result = run("evaluate", file, "--classes", "b,c,a", "--json", *more)
            found = json.loads(result.stdout)["metrics"]
            assert found["accuracy"]["value"] == pytest.approx(accuracy)
    found = json.loads(run("compare", out, test, "--json").stdout)["metrics"]
    assert found["accuracy"]["second"] == pytest.approx(accuracy)
    result = run("monitor", tmp_path / "val.npz", test, "--calibrator", cal, "--json")
    assert json.loads(result.stdout)["batches"][0]["accuracy"]["value"] == pytest.approx(accuracy)
    result = run("decide", test, "--calibrator", cal, "--max-error", "0.9", "--json")
    assert 1 - json.loads(result.stdout)["error"]["value"] == pytest.approx(accuracy)
