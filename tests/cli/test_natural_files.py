"""Files as people have them go through evaluate, fit, apply and report without conversion."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from scipy.special import expit, softmax
from typer.testing import CliRunner

from focalcal.calibrators import TemperatureScaling, load
from focalcal.cli import app
from focalcal.formats import read_table
from focalcal.predictions import Predictions

runner = CliRunner()
CLASSES = ["negative", "neutral", "positive"]


def run(*arguments):
    result = runner.invoke(app, [str(a) for a in arguments])
    assert result.exit_code == 0, (result.output, result.exception)
    return result


def draw(seed: int, n: int = 300, k: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Over-confident logits and their labels."""
    rng = np.random.default_rng(seed)
    z = 3 * rng.normal(size=(n, k))
    return z, np.argmax(z / 2 + rng.gumbel(size=z.shape), axis=1)


def through(
    folder: Path,
    val: Path,
    test: Path,
    *options: str,
    out: str | None = None,
    floor: str | None = None,
) -> Path:
    """Evaluate, fit, apply, evaluate what was written, report; the calibrated file."""
    before = json.loads(run("evaluate", test, *options, "--resamples", 20, "--json").stdout)
    options = (*options, "--floor", floor) if floor else options
    run("fit", val, "-o", folder / "cal.json", *options)
    calibrated = folder / (out or f"calibrated{''.join(test.suffixes)}")
    run("apply", folder / "cal.json", test, "-o", calibrated, *options)
    after = json.loads(run("evaluate", calibrated, "--resamples", 20, "--json").stdout)
    assert after["n"] == before["n"]
    assert after["metrics"]["nll"]["value"] < before["metrics"]["nll"]["value"]
    few = ("--methods", "temperature", "--resamples", 5)
    run("report", "--val", val, "--test", test, "-o", folder / "r.json", *few, *options)
    page = json.loads((folder / "r.json").read_text())
    assert page["models"][0]["before"]["evaluation"]["n"] == before["n"]
    return calibrated


def class_names_of(folder: Path) -> tuple[list[str], list[str]]:
    """The class names in the calibrator's file and in the report."""
    page = json.loads((folder / "r.json").read_text())
    return list(load(folder / "cal.json").class_names_), page["models"][0]["class_names"]


