from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from focalcal import calibrators, loading
from focalcal.errors import FileFormatError, InputError
from focalcal.predictions import Predictions
from focalcal.scale import Source, apply

from .conftest import spell, write


@pytest.fixture(scope="module")
def fitted(memory):
    return calibrators.make("temperature").fit(*memory)


@pytest.mark.parametrize("kind", ["fixed", "wide"])
def test_keeps_partitioning_order_and_columns(memory, tmp_path, fitted, kind):
    z, y = memory
    source = Source.open(write(tmp_path / "in", z, y, kind))
    written = apply(source, fitted, tmp_path / "out")
    assert [p.name for p in written] == ["part-0.parquet", "part-1.parquet", "part-2.parquet"]
    for before, after in zip(source.paths, written):
        a, b = pq.ParquetFile(before), pq.ParquetFile(after)
        assert b.schema_arrow.names == ["id", "probs", "labels"]
        assert [a.metadata.row_group(i).num_rows for i in range(a.num_row_groups)] == [
            b.metadata.row_group(i).num_rows for i in range(b.num_row_groups)
        ]
    out = Source.open(tmp_path / "out")
    batches = [b for p in out.partitions for b in p.batches()]
    assert np.array_equal(np.concatenate([b.probs for b in batches]), fitted.predict_proba(z))
    ids = np.concatenate([pq.read_table(p)["id"].to_numpy() for p in written])
    assert np.array_equal(ids, np.arange(len(y)))


def test_a_second_run_writes_the_same_bytes(pattern, tmp_path, fitted):
    source = Source.open(pattern)
    first = [p.read_bytes() for p in apply(source, fitted, tmp_path / "out")]
    assert [p.read_bytes() for p in apply(source, fitted, tmp_path / "out")] == first
    assert len(list((tmp_path / "out").iterdir())) == 3


def test_one_file_to_one_file(memory, tmp_path, fitted):
    z, y = memory
    Predictions(logits=z, labels=y).save(tmp_path / "a.parquet")
    apply(Source.open(tmp_path / "a.parquet"), fitted, tmp_path / "b.parquet")
    assert np.array_equal(Predictions.load(tmp_path / "b.parquet").probs, fitted.predict_proba(z))


