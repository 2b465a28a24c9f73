"""`focalcal compare`: the verdict first, samples matched by id, JSON only."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from typer.testing import CliRunner

from focalcal import metrics
from focalcal.cli import app
from focalcal.predictions import Predictions

runner = CliRunner()


@pytest.fixture
def files(tmp_path, rng):
    z = 2 * rng.normal(size=(600, 3))
    y = np.argmax(z + rng.gumbel(size=z.shape), axis=1)
    ids = np.arange(600) + 1000
    paths = []
    for name, scale in (("sure", 3.0), ("fair", 1.0)):
        paths.append(tmp_path / f"{name}.npz")
        Predictions(logits=scale * z, labels=y, ids=ids).save(paths[-1])
    return paths


def compare(*arguments):
    result = runner.invoke(app, ["compare", *map(str, arguments), "--resamples", "99"])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def test_the_answer_is_in_the_first_line_and_fits(files):
    out = compare(*files)
    assert out.startswith("The second is better: log-loss (NLL) ")
    assert all(len(line) <= 80 for line in out.splitlines())
    accuracy = next(line for line in out.splitlines() if "accuracy, %" in line)
    assert accuracy.rstrip("│ ").endswith("–")


def test_files_of_one_name_are_told_apart_by_their_folders(files, tmp_path):
    for path in files:
        (tmp_path / path.stem).mkdir()
    first, second = (path.rename(tmp_path / path.stem / "test.npz") for path in files)
    assert "sure/test and fair/test: 600" in compare(first, second)


def test_no_word_is_broken_in_60_columns(files, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    out = compare(*files)
    assert all(len(line) <= 60 for line in out.splitlines())
    headings = [m.heading for m in metrics.METRICS.values() if m.show]
    assert {word for text in headings for word in text.split()} <= set(out.split())


def test_a_file_cannot_be_told_from_itself(files):
    assert compare(files[0], files[0]).startswith("The two cannot be told apart")


def test_an_infinite_loss_is_the_answer(tmp_path, rng):
    p = rng.dirichlet(np.ones(3), size=200)
    y = np.array([rng.choice(3, p=row) for row in p])
    zero = p.copy()
    zero[0, y[0]] = 0
    names = tmp_path / "some.npz", tmp_path / "zero.npz"
    for name, probs in zip(names, (p, zero / zero.sum(axis=1, keepdims=True))):
        Predictions(probs=probs, labels=y).save(name)
    for first, second, which in ((0, 1, "second"), (1, 0, "first"), (1, 1, "two")):
        out = compare(names[first], names[second])
        assert out.startswith(f"The {which} gave a probability of 0 to a class that occurred")


def test_json_equals_the_library(files):
    record = json.loads(compare(*files, "--json"))
    a, b = map(Predictions.load, files)
    found = metrics.compare(None, a, b, resamples=99)
    assert record["metrics"] == found.to_dict()["metrics"]
    assert record["verdict"].startswith("The second is better")


def test_samples_are_matched_by_id(files, tmp_path):
    whole = json.loads(compare(*files, "--json"))
    other = Predictions.load(files[1])
    mixed = tmp_path / "mixed.npz"
    other.take(np.random.default_rng(1).permutation(600)).save(mixed)
    record = json.loads(compare(files[0], mixed, "--json"))
    assert record["n"] == 600
    for name in ("nll", "accuracy"):
        assert record["metrics"][name]["second"] == pytest.approx(whole["metrics"][name]["second"])
    part = tmp_path / "part.npz"
    other.take(np.arange(100)).save(part)
    assert json.loads(compare(files[0], part, "--json"))["n"] == 100


@pytest.mark.parametrize("kind", [np.int32, np.float64, str, object])
def test_ids_of_other_types_are_matched(files, tmp_path, kind):
    other = Predictions.load(files[1])
    path = tmp_path / "other.npz"
    ids = other.ids.astype(kind)
    path = path.with_suffix(".csv") if kind is object else path
    dataclasses.replace(other, ids=ids).take(np.arange(300)[::-1]).save(path)
    found = json.loads(compare(files[0], path, "--json"))["metrics"]["nll"]
    first, second = (Predictions.load(f).take(np.arange(300)) for f in (files[0], path))
    second = second.take(np.arange(300)[::-1])
    for given, key in ((first, "first"), (second, "second")):
        own = -np.log(given.probabilities()[np.arange(300), given.labels]).mean()
        assert found[key] == pytest.approx(own)


def test_a_file_that_apply_wrote_is_compared_with_its_source(files, tmp_path):
    """Its columns are called `probs`, whatever the options call those of the source."""
    import pandas as pd

    from focalcal import calibrators

    p = Predictions.load(files[0])
    frame = pd.DataFrame(p.probabilities(), columns=["p_a", "p_b", "p_c"])
    frame["truth"] = np.array(["a", "b", "c"])[p.labels]
    frame.to_csv(tmp_path / "own.csv", index=False)
    calibrators.make("temperature").fit(p.logits, p.labels).save(tmp_path / "c.json")
    names = ["--probs-prefix", "p_"]
    own, out = tmp_path / "own.csv", tmp_path / "out.csv"
    arguments = ["apply", tmp_path / "c.json", own, "-o", out, *names]
    assert runner.invoke(app, [*map(str, arguments)]).exit_code == 0
    for first, second, better in ((own, out, "second"), (out, own, "first")):
        assert compare(first, second, *names, "--labels", "truth").startswith(f"The {better} is")
    bad = ["compare", own, own, "--probs-prefix", "q_", "--labels", "truth"]
    result = runner.invoke(app, [*map(str, bad)])
    assert "begin with 'q_'" in str(result.exception)


def test_an_option_that_fits_neither_file_is_an_error(files):
    """Columns of the usual names are there, but they are not those that were asked for."""
    result = runner.invoke(app, ["compare", *map(str, files), "--probs", "mine"])
    assert "expected 'mine'" in str(result.exception)


def test_samples_left_out_are_reported(files, tmp_path):
    path = tmp_path / "part.npz"
    Predictions.load(files[1]).take(np.arange(100)).save(path)
    result = runner.invoke(app, ["compare", str(files[0]), str(path), "--resamples", "9"])
    assert "100 samples have the same ids; 600 and 100 were given" in result.stderr


@pytest.mark.parametrize(
    ("ids", "rows", "message"),
    [
        (None, 500, "same samples in both files"),
        (np.zeros(600, int), 600, "each id once"),
        (np.arange(600), 600, "ids that both files have"),
    ],
)
def test_samples_that_do_not_match_are_errors(files, tmp_path, ids, rows, message):
    other = dataclasses.replace(Predictions.load(files[1]), ids=ids).take(np.arange(rows))
    path = tmp_path / "other.npz"
    other.save(path)
    result = runner.invoke(app, ["compare", str(files[0]), str(path)])
    assert message in str(result.exception)
