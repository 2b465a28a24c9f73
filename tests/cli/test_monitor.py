"""`focalcal monitor`: exit code 3 on alarm, a state to go on from, a page, batches by column."""

from __future__ import annotations

import functools
import json
import operator

import numpy as np
import pytest
from typer.testing import CliRunner

from focalcal import calibrators
from focalcal.cli import app
from focalcal.errors import FileFormatError, InputError
from focalcal.formats import write_table
from focalcal.metrics import Monitor
from focalcal.predictions import Predictions

runner = CliRunner()


def draw(rng, n, honesty=1.0):
    z = 2 * rng.normal(size=(n, 3))
    return z, np.argmax(honesty * z + rng.gumbel(size=z.shape), axis=1)


@pytest.fixture
def folder(tmp_path, rng):
    z, y = draw(rng, 1500)
    np.savez(tmp_path / "reference.npz", logits=z, labels=y)
    (tmp_path / "weeks").mkdir()
    for week in range(1, 7):
        z, y = draw(rng, 400, honesty=1.0 if week < 4 else 0.4)
        np.savez(tmp_path / "weeks" / f"week{week}.npz", logits=z, labels=y)
    return tmp_path


def run(*arguments, code=0):
    result = runner.invoke(app, ["monitor", *map(str, arguments)])
    assert result.exit_code == code, (result.output, result.exception)
    return result.stdout


def test_quiet_weeks_end_with_0_and_an_alarm_with_3(folder):
    weeks = folder / "weeks"
    calm = run(folder / "reference.npz", *(weeks / f"week{i}.npz" for i in (1, 2, 3)))
    assert calm.startswith("No alarm after 3 batches.")
    out = run(folder / "reference.npz", weeks / "*.npz", code=3)
    assert out.startswith("Alarm: not calibrated since week4.npz")
    assert all(len(line) <= 80 for line in out.splitlines())
    assert "Do not rely on the expected accuracy" in out


def test_the_shown_interval_is_its_own_and_ends_at_100(folder):
    one = folder / "one.npz"
    np.savez(one, logits=[[0.0, 4.0, 0.0]], labels=[1])
    e = json.loads(run(folder / "reference.npz", one, "--json"))["batches"][0]["expected_accuracy"]
    assert e["high"] == 1
    assert f" {100 * e['low']:.1f} – 100.0 " in run(folder / "reference.npz", one)


def test_a_state_goes_on_and_known_batches_are_left_out(folder):
    state, weeks = folder / "monitor.json", folder / "weeks"
    run(folder / "reference.npz", weeks / "week1.npz", weeks / "week2.npz", "--state", state)
    record = json.loads(run(state, weeks / "*.npz", "--state", state, "--json", code=3))
    whole = json.loads(run(folder / "reference.npz", weeks / "*.npz", "--json", code=3))
    assert record == whole
    assert len(Monitor.from_json(state.read_text()).results) == 6


def test_a_state_with_other_batches_is_not_overwritten(folder):
    state, weeks = folder / "monitor.json", folder / "weeks"
    run(folder / "reference.npz", weeks / "week1.npz", "--state", state)
    before = state.read_bytes()
    arguments = ["monitor", folder / "reference.npz", weeks / "week2.npz", "--state", state]
    result = runner.invoke(app, [*map(str, arguments)])
    assert "got no week1.npz; to continue from that state give it" in str(result.exception)
    assert state.read_bytes() == before
    # From the reference with all files, labels that came later are read.
    run(folder / "reference.npz", weeks / "week1.npz", weeks / "week2.npz", "--state", state)
    assert len(Monitor.from_json(state.read_text()).results) == 2


def test_weeks_are_in_the_order_of_their_numbers(folder):
    weeks = folder / "weeks"
    (weeks / "week6.npz").rename(weeks / "week10.npz")
    record = json.loads(run(folder / "reference.npz", weeks / "*.npz", "--json", code=3))
    names = [f"week{i}.npz" for i in (1, 2, 3, 4, 5, 10)]
    assert [b["name"] for b in record["batches"]] == names
    assert record["alarms"]["calibrated"] == "week4.npz"


def test_other_samples_under_a_known_name_are_refused(folder):
    state, weeks = folder / "monitor.json", folder / "weeks"
    run(folder / "reference.npz", weeks / "week1.npz", "--state", state)
    (folder / "later").mkdir()
    other = (weeks / "week5.npz").rename(folder / "later" / "week1.npz")
    for reference in (state, folder / "reference.npz"):
        arguments = ["monitor", reference, weeks / "week1.npz", weeks / "week1.npz", other]
        result = runner.invoke(app, [*map(str, arguments)])
        assert isinstance(result.exception, InputError)
        assert "got two named week1.npz: 400 samples" in str(result.exception)


