from __future__ import annotations

import json
import shutil
import warnings

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from focalcal.errors import FileFormatError, InputError, InputWarning
from focalcal.predictions import Predictions
from focalcal.scale import Source
from focalcal.scale.source import find_files

from .conftest import CLASSES, FILES, ROWS, spell, write


@pytest.mark.parametrize("kind", ["fixed", "list", "wide"])
def test_every_spelling_gives_the_rows_in_order(memory, tmp_path, kind):
    source = Source.open(write(tmp_path, *memory, kind))
    assert (source.n, source.n_classes, len(source.paths)) == (ROWS, CLASSES, FILES)
    batches = [b for p in source.partitions for b in p.batches()]
    assert np.array_equal(np.concatenate([b.logits for b in batches]), memory[0])
    assert np.array_equal(np.concatenate([b.labels for b in batches]), memory[1])


def test_folder_list_and_small_batches(memory, tmp_path):
    write(tmp_path, *memory)
    whole = Source.open(tmp_path)
    assert whole == Source.open(sorted(tmp_path.glob("*.parquet")))
    sizes = [b.n for b in whole.partitions[0].batches(rows=400)]
    assert sizes == [400, 400, 100]


def test_a_file_that_predictions_saved(memory, tmp_path):
    z, y = memory
    Predictions(logits=z, labels=y).save(tmp_path / "p.parquet")
    assert Source.open(tmp_path / "p.parquet").n == ROWS


def test_sample_is_spread_over_the_source(memory, pattern):
    source = Source.open(pattern)
    sample = source.sample(450)
    assert 450 <= sample.n <= 450 + len(source.partitions)
    first = sample.logits[:10]
    assert np.array_equal(first, memory[0][:10])


def test_probabilities_and_keys(tmp_path, rng):
    p = rng.dirichlet(np.ones(3), size=50)
    table = {"score_0": p[:, 0], "score_1": p[:, 1], "score_2": p[:, 2], "truth": [0, 1] * 25}
    pq.write_table(pa.table(table), tmp_path / "p.parquet")
    source = Source.open(tmp_path / "p.parquet", probs_key="score", labels_key="truth")
    (batch,) = source.partitions[0].batches()
    assert np.array_equal(batch.probs, p)
    with pytest.raises(FileFormatError, match="expected 'labels', got truth; name"):
        Source.open(tmp_path / "p.parquet", probs_key="score")
    with pytest.raises(FileFormatError, match="expected 'nothing'"):
        Source.open(tmp_path / "p.parquet", logits_key="nothing", labels_key="truth")
    unlabelled = Source.open(tmp_path / "p.parquet", probs_key="score", labels_required=False)
    assert next(unlabelled.partitions[0].batches()).labels is None


def _one(path, **columns):
    pq.write_table(pa.table(columns), path)
    return path


def _logits(rows):
    return pa.array(rows, pa.list_(pa.float64()))


def test_bad_contents_name_the_file_and_row(tmp_path):
    nan = _one(tmp_path / "nan.parquet", logits=_logits([[1, 2], [0, float("nan")]]), labels=[0, 1])
    source = Source.open(nan)
    with pytest.raises(InputError, match=r"nan.parquet, row group 0, from row 0: .*nan at row 1"):
        list(source.partitions[0].batches())
    null = _one(tmp_path / "null.parquet", logits=_logits([[1, 2], [1, 2], None]), labels=[0, 1, 1])
    with pytest.raises(FileFormatError, match="null at row 2"):
        list(Source.open(null).partitions[0].batches())
    text = _one(tmp_path / "text.parquet", logits=["a", "b"], labels=[0, 1])
    with pytest.raises(FileFormatError, match="expected numbers, got string"):
        Source.open(text)
    empty = _one(tmp_path / "empty.parquet", logits=_logits([]), labels=pa.array([], pa.int64()))
    with pytest.raises(FileFormatError, match="files without rows"):
        Source.open(empty)


def test_lists_in_columns_per_class(tmp_path):
    path = _one(tmp_path / "p.parquet", logits_0=_logits([[1, 2]]), logits_1=[1.0], labels=[0])
    with pytest.raises(FileFormatError, match="expected numbers in logits_0, got lists"):
        Source.open(path)


def test_files_must_agree(tmp_path):
    _one(tmp_path / "a.parquet", logits=_logits([[1, 2]]), labels=[0])
    _one(tmp_path / "b.parquet", probs=_logits([[0.5, 0.5]]), labels=[0])
    with pytest.raises(FileFormatError, match="expected the columns of"):
        Source.open(tmp_path)
    _one(tmp_path / "b.parquet", logits=_logits([[1, 2, 3]]), labels=[0])
    with pytest.raises(InputError, match="expected 2 classes, as in the first file, got 3"):
        list(Source.open(tmp_path).partitions[1].batches())
    Predictions(logits=np.eye(2), labels=[0, 1], class_names=("a", "b")).save(
        tmp_path / "b.parquet"
    )
    with pytest.raises(FileFormatError, match=r"class_names=None.*class_names=\('a', 'b'\)"):
        Source.open(tmp_path)