def test_refusals_leave_no_file(memory, tmp_path, fitted):
    z, y = memory
    three = Source.open(write(tmp_path / "three", z[:, :3], y % 3))
    with pytest.raises(InputError, match="expected predictions of 4 classes, as fitted, got 3"):
        apply(three, fitted, tmp_path / "out")
    bad = z.copy()
    bad[-1, 0] = np.nan
    source = Source.open(write(tmp_path / "bad", bad, y, files=1))
    with pytest.raises(InputError, match="expected finite logits"):
        apply(source, fitted, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_another_probs_column_is_kept_under_another_name(memory, tmp_path, fitted):
    z, y = memory
    table = pa.table({**spell("logits", z, "fixed"), **spell("probs", z, "fixed"), "labels": y})
    pq.write_table(table, tmp_path / "p.parquet")
    (out,) = apply(Source.open(tmp_path / "p.parquet"), fitted, tmp_path / "out")
    written = pq.read_table(out)
    assert written.column_names == ["probs", "uncalibrated_probs", "labels"]
    assert written["uncalibrated_probs"].equals(table["probs"])


@pytest.mark.filterwarnings("error")
def test_labels_need_not_be_known(memory, tmp_path, fitted):
    z, y = memory
    labels = [None if i % 50 == 20 else int(label) for i, label in enumerate(y[:600])]
    table = pa.table({**spell("logits", z[:600], "wide"), "labels": labels})
    pq.write_table(table, tmp_path / "p.parquet", row_group_size=50)
    source = Source.open(tmp_path / "p.parquet", labels_required=False)
    apply(source, fitted, tmp_path / "out.parquet")
    written = pq.read_table(tmp_path / "out.parquet")
    assert written["labels"].equals(table["labels"])
    assert np.array_equal(np.stack(written["probs"].to_numpy()), fitted.predict_proba(z[:600]))


def test_no_two_columns_are_written_under_one_name(memory, tmp_path, fitted):
    z, y = memory[0][:9], memory[1][:9]
    table = {**spell("logits", z, "fixed"), "probs": y, "uncalibrated_probs": y, "labels": y}
    pq.write_table(pa.table(table), tmp_path / "p.parquet")
    with pytest.raises(FileFormatError, match="expected distinct column names"):
        apply(Source.open(tmp_path / "p.parquet"), fitted, tmp_path / "out.parquet")
    loaded = loading.load(tmp_path / "p.parquet")
    with pytest.raises(FileFormatError, match="expected distinct column names"):
        loaded.save_calibrated(tmp_path / "out.parquet", fitted.predict_proba(z), {})
    assert not (tmp_path / "out.parquet").exists()


@pytest.mark.parametrize("change", ["fewer", "shorter", "damaged"])
def test_a_file_that_changed_meanwhile_is_not_written(memory, tmp_path, fitted, change):
    z, y = memory[0][:600], memory[1][:600]
    table = pa.table({**spell("logits", z, "wide"), "labels": y})
    path = tmp_path / "p.parquet"
    pq.write_table(table, path, row_group_size=100, compression="none")
    source = Source.open(path)
    if change == "damaged":
        start = pq.ParquetFile(path).metadata.row_group(4).column(0).dictionary_page_offset
        data = bytearray(path.read_bytes())
        data[start : start + 300] = bytes(300)
        path.write_bytes(data)
    else:
        rows, size = {"fewer": (300, 100), "shorter": (600, 90)}[change]
        pq.write_table(table.slice(0, rows), path, row_group_size=size)
    with pytest.raises(FileFormatError, match=r"(?s)row group \d .*(has the file changed|damaged)"):
        apply(source, fitted, tmp_path / "out.parquet")
    assert not (tmp_path / "out.parquet").exists()


def test_zeros_are_what_they_are_in_memory(tmp_path, rng):
    p = rng.dirichlet(np.full(3, 0.3), size=600)
    p[p < 0.05] = 0
    p /= p.sum(axis=1, keepdims=True)
    right = rng.random(600) < 0.8
    given = Predictions(probs=p, labels=np.where(right, p.argmax(axis=1), p.argmin(axis=1)))
    given.save(tmp_path / "p.parquet")
    fitted = calibrators.TemperatureScaling().fit(given.as_logits(), given.labels)
    apply(Source.open(tmp_path / "p.parquet"), fitted, tmp_path / "out.parquet")
    expected = fitted.predict_proba(given.as_logits())
    np.testing.assert_array_equal(Predictions.load(tmp_path / "out.parquet").probs, expected)


@pytest.mark.parametrize("labels", ["positions", "one-hot", "columns", "missing"])
def test_labels_beside_stored_names_keep_their_meaning_in_another_order(
    tmp_path, rng, fitted, labels
):
    """The two files store the same classes in two orders, neither of which is that wanted."""
    names, order, truth = ("a", "b", "c", "d"), ("d", "a", "c", "b"), []
    for file, own in (("1.parquet", names), ("2.parquet", names[::-1])):
        z, y = rng.normal(size=(60, 4)), rng.integers(0, 4, 60)
        truth += [own[i] for i in y]
        given = {"labels": y}
        if labels == "one-hot":
            given = {"labels": np.eye(4)[y].tolist()}
        elif labels == "columns":
            given = {f"labels_{name}": y == own.index(name) for name in names}
        elif labels == "missing":  # the first row group has none at all
            given = {"labels": [None] * 30 + y[30:].tolist()}
        metadata = {"focalcal": json.dumps({"class_names": own})}
        table = pa.table(spell("logits", z, "fixed") | given).replace_schema_metadata(metadata)
        (tmp_path / "in").mkdir(exist_ok=True)
        pq.write_table(table, tmp_path / "in" / file, row_group_size=30)
    source = Source.open(tmp_path / "in", classes=order, labels_required=False)
    out = Source.open(apply(source, fitted, tmp_path / "out"), labels_required=False)
    for read in (source, out):
        batches = [b for p in read.partitions for b in p.batches()]
        assert {b.class_names for b in batches} == {order}
        found = [None if b.labels is None else [order[i] for i in b.labels] for b in batches]
        expected = [truth[i : i + 30] for i in range(0, 120, 30)]
        assert found == (
            [None, expected[1], None, expected[3]] if labels == "missing" else expected
        )