def test_a_state_keeps_its_settings(folder):
    state, week = folder / "monitor.json", folder / "weeks" / "week1.npz"
    run(folder / "reference.npz", "--level", "0.9", "--state", state)
    assert json.loads(run(state, week, "--level", "0.9", "--json"))["level"] == 0.9
    for option, value in (("--level", "0.99"), ("--tolerance", "0.1")):
        result = runner.invoke(app, ["monitor", str(state), str(week), option, value])
        assert isinstance(result.exception, InputError)
        assert f"expected the {option[2:]} of {state}" in str(result.exception)


def test_a_state_that_is_missing_is_said(folder):
    result = runner.invoke(app, ["monitor", str(folder / "none.json")])
    assert isinstance(result.exception, FileFormatError)
    assert "the first run starts from the reference" in str(result.exception)


def test_a_file_that_is_no_state_is_not_overwritten(folder):
    calibrator = folder / "cal.json"
    calibrator.write_text('{"format": "focalcal-calibrator", "version": 1}')
    before = calibrator.read_bytes()
    arguments = ["monitor", folder / "reference.npz", "--state", calibrator]
    result = runner.invoke(app, [*map(str, arguments)])
    assert "got: focalcal-calibrator version 1" in str(result.exception)
    assert calibrator.read_bytes() == before


def test_the_page_shows_the_course(folder):
    page = folder / "monitor.html"
    run(folder / "reference.npz", folder / "weeks" / "*.npz", "-o", page, code=3)
    text = page.read_text()
    assert "Alarm: not calibrated since week4.npz" in text
    for part in ("fig-accuracy", "fig-evidence", "fig-metrics", "smooth"):
        assert part in text


def test_batches_by_a_column_and_without_labels(folder, rng):
    z, _ = draw(rng, 900)
    week = np.repeat(["2026-01", "2026-02", "2026-03"], 300)
    path = folder / "quarter.parquet"
    Predictions(logits=z, extra={"week": week}).save(path)
    record = json.loads(run(folder / "reference.npz", path, "--by", "week", "--json"))
    assert [b["name"] for b in record["batches"]] == ["2026-01", "2026-02", "2026-03"]
    assert all(b["accuracy"] is None for b in record["batches"])


@pytest.mark.parametrize("ending", ["npz", "csv", "parquet", "jsonl"])
def test_labels_that_have_arrived_are_used(folder, rng, ending):
    """As if the rows with labels, and those without, had been given to the monitor apart."""
    import pandas as pd

    z, y = draw(rng, 900, honesty=0.4)
    week, known = np.repeat([1, 2, 3], 300), np.arange(900) % 300 < [[300], [200], [0]]
    known = known[week - 1, np.arange(900)]
    labels, path = np.where(known, y, np.nan), folder / f"log.{ending}"
    if ending == "npz":
        np.savez(path, logits=z, label=labels, week=week)
    else:
        frame = pd.DataFrame(z, columns=["logits_0", "logits_1", "logits_2"])
        frame = frame.assign(label=pd.array(labels).astype("Int64"), week=week)
        write = {"csv": frame.to_csv, "parquet": frame.to_parquet}
        if ending == "jsonl":
            frame.to_json(path, orient="records", lines=True)
        else:
            write[ending](path, index=False)
    reference = Predictions.load(folder / "reference.npz")
    monitor = Monitor(reference.labels, reference.probabilities())
    p = Predictions(logits=z).probabilities()
    for name in (1, 2, 3):
        some, rest = (week == name) & known, (week == name) & ~known
        parts = [monitor.summarise(p[some], y[some])] if some.any() else []
        parts += [monitor.summarise(p[rest])] if rest.any() else []
        monitor.update(str(name), functools.reduce(operator.add, parts))
    state = folder / "state.json"
    result = runner.invoke(
        app,
        ["monitor", *map(str, (folder / "reference.npz", path, "--by", "week", "--state", state))],
    )
    assert result.exit_code == 3, result.output
    assert f"log.{ending}: 500 of 900 rows have labels" in result.stderr
    found = Monitor.from_json(state.read_text(encoding="utf-8"))
    assert [r.labelled for r in found.results] == [300, 200, 0]
    for got, want in zip(found.results, monitor.results):
        assert got.p_values == pytest.approx(want.p_values)
        assert got.metrics == pytest.approx(want.metrics)
        assert got.expected_accuracy.value == pytest.approx(want.expected_accuracy.value)


def test_columns_of_labels_may_miss_them_in_different_rows(folder, rng):
    z, y = draw(rng, 300)
    columns = {f"logits_{j}": z[:, j] for j in range(3)}
    labels = {f"label_{j}": (y == j).astype(object) for j in range(3)}
    labels["label_0"][:40] = labels["label_2"][30:100] = ""
    write_table(folder / "day.csv", columns | labels, {})
    record = json.loads(run(folder / "reference.npz", folder / "day.csv", "--json"))
    accuracy = record["batches"][0]["accuracy"]
    assert accuracy["n"] == 200
    assert accuracy["value"] == pytest.approx(np.mean(z.argmax(axis=1)[100:] == y[100:]))