def test_multilabel_is_refused(tmp_path, rng):
    values = rng.normal(size=(5, 3))
    Predictions(logits=values, labels=values > 0, task="multilabel").save(tmp_path / "m.parquet")
    _one(tmp_path / "s.parquet", logits=_logits([[1, 2, 3]]), labels=[0])
    for name, keys in (("m", {}), ("s", {"task": "multilabel"})):
        with pytest.raises(FileFormatError, match="expected a single-label task"):
            Source.open(tmp_path / f"{name}.parquet", **keys)


def test_columns_of_the_same_name_are_refused(tmp_path):
    columns = [pa.array([0.5, 0.1]), pa.array([0, 1]), pa.array([0, 0])]
    table = pa.Table.from_arrays(columns, names=["probs", "labels", "labels"])
    pq.write_table(table, tmp_path / "p.parquet")
    with pytest.raises(FileFormatError, match="expected distinct column names"):
        Source.open(tmp_path / "p.parquet")


def test_files_are_found_or_refused(tmp_path, pattern):
    with pytest.raises(FileFormatError, match="no parquet files"):
        find_files(str(tmp_path / "*.parquet"))
    (tmp_path / "a.csv").write_text("x")
    with pytest.raises(FileFormatError, match="files ending in"):
        find_files(tmp_path / "a.csv")
    with pytest.raises(InputError, match="expected each file once"):
        find_files([pattern, pattern])
    (tmp_path / "cut.parquet").write_bytes(b"PAR1 but no more")
    with pytest.raises(FileFormatError, match="not a readable parquet file"):
        Source.open(tmp_path / "cut.parquet")


def test_damaged_pages_are_an_error(memory, tmp_path):
    z, y = memory
    path = tmp_path / "p.parquet"
    pq.write_table(
        pa.table({"logits": list(z[:500].astype(float)), "labels": y[:500]}),
        path,
        write_page_checksum=True,
    )
    data = bytearray(path.read_bytes())
    data[4:200] = bytes(196)
    path.write_bytes(data)
    with pytest.raises(FileFormatError, match=r"damaged|expected|readable"):
        list(Source.open(path).partitions[0].batches())


NAMES = ("low", "medium", "high")


def test_texts_are_looked_up_among_the_class_names(tmp_path, rng):
    z = rng.normal(size=(30, 3))
    y = rng.integers(0, 3, 30)
    texts = [NAMES[i] for i in y]
    named = {f"z_{name}": z[:, j] for j, name in enumerate(NAMES)}
    categories = pa.array(texts).dictionary_encode()
    path = _one(tmp_path / "p.parquet", **named, label=categories, country=["FI"] * 30)
    for classes in (None, ("high", "low", "medium")):
        source = Source.open(path, logits_prefix="z_", classes=classes)
        names = source.partitions[0].keys.classes
        assert names == (classes or NAMES)
        (batch,) = source.partitions[0].batches()
        assert [names[i] for i in batch.labels] == texts
        np.testing.assert_array_equal(batch.logits[:, names.index("low")], z[:, 0])
    with pytest.raises(FileFormatError, match="expected the classes a, b, c, got low, medium"):
        Source.open(path, logits_prefix="z_", classes=("a", "b", "c"))


def test_texts_without_class_names_are_refused(tmp_path):
    lists = pa.array([[1.0, 2.0]], pa.list_(pa.float64()))
    path = _one(tmp_path / "p.parquet", logits=lists, label=["b"])
    with pytest.raises(FileFormatError, match="--classes a,b,c"):
        Source.open(path)
    assert next(Source.open(path, classes=("a", "b")).partitions[0].batches()).labels == [1]
    table = pa.table({"logits": lists, "label": ["b"]})
    metadata = {"focalcal": '{"class_names": ["a", "b"]}'}
    pq.write_table(table.replace_schema_metadata(metadata), path)
    assert Source.open(path).partitions[0].keys.classes == ("a", "b")
    (batch,) = Source.open(path, classes=("b", "a")).partitions[0].batches()
    assert (batch.class_names, batch.logits.tolist()) == (("b", "a"), [[2, 1]])
    assert batch.labels.tolist() == [0]