def write_csv(path: Path, rows: list[dict], delimiter: str = ",") -> None:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt", newline="", encoding="utf-8") as f:
        writer = csv.DictWriter(f, list(rows[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)


def read_csv(path: Path) -> list[dict]:
    with path.open(newline="", encoding="utf-8") as f:
        return list(csv.DictReader(f))


def test_csv_with_text_labels(tmp_path):
    """The order of the columns is not the alphabetical order of the names."""
    names = ["low", "medium", "high"]
    for seed, file in enumerate(("val.csv", "test.csv")):
        z, y = draw(seed)
        p = softmax(z, axis=1)
        rows = [
            {"ticket": f"{i:05d}", "label": names[y[i]]}
            | {f"p_{name}": p[i, j] for j, name in enumerate(names)}
            for i in range(len(y))
        ]
        write_csv(tmp_path / file, rows)
    options = ("--probs-prefix", "p_")
    calibrated = through(tmp_path, tmp_path / "val.csv", tmp_path / "test.csv", *options)
    given, written = read_csv(tmp_path / "test.csv"), read_csv(calibrated)
    assert list(written[0]) == ["ticket", "label", "probs_low", "probs_medium", "probs_high"]
    assert [row["ticket"] for row in written] == [row["ticket"] for row in given]
    assert [row["label"] for row in written] == [row["label"] for row in given]
    assert class_names_of(tmp_path) == (names, names)
    again = Predictions.load(calibrated)
    assert again.class_names == tuple(names)
    assert (again.labels == draw(1)[1]).all()


def test_what_was_taken_is_said_and_json_stays_json(tmp_path):
    z, y = draw(0)
    frame = pd.DataFrame(z, columns=[f"logits_{name}" for name in CLASSES])
    frame.assign(y=[CLASSES[i] for i in y], id=range(300), country="FI").to_csv(
        tmp_path / "p.csv", index=False
    )
    result = run("evaluate", tmp_path / "p.csv", "--resamples", 5, "--json")
    json.loads(result.stdout)
    for said in ("logits from logits_negative, ", "labels from y", "ids from id", ": country"):
        assert said in result.stderr
    assert run("evaluate", tmp_path / "p.csv", "--resamples", 5, "-q").stderr == ""


def test_parquet_with_an_id_and_a_country(tmp_path):
    for seed, file in enumerate(("val.parquet", "test.parquet")):
        z, y = draw(seed)
        frame = pd.DataFrame(
            {"id": [f"x{i}" for i in range(300)], "country": ["FI", None, "SE"] * 100}
        )
        frame["seen"] = pd.Timestamp("2026-01-01", tz="UTC")
        frame["logits"] = list(z.astype(np.float32))
        frame["label"] = y
        frame.sample(frac=1, random_state=seed).to_parquet(tmp_path / file)
    calibrated = through(tmp_path, tmp_path / "val.parquet", tmp_path / "test.parquet")
    given, written = pd.read_parquet(tmp_path / "test.parquet"), pd.read_parquet(calibrated)
    assert set(written) >= {"id", "country", "seen", "probs", "label"}
    for name in ("id", "country", "seen", "label"):
        assert written[name].tolist() == given[name].tolist()
    expected = load(tmp_path / "cal.json").predict_proba(np.stack(given["logits"]))
    np.testing.assert_allclose(np.stack(written["probs"]), expected, rtol=1e-6)


def test_binary_file_with_one_probability(tmp_path):
    for seed, file in enumerate(("val.csv", "test.csv")):
        z, _ = draw(seed, k=2)
        s = z[:, 1]
        y = np.random.default_rng(seed).random(300) < expit(s / 2)
        rows = [{"score": expit(a), "y": "spam" if b else "ham"} for a, b in zip(s, y)]
        write_csv(tmp_path / file, rows)
    options = ("--classes", "ham,spam")
    calibrated = through(tmp_path, tmp_path / "val.csv", tmp_path / "test.csv", *options)
    assert list(read_csv(calibrated)[0]) == ["probs_spam", "y"]
    assert class_names_of(tmp_path)[0] == ["ham", "spam"]


def test_float16_probabilities(tmp_path):
    for seed, file in enumerate(("val.npz", "test.npz")):
        z, y = draw(seed, k=10)
        p = softmax(z, axis=1).astype(np.float16)
        assert (p.sum(axis=1, dtype=float) != 1).any()
        np.savez(tmp_path / file, probs=p, labels=y)
    through(tmp_path, tmp_path / "val.npz", tmp_path / "test.npz", floor="1e-7")


@pytest.mark.parametrize(("kind", "times"), [(np.float16, 1), (np.float32, 0), (np.float64, 0)])
def test_rescaled_rows_are_said_once(tmp_path, kind, times):
    z, y = draw(0, k=10)
    np.savez(tmp_path / "p.npz", probs=softmax(z, axis=1).astype(kind), labels=y)
    for command in (["evaluate", "--resamples", "2"], ["compare", str(tmp_path / "p.npz")]):
        done = run(*command, str(tmp_path / "p.npz"))
        assert done.stderr.count("rescaled to sum to 1") == times, done.stderr


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames_with_named_columns(tmp_path, library):
    """In Python from the frame itself, on the command line from what the frame saved."""
    fitted = None
    for seed, file in enumerate(("val.parquet", "test.parquet")):
        z, y = draw(seed)
        columns = {f"score {name}": z[:, j] for j, name in enumerate(CLASSES)}
        texts = [CLASSES[i] for i in y]
        if library == "pandas":
            labels = pd.Categorical(texts, categories=CLASSES)
            frame = pd.DataFrame({**columns, "truth": labels}, index=range(1000, 1300))
            frame.to_parquet(tmp_path / file)
        else:
            labels = pl.Series(texts, dtype=pl.Enum(CLASSES))
            frame = pl.DataFrame({**columns, "truth": labels})
            frame.write_parquet(tmp_path / file)
        p = Predictions.from_frame(frame, logits=list(columns), labels="truth", classes=CLASSES)
        assert p.class_names == tuple(CLASSES)
        np.testing.assert_array_equal(p.labels, y)
        np.testing.assert_array_equal(p.logits, z)
        fitted = fitted or TemperatureScaling().fit(p.logits, p.labels)
    names = ",".join(f"score {name}" for name in CLASSES)
    options = ("--logits", names, "--labels", "truth", "--classes", ",".join(CLASSES))
    paths = (tmp_path / "val.parquet", tmp_path / "test.parquet")
    run("evaluate", paths[1], *options, "--resamples", 5)
    run("fit", paths[0], "-o", tmp_path / "cal.json", *options)
    assert load(tmp_path / "cal.json").temperature_ == fitted.temperature_
    assert load(tmp_path / "cal.json").class_names_ == tuple(CLASSES)
    run("apply", tmp_path / "cal.json", paths[1], "-o", tmp_path / "c.parquet", *options)
    few = ("--methods", "temperature", "--resamples", 5)
    run("report", "--val", paths[0], "--test", paths[1], "-o", tmp_path / "r.md", *few, *options)
    written = Predictions.load(tmp_path / "c.parquet", labels_key="truth")
    np.testing.assert_array_equal(written.labels, draw(1)[1])


@pytest.mark.parametrize("suffix", ["npz", "csv", "parquet"])
def test_multilabel(tmp_path, suffix):
    names = ["sport", "politics", "music"]
    for seed, part in enumerate(("val", "test")):
        rng = np.random.default_rng(seed)
        z = 3 * rng.normal(size=(300, 3))
        y = (z / 2 + rng.logistic(size=z.shape) > 0).astype(int)
        p = Predictions(logits=z, labels=y, task="multilabel", class_names=names)
        p.save(tmp_path / f"{part}.{suffix}")
    paths = tmp_path / f"val.{suffix}", tmp_path / f"test.{suffix}"
    calibrated = through(tmp_path, *paths)
    record = json.loads(run("evaluate", calibrated, "--resamples", 20, "--json").stdout)
    assert list(record["labels"]) == names
    text = run("evaluate", calibrated, "--resamples", 20).stdout
    assert all(name in text for name in names)
    page = json.loads((tmp_path / "r.json").read_text())
    assert [model["name"] for model in page["models"]] == [f"model: {name}" for name in names]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_weekly_batches(tmp_path, suffix):
    weeks = tmp_path / "weeks"
    weeks.mkdir()
    for week in range(4):
        z, y = draw(week)
        frame = pd.DataFrame(z, columns=[f"logits_{j}" for j in range(3)])
        frame = frame.assign(labels=y, id=[f"{week}-{i}" for i in range(300)], week=week)
        if suffix == "csv":
            frame.to_csv(weeks / f"{week}.csv", index=False)
        else:
            frame.to_parquet(weeks / f"{week}.parquet")
    pattern = weeks / f"[12].{suffix}"
    record = json.loads(run("evaluate", pattern, "--json").stdout)
    assert record["n"] == 600
    run("fit", pattern, "-o", tmp_path / "cal.json")
    z = np.concatenate([draw(1)[0], draw(2)[0]])
    expected = TemperatureScaling().fit(z, np.concatenate([draw(1)[1], draw(2)[1]]))
    assert load(tmp_path / "cal.json").temperature_ == pytest.approx(
        expected.temperature_, rel=1e-6
    )
    run("apply", tmp_path / "cal.json", pattern, "-o", tmp_path / "out")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [f"1.{suffix}", f"2.{suffix}"]
    for week in (1, 2):
        table, _ = read_table(tmp_path / "out" / f"{week}.{suffix}")
        ids = [str(x) for x in table["id"]]
        assert ids == [f"{week}-{i}" for i in range(300)]
        assert [int(str(y)) for y in table["labels"]] == draw(week)[1].tolist()
    few = ("--methods", "temperature", "--resamples", 5)
    test = weeks / f"3.{suffix}"
    run("report", "--val", weeks / f"0.{suffix}", "--test", test, "-o", tmp_path / "r.html", *few)


def test_a_thousand_classes(tmp_path):
    for seed, file in enumerate(("val.npz", "test.npz")):
        z, y = draw(seed, n=300, k=1000)
        np.savez(tmp_path / file, logits=(2 * z).astype(np.float32), labels=y)
    through(tmp_path, tmp_path / "val.npz", tmp_path / "test.npz")


def test_spreadsheet_with_semicolons_and_decimal_commas(tmp_path):
    for seed, file in enumerate(("val.csv", "test.csv")):
        z, y = draw(seed)
        p = softmax(z, axis=1)
        rows = [
            {"Kunde": "Müller; Söhne", "label": CLASSES[y[i]]}
            | {f"prob_{n}": f"{p[i, j]:.9f}".replace(".", ",") for j, n in enumerate(CLASSES)}
            for i in range(len(y))
        ]
        write_csv(tmp_path / file, rows, delimiter=";")
    calibrated = through(tmp_path, tmp_path / "val.csv", tmp_path / "test.csv", floor="1e-9")
    assert read_csv(calibrated)[0]["Kunde"] == "Müller; Söhne"
    assert class_names_of(tmp_path) == (CLASSES, CLASSES)


def hugging_face(folder: Path, seed: int) -> Path:
    """A dataset as `Dataset.save_to_disk` writes it: two Arrow streams and two JSON files."""
    z, y = draw(seed)
    folder.mkdir()
    names = [f"data-0000{i}-of-00002.arrow" for i in range(2)]
    for part, name in zip((slice(0, 100), slice(100, None)), names):
        columns = {
            "text": ["…"] * 300,
            "logits": z.astype(np.float32).tolist(),
            "label": y.tolist(),
        }
        table = pa.table({key: values[part] for key, values in columns.items()})
        with pa.ipc.new_stream(folder / name, table.schema) as writer:
            writer.write_table(table)
    feature = {"names": CLASSES, "_type": "ClassLabel"}
    (folder / "dataset_info.json").write_text(json.dumps({"features": {"label": feature}}))
    state = {"_data_files": [{"filename": name} for name in names], "_indices_files": None}
    (folder / "state.json").write_text(json.dumps(state))
    return folder


def test_hugging_face_dataset_on_disk(tmp_path):
    parts = hugging_face(tmp_path / "val", 0), hugging_face(tmp_path / "test", 1)
    calibrated = through(tmp_path, *parts, out="calibrated.parquet")
    assert class_names_of(tmp_path) == (CLASSES, CLASSES)
    assert pd.read_parquet(calibrated)["label"].tolist() == draw(1)[1].tolist()


def test_compressed_json_lines_with_objects_inside(tmp_path):
    for seed, file in enumerate(("val.jsonl.gz", "test.jsonl.gz")):
        z, y = draw(seed)
        with gzip.open(tmp_path / file, "wt", encoding="utf-8") as f:
            for i, row in enumerate(z.tolist()):
                record = {"id": f"a{i}", "logits": dict(zip(CLASSES, row)), "label": CLASSES[y[i]]}
                f.write(json.dumps(record | {"tags": ["x", "y"]}) + "\n")
    calibrated = through(tmp_path, tmp_path / "val.jsonl.gz", tmp_path / "test.jsonl.gz")
    with gzip.open(calibrated, "rt", encoding="utf-8") as f:
        first = json.loads(f.readline())
    assert first["id"] == "a0"
    assert first["tags"] == ["x", "y"]
    assert list(first["probs"]) == CLASSES
    assert class_names_of(tmp_path) == (CLASSES, CLASSES)


def test_arrays_in_files_of_their_own(tmp_path):
    for seed, part in enumerate(("val", "test")):
        z, y = draw(seed)
        np.save(tmp_path / f"{part}_logits.npy", z)
        np.save(tmp_path / f"{part}_labels.npy", np.array(CLASSES)[y])
    paths = tmp_path / "val_logits.npy", tmp_path / "test_logits.npy"
    through(tmp_path, *paths, "--classes", ",".join(CLASSES), out="calibrated.npz")


def test_tensors(tmp_path):
    for seed, file in enumerate(("val.pt", "test.pt")):
        z, y = draw(seed)
        torch.save({"logits": torch.tensor(z), "target": torch.tensor(y)}, tmp_path / file)
    through(tmp_path, tmp_path / "val.pt", tmp_path / "test.pt", out="calibrated.tsv")


def test_stars_from_one_to_five(tmp_path):
    """Classes whose names are numbers: a label 5 is the fifth column, not an error."""
    for seed, file in enumerate(("val.tsv", "test.tsv")):
        z, y = draw(seed, k=5)
        rows = [{f"logits_{j + 1}": row[j] for j in range(5)} for row in z.tolist()]
        write_csv(tmp_path / file, [r | {"label": a + 1} for r, a in zip(rows, y)], delimiter="\t")
    through(tmp_path, tmp_path / "val.tsv", tmp_path / "test.tsv")
    assert class_names_of(tmp_path)[0] == ["1", "2", "3", "4", "5"]
    assert (Predictions.load(tmp_path / "calibrated.tsv").labels == draw(1, k=5)[1]).all()