def test_rows_of_a_batch_may_lie_in_several_files(folder, rng):
    z, y = draw(rng, 2000)
    week = np.repeat(["9", "10"], 1000)
    shuffled = rng.permutation(2000)
    (folder / "days").mkdir()
    for i, rows in enumerate([np.arange(2000), *np.split(shuffled, 4)]):
        found = Predictions(logits=z[rows], labels=y[rows], extra={"week": week[rows]})
        found.save(folder / "days" / f"{i}.npz")
    whole, parts = (
        json.loads(run(folder / "reference.npz", *files, "--by", "week", "--json"))["batches"]
        for files in ([folder / "days/0.npz"], [folder / "days/[1-4].npz"])
    )
    assert [(b["name"], b["n"]) for b in parts] == [("9", 1000), ("10", 1000)]
    for one, joined in zip(whole, parts):
        assert one["p_values"] == pytest.approx(joined["p_values"])
        assert one["metrics"]["ece"] == pytest.approx(joined["metrics"]["ece"])


def test_a_calibrator_is_applied_first(folder):
    with np.load(folder / "reference.npz") as data:
        logits, labels = data["logits"], data["labels"]
    np.savez(folder / "sure.npz", logits=3 * logits, labels=labels)
    calibrators.TemperatureScaling().fit(3 * logits, labels).save(folder / "cal.json")
    run(folder / "sure.npz", folder / "sure.npz", code=3)
    run(folder / "sure.npz", folder / "sure.npz", "--calibrator", folder / "cal.json")


def test_no_batches_yet_only_saves_the_reference(folder):
    state = folder / "monitor.json"
    assert run(folder / "reference.npz", "--state", state).startswith("No alarm after 0 batches.")
    assert Monitor.from_json(state.read_text()).results == []


def test_files_that_are_missing_are_said(folder):
    result = runner.invoke(app, ["monitor", str(folder / "reference.npz"), "no/*.npz"])
    assert "no files at no/*.npz" in str(result.exception)


def test_multilabel_files_are_refused(folder):
    path = folder / "many.npz"
    Predictions(probs=np.full((4, 3), 0.5), labels=np.zeros((4, 3), int), task="multilabel").save(
        path
    )
    result = runner.invoke(app, ["monitor", str(path)])
    assert "single-label" in str(result.exception)


@pytest.mark.parametrize("ending", ["parquet", "csv", "npz"])
def test_batches_are_joined_though_files_have_numbers_of_other_types(folder, rng, ending):
    """pandas stores weeks as floats where one is missing."""
    z, y = draw(rng, 900)
    week = np.repeat([1, 2, 3], 300)
    (folder / "days").mkdir()
    for i, rows in enumerate(np.split(np.arange(900), [400])):
        values = week[rows].astype(float) if i else week[rows]
        if i:
            values[-1] = np.nan
        given = Predictions(logits=z[rows], labels=y[rows], extra={"week": values})
        given.save(folder / "days" / f"{i}.{ending}")
    files = folder / "days" / f"*.{ending}"
    record = json.loads(run(folder / "reference.npz", files, "--by", "week", "--json"))
    sizes = {b["name"]: b["n"] for b in record["batches"]}
    assert sizes == {"1": 300, "2": 300, "3": 299, "nan": 1}


@pytest.mark.parametrize(("option", "ending"), [("--state", ".json"), ("-o", ".html")])
def test_files_to_write_have_the_endings_by_which_they_are_read(folder, option, ending):
    """A state of another ending could not be given in place of the reference."""
    path = folder / "monitor.txt"
    result = runner.invoke(app, ["monitor", str(folder / "reference.npz"), option, str(path)])
    assert isinstance(result.exception, InputError)
    assert str(result.exception).startswith(f"expected a name ending in {ending}")
    assert not path.exists()


@pytest.mark.filterwarnings("ignore:labels are text")
def test_a_batch_may_lack_a_class_that_the_reference_has(folder, rng):
    """Batches are read with the class names of the reference, as a week without fraud."""
    p = rng.random(600)
    labels = np.where(rng.random(600) < p, "fraud", "genuine")
    for name, rows in (("reference", labels != ""), ("week", labels == "genuine")):
        table = {"y_prob": 1 - p[rows], "label": labels[rows].astype(object)}
        write_table(folder / f"{name}.csv", table, {})
    genuine, state = labels == "genuine", folder / "state.json"
    run(folder / "reference.csv", "--state", state)
    whole, resumed = (
        json.loads(
            runner.invoke(app, ["monitor", str(first), str(folder / "week.csv"), "--json"]).stdout
        )
        for first in (folder / "reference.csv", state)
    )
    assert whole == resumed
    (batch,) = whole["batches"]
    assert (batch["labelled"], batch["accuracy"]["n"]) == (genuine.sum(), genuine.sum())
    assert batch["accuracy"]["value"] == pytest.approx(np.mean(1 - p[genuine] > 0.5))