@pytest.mark.parametrize(
    ("texts", "names"),
    [
        (["b", "c", "a"], ("a", "b", "c")),
        (pd.Categorical(["b", "c", "a"], categories=["c", "a", "b"]), ("c", "a", "b")),
        (["2", "0", "1"], None),
    ],
)
@pytest.mark.filterwarnings("ignore:labels are text")
def test_texts_without_class_names_are_those_of_memory(tmp_path, rng, texts, names):
    """The first row groups and the first file do not have all classes."""
    z = rng.normal(size=(9, 3))
    frame = pd.DataFrame({f"logits_{j}": z[:, j] for j in range(3)})
    frame["labels"] = texts[:1].repeat(9) if names == ("c", "a", "b") else texts[0]
    frame["labels"] = frame["labels"].mask(frame.index > 4, texts[1])
    frame["labels"] = frame["labels"].mask(frame.index > 6, texts[2])
    frame.to_parquet(tmp_path / "whole.parquet")
    frame[:6].to_parquet(tmp_path / "part-0.parquet", row_group_size=2)
    frame[6:].to_parquet(tmp_path / "part-1.parquet", row_group_size=1)
    source = Source.open(str(tmp_path / "part-*.parquet"))
    batches = [next(p.batches()) for p in source.partitions]
    there = Predictions.load(tmp_path / "whole.parquet")
    assert {b.class_names for b in batches} == {names} == {there.class_names}
    np.testing.assert_array_equal(np.concatenate([b.labels for b in batches]), there.labels)
    np.testing.assert_array_equal(np.concatenate([b.logits for b in batches]), there.logits)


def test_a_lone_named_column_takes_the_other_name_from_all_labels(tmp_path):
    path = tmp_path / "p.parquet"
    columns = {"logits_spam": [1.0, 2.0, -1.0], "label": ["spam", "spam", "ham"]}
    pq.write_table(pa.table(columns), path, row_group_size=1)
    batches = [next(p.batches()) for p in Source.open(path).partitions]
    assert [b.labels.tolist() for b in batches] == [[1], [1], [0]]
    assert {b.class_names for b in batches} == {("ham", "spam")}


def test_labels_that_are_all_missing_need_no_names(tmp_path):
    label = pa.array([None, None], pa.string())
    path = _one(tmp_path / "p.parquet", logits=_logits([[1, 2], [3, 4]]), label=label)
    assert next(Source.open(path, labels_required=False).partitions[0].batches()).labels is None
    path = _one(tmp_path / "q.parquet", logits=_logits([[1, 2], [3, 4]]), label=["nan", "a"])
    with pytest.raises(FileFormatError, match="label at row 0 is missing"):
        Source.open(path)


def test_a_file_without_rows_may_be_of_any_type(tmp_path):
    _one(tmp_path / "0.parquet", logits=pa.array([], pa.null()), other=pa.array([], pa.null()))
    _one(tmp_path / "1.parquet", logits=_logits([[1, 2]]), labels=[0])
    assert Source.open(tmp_path).n == 1


@pytest.mark.parametrize("classes", [None, ("high", "low", "medium")])
def test_one_hot_labels_in_several_columns(tmp_path, rng, classes):
    z, y = rng.normal(size=(30, 3)), rng.integers(0, 3, 30)
    wide = {f"logits_{NAMES[j]}": z[:, j] for j in range(3)}
    wide |= {f"labels_{NAMES[j]}": (y == j).astype(int) for j in (1, 2, 0)}
    batch = _same_as_in_memory(_one(tmp_path / "p.parquet", **wide), classes=classes)
    assert [batch.class_names[i] for i in batch.labels] == [NAMES[i] for i in y]
    wide["labels_low"] = np.ones(30, int)
    with pytest.raises(FileFormatError, match="expected a single-label task"):
        Source.open(_one(tmp_path / "m.parquet", **wide))


def _same_as_in_memory(path, **options):
    (batch,) = Source.open(path, **options).partitions[0].batches()
    there = Predictions.load(path, **options)
    np.testing.assert_array_equal(batch.logits, there.logits)
    np.testing.assert_array_equal(batch.labels, there.labels)
    assert batch.class_names == there.class_names
    return batch


@pytest.mark.filterwarnings("ignore:.*the columns of the classes were put in the order")
@pytest.mark.parametrize(
    ("key", "classes", "order"),
    [
        ("z_high,z_low,z_medium", None, [2, 0, 1]),
        ("z_high,z_low,z_medium", ("a", "b", "c"), [2, 0, 1]),
        ("z_high,z_low,z_medium", NAMES, [0, 1, 2]),
        ("z", ("high", "low", "medium"), [2, 0, 1]),
    ],
)
def test_listed_columns_are_called_by_their_names_or_by_new_ones(
    tmp_path, rng, key, classes, order
):
    z, y = rng.normal(size=(30, 3)), rng.integers(0, 3, 30)
    wide = {f"z_{name}": z[:, j] for j, name in enumerate(NAMES)}
    path = _one(tmp_path / "p.parquet", **wide, label=y)
    batch = _same_as_in_memory(path, logits_key=key, classes=classes)
    np.testing.assert_array_equal(batch.logits, z[:, order])
    assert batch.class_names == (classes or ("high", "low", "medium"))


