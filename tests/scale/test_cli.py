"""evaluate, fit and apply over many files, as typed in a shell."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from focalcal import calibrators, metrics
from focalcal.cli import app
from focalcal.errors import FileFormatError, NoRowsError
from focalcal.formats import write_table
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
    assert "over the files" in run("fit", pattern, "-o", saved, "--method", "temperature")

    assert f"{ROWS:,} rows" in run("apply", saved, pattern, "-o", tmp_path / "out")
    out = Source.open(tmp_path / "out")
    found = np.concatenate([b.probs for p in out.partitions for b in p.batches()])
    np.testing.assert_allclose(found, there.predict_proba(z), atol=1e-6)


def test_a_scheduler_needs_the_engine(pattern):
    result = runner.invoke(app, ["evaluate", pattern, "--scheduler", "tcp://127.0.0.1:1"])
    assert "expected --engine dask" in str(result.exception)


@pytest.mark.parametrize("command", ["evaluate", "fit"])
def test_options_of_the_input_apply_to_parts_too(pattern, tmp_path, command):
    output = ["-o", str(tmp_path / "c.json")] if command == "fit" else []
    for option, value in (("--task", "multilabel"), ("--id", "none")):
        result = runner.invoke(app, [command, pattern, *output, option, value])
        assert isinstance(result.exception, FileFormatError)
        expected = "a single-label task" if option == "--task" else "the ids 'none'"
        assert f"expected {expected}" in str(result.exception)


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


def test_named_columns_are_put_in_the_order_of_the_fit(memory, tmp_path):
    z, y = memory
    z, y = z[:600, :3], y[:600] % 3
    names = ("cat", "dog", "eel")
    Predictions(logits=z, labels=y, class_names=names).save(tmp_path / "val.npz")
    saved = tmp_path / "v.json"
    run("fit", tmp_path / "val.npz", "-o", saved, "--method", "vector")
    wide = {f"logits_{name}": z[:, j] for j, name in enumerate(names)}
    write_table(tmp_path / "wide.parquet", dict(reversed(wide.items())), {})
    out = tmp_path / "out.parquet"
    run("apply", saved, tmp_path / "wide.parquet", "-o", out, "--engine", "stream")
    found = Predictions.load(out, labels_required=False)
    assert found.class_names == names
    np.testing.assert_allclose(found.probs, calibrators.load(saved).predict_proba(z))
    write_table(tmp_path / "x.parquet", {f"{name}y": x for name, x in wide.items()}, {})
    command = [
        "apply",
        str(saved),
        str(tmp_path / "x.parquet"),
        "-o",
        "y.parquet",
        "--engine=stream",
    ]
    assert "expected the classes cat, dog, eel" in str(runner.invoke(app, command).exception)


def test_the_column_of_a_named_class_is_that_of_the_fit(memory, tmp_path):
    rows = np.arange(200)
    write_table(tmp_path / "val.parquet", {"prob_spam": (rows + 1) / 202, "y": rows // 100}, {})
    run("fit", tmp_path / "val.parquet", "-o", tmp_path / "p.json", "--classes", "ham,spam")
    apply = ("apply", tmp_path / "p.json", tmp_path / "val.parquet", "-o")
    for name, more in (("memory", []), ("parts", ["--engine", "stream"])):
        run(*apply, tmp_path / f"{name}.parquet", *more)
    memory, parts = (Predictions.load(tmp_path / f"{x}.parquet") for x in ("memory", "parts"))
    assert memory.class_names == parts.class_names == ("ham", "spam")
    np.testing.assert_array_equal(memory.probs, parts.probs)


def test_apply_needs_no_labels_in_parts_either(memory, tmp_path):
    z, y = memory
    saved = tmp_path / "t.json"
    calibrators.make("temperature").fit(z, y).save(saved)
    labels = pa.array([None, *y[1:100].tolist()])
    pq.write_table(pa.table({"logits": list(z[:100]), "labels": labels}), tmp_path / "p.parquet")
    for name, more in (("memory", []), ("parts", ["--engine", "stream"])):
        run("apply", saved, tmp_path / "p.parquet", "-o", tmp_path / f"{name}.parquet", *more)
    memory, parts = (pq.read_table(tmp_path / f"{x}.parquet") for x in ("memory", "parts"))
    assert memory.equals(parts)
    with pytest.raises(FileFormatError, match="label at row 0 is missing"):
        Source.open(tmp_path / "p.parquet")


def test_a_folder_of_parquet_files_is_read_whole_where_parts_are_not(memory, tmp_path):
    z, y = memory
    folder = tmp_path / "parts"
    folder.mkdir()
    Predictions(logits=z, labels=y).save(tmp_path / "whole.npz")
    for name, rows in (("a", slice(0, 5000)), ("b", slice(5000, None))):
        Predictions(logits=z[rows], labels=y[rows]).save(folder / f"{name}.parquet")
    goal = ("--review-budget", "0.5", "--json")
    assert run("decide", folder, *goal) == run("decide", tmp_path / "whole.npz", *goal)


def test_options_that_only_memory_knows_are_refused(pattern):
    for options, message in (
        (["--format", "lm-eval"], "expected --format with one file and no engine"),
        (["--task", "multilabel"], "expected a single-label task"),
        (["--id", "nope"], "expected the ids 'nope'"),
    ):
        result = runner.invoke(app, ["evaluate", pattern, "--engine", "stream", *options])
        assert message in str(result.exception)


def test_apply_in_parts_keeps_and_adds_the_provenance(memory, tmp_path):
    z, y = memory
    saved = tmp_path / "t.json"
    calibrators.make("temperature").fit(z, y).save(saved)
    names = ("a", "b", "c", "d")
    given = Predictions(logits=z[:90], labels=y[:90], class_names=names, provenance={"seed": 3})
    given.save(tmp_path / "p.parquet")
    order = ["--classes", "d,c,b,a"]
    for name, more in (("memory", order), ("parts", [*order, "--engine", "stream"])):
        run("apply", saved, tmp_path / "p.parquet", "-o", tmp_path / f"{name}.parquet", *more)
    memory, parts = (Predictions.load(tmp_path / f"{x}.parquet") for x in ("memory", "parts"))
    assert memory.class_names == parts.class_names == names[::-1]
    np.testing.assert_array_equal(memory.probs, parts.probs)
    step = {"calibrator": {"method": "temperature", "file": "t.json"}}
    assert memory.provenance == parts.provenance == {"seed": 3} | step


@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl"])
def test_files_without_rows_are_left_out_by_every_command(memory, tmp_path, ending):
    z, y = memory
    names = ("a", "none", "z")
    for name, rows in zip(names, (slice(0, 400), slice(0, 0), slice(400, 1000))):
        table = {f"logits_{j}": z[rows, j] / 2 for j in range(4)} | {"labels": y[rows]}
        write_table(tmp_path / "in" / f"{name}.{ending}", table, {})
    whole = tmp_path / "whole.npz"
    Predictions(logits=z[:1000] / 2, labels=y[:1000]).save(whole)
    pattern = tmp_path / "in" / f"*.{ending}"
    for command in (["evaluate"], ["decide", "--max-error", "0.1"], ["compare", whole]):
        found = json.loads(run(*command, pattern, "--json"))
        assert found["n"] == 1000
    record = json.loads(run("monitor", whole, pattern, "--json"))
    assert [batch["n"] for batch in record["batches"]] == [400, 600]
    run("fit", pattern, "-o", tmp_path / "t.json")
    assert "1,000 rows" in run("apply", tmp_path / "t.json", pattern, "-o", tmp_path / "out")
    assert sorted(path.stem for path in (tmp_path / "out").iterdir()) == ["a", "z"]
    for alone in (tmp_path / "in" / f"none.{ending}", tmp_path / "in" / f"n*.{ending}"):
        result = runner.invoke(app, ["evaluate", str(alone)])
        assert isinstance(result.exception, NoRowsError)
        assert "rows" in str(result.exception)


def test_several_files_without_rows_are_an_error(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.csv").write_text("probs,labels\n")
    result = runner.invoke(app, ["evaluate", str(tmp_path / "*.csv")])
    assert "b.csv has a header but no rows" in str(result.exception)


def test_slices_by_numbers_as_texts_are_said_to_be_texts(tmp_path, rng):
    p = rng.uniform(size=300)
    table = {"probs": p, "labels": (rng.random(300) < p).astype(int)}
    table |= {"age": np.array([f"{a}.50" for a in range(30)] * 10, dtype=object)}
    write_table(tmp_path / "p.parquet", table, {})
    in_parts = ["evaluate", str(tmp_path / "p.parquet"), "--by", "age", "--engine", "stream"]
    result = runner.invoke(app, in_parts)
    assert "column 'age' holds numbers as text; when read in parts, each text is" in result.stderr
    assert "age=7.50" in result.stdout