def test_labels_that_are_lists(tmp_path, rng):
    z, y = rng.normal(size=(30, 3)), rng.integers(0, 3, 30)
    path = _one(tmp_path / "p.parquet", logits=list(z), labels=np.eye(3, dtype=int)[y].tolist())
    assert np.array_equal(_same_as_in_memory(path).labels, y)
    path = _one(tmp_path / "p.parquet", logits=list(z), labels=[[1, 1, 0]] * 30)
    assert Predictions.load(path).task == "multilabel"
    with pytest.raises(FileFormatError, match="row group 0, from row 0: expected a single-label"):
        Source.open(path)


@pytest.mark.filterwarnings("ignore:.*the columns of the classes were put in the order")
def test_more_class_names_than_columns(tmp_path):
    def stored(values):
        table = pa.table({"logits": list(values), "labels": [0, 1]})
        metadata = {"focalcal": '{"class_names": ["a", "b", "c"]}'}
        wide = {f"logits_{j}": column for j, column in enumerate(values.T)} | {"labels": [0, 1]}
        pq.write_table(table.replace_schema_metadata(metadata), tmp_path / "list.parquet")
        pq.write_table(pa.table(wide).replace_schema_metadata(metadata), tmp_path / "wide.parquet")

    stored(np.eye(2))
    with pytest.raises(InputError, match="expected 2 class names, got 3"):
        Predictions.load(tmp_path / "list.parquet", classes=("c", "b", "a"))
    with pytest.raises(InputError, match="expected 2 class names, got 3"):
        Source.open(tmp_path / "wide.parquet", classes=("c", "b", "a"))
    stored(np.ones((2, 1)))
    with pytest.raises(FileFormatError, match="expected the column of class 'c', got that of 'b'"):
        Predictions.load(tmp_path / "list.parquet", classes=("a", "c", "b"))


@pytest.mark.parametrize("kind", ["wide", "list", "fixed"])
@pytest.mark.parametrize("labels", ["texts", "numbers", "one-hot"])
def test_classes_in_another_order_are_those_in_memory(tmp_path, rng, kind, labels):
    z, y = rng.normal(size=(30, 3)), rng.integers(0, 3, 30)
    given = {"texts": [NAMES[i] for i in y], "numbers": y, "one-hot": np.eye(3)[y].tolist()}
    values = {f"logits_{NAMES[j]}": z[:, j] for j in range(3)}
    table = pa.table(
        (values if kind == "wide" else spell("logits", z, kind)) | {"y": given[labels]}
    )
    metadata = {"focalcal": json.dumps({"class_names": NAMES})}
    pq.write_table(table.replace_schema_metadata(metadata), tmp_path / "p.parquet")
    classes = ("high", "low", "medium")
    batch = _same_as_in_memory(tmp_path / "p.parquet", classes=classes)
    np.testing.assert_array_equal(batch.logits, z[:, [2, 0, 1]])
    assert [classes[i] for i in batch.labels] == [NAMES[i] for i in y]


@pytest.mark.parametrize("kind", ["wide", "list"])
def test_later_files_are_read_in_the_class_order_of_the_first(tmp_path, rng, kind):
    z, y = rng.normal(size=(30, 3)), rng.integers(0, 3, 30)
    for file, order in (("1.parquet", [0, 1, 2]), ("2.parquet", [2, 0, 1])):
        names = [NAMES[i] for i in order]
        wide = {f"logits_{NAMES[i]}": z[:, i] for i in order}
        columns = wide if kind == "wide" else spell("logits", z[:, order], kind)
        table = pa.table({**columns, "y": [NAMES[i] for i in y]})
        metadata = {"focalcal": json.dumps({"class_names": names})}
        pq.write_table(table.replace_schema_metadata(metadata), tmp_path / file)
    first, second = (next(p.batches()) for p in Source.open(tmp_path).partitions)
    np.testing.assert_array_equal(second.logits, first.logits)
    np.testing.assert_array_equal(second.labels, first.labels)
    assert first.class_names == second.class_names == NAMES


def test_numbers_beside_columns_in_another_order_are_said_to_be_of_that_order(tmp_path):
    path = _one(tmp_path / "p.parquet", prob_a=[0.4, 0.1], prob_b=[0.6, 0.9], y=[0, 1])
    with pytest.warns(InputWarning, match="in the order b, a; the label 0 is taken to be b"):
        source = Source.open(path, classes=("b", "a"))
    assert next(source.partitions[0].batches()).labels.tolist() == [0, 1]
    for i in range(9):
        shutil.copy(path, tmp_path / f"{i}.parquet")
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        Source.open(tmp_path, classes=("b", "a"))
    assert len(shown) == 1
