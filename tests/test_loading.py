"""People's files, the unhappy ways: every refusal says what is there and what to do."""

from __future__ import annotations

import gzip
import json
import os
import sys
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from focalcal import loading
from focalcal.errors import FileFormatError, InputError, InputWarning, MissingExtraError
from focalcal.formats import read_table, write_table
from focalcal.formats.classes import MissingLabel
from focalcal.formats.roles import Keys
from focalcal.predictions import Predictions, concatenate
from focalcal.scale.source import Source

Z = np.array([[2.0, 0.0, -1.0], [0.5, 0.25, 3.0], [-1.0, 1.0, 0.0]])
Y = np.array([0, 2, 1])
NAMES = ("low", "medium", "high")


def frame(**more) -> pd.DataFrame:
    return pd.DataFrame({f"z_{name}": Z[:, j] for j, name in enumerate(NAMES)} | more)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"if z_… are probabilities, pass --probs-prefix z_ \(or --logits-prefix\)"),
        ({"logits_prefix": "q_"}, "columns that begin with 'q_', got z_low, z_medium, z_high"),
        ({"logits": "z_low,nothing"}, "expected 'nothing'"),
        ({"logits_prefix": "z_", "probs": "z_low"}, "got --probs and --logits-prefix"),
        ({"logits_prefix": "z_", "labels": "truth"}, "expected 'truth'"),
        ({"logits_prefix": "z_", "ids": "nr"}, "expected the ids 'nr'"),
        ({"logits_prefix": "z_", "classes": "abc"}, "the classes a, b, c, got low, medium, high"),
        ({"logits_prefix": "z_", "labels_required": True}, "name the column with --labels"),
    ],
)
def test_columns_that_cannot_be_found(options, message):
    with pytest.raises((FileFormatError, InputError), match=message):
        Predictions.from_frame(frame(), **({"labels_required": False} | options))


def test_no_columns_share_a_beginning():
    with pytest.raises(FileFormatError, match="name them with --probs a,b,c or --logits a,b,c"):
        Predictions.from_frame(pd.DataFrame({"a": [1.0], "b": [2.0]}))


def test_named_columns_follow_the_order_of_the_classes():
    labels = ["low", "high", "medium"]
    given = frame(label=labels, logits_time=[1.0, 2.0, 3.0])
    order = ("high", "low", "medium")
    p = Predictions.from_frame(given, logits_prefix="z_", classes=order)
    assert [p.class_names[i] for i in p.labels] == labels
    np.testing.assert_array_equal(p.logits, Z[:, [2, 0, 1]])
    assert p.column("logits_time").tolist() == [1, 2, 3]


def test_a_list_of_columns_names_its_classes():
    p = Predictions.from_frame(frame(y=Y), logits=["z_high", "z_low", "z_medium"])
    assert p.class_names == ("high", "low", "medium")
    renamed = Predictions.from_frame(frame(y=Y), logits=list(frame()), classes="abc")
    assert renamed.class_names == ("a", "b", "c")
    plain = pd.DataFrame({"cat": Z[:, 0], "dog": Z[:, 1], "y": [0, 1, 0]})
    assert Predictions.from_frame(plain, logits="cat,dog").class_names == ("cat", "dog")
    one = Predictions.from_frame(plain, logits="dog")
    assert (one.n_classes, one.class_names) == (2, None)


@pytest.mark.parametrize("columns", [["cat", "dog", "ant"], [0, 1, 2], ["3", "4", "5"]])
@pytest.mark.parametrize("ending", ["csv", "parquet", "jsonl"])
def test_a_star_takes_all_columns_but_labels_and_ids(tmp_path, columns, ending):
    """A frame of `predict_proba` with the classes, or nothing, for column names."""
    from scipy.special import softmax

    probs = softmax(Z, axis=1)
    given = pd.DataFrame(probs, columns=columns).assign(id=["a", "b", "c"])
    given["label"] = [columns[i] for i in Y]
    of_frame = Predictions.from_frame(given, probs="*")
    given.columns = given.columns.map(str)
    path = tmp_path / f"p.{ending}"
    if ending == "csv":
        given.to_csv(path)  # with pandas' index
    elif ending == "parquet":
        given.to_parquet(path, index=True)
    else:
        given.to_json(path, orient="records", lines=True)
    for p in (of_frame, Predictions.load(path, probs_key="*")):
        np.testing.assert_allclose(p.probs, probs)
        assert p.labels.tolist() == Y.tolist()
        assert p.ids.tolist() == ["a", "b", "c"]
        assert p.class_names == (None if columns == [0, 1, 2] else tuple(map(str, columns)))


@pytest.mark.parametrize("name", ["y_prob", "y_proba", "y_score"])
def test_names_of_scikit_learns_arguments(name):
    one = Predictions.from_frame(pd.DataFrame({name: [0.2, 0.9], "y_true": [0, 1]}))
    assert one.probs.tolist() == [0.2, 0.9]
    assert one.labels.tolist() == [0, 1]
    several = pd.DataFrame({f"{name}_0": [0.2, 0.9], f"{name}_1": [0.8, 0.1]})
    p = Predictions.from_frame(several, labels_required=False)
    assert p.labels is None
    assert p.n_classes == 2


@pytest.mark.parametrize(("no", "yes"), [("False", "True"), ("false", "true"), ("FALSE", "TRUE")])
def test_booleans_as_texts_need_no_class_names(tmp_path, no, yes):
    (tmp_path / "p.csv").write_text(f"score,label\n0.3,{yes}\n0.4,{no}\n")
    assert Predictions.load(tmp_path / "p.csv").labels.tolist() == [1, 0]
    (tmp_path / "p.csv").write_text(f"score,label\n0.3,{yes}\n0.4,{yes}\n")
    assert Predictions.load(tmp_path / "p.csv").labels.tolist() == [1, 1]
    (tmp_path / "p.csv").write_text(f"prob_{yes},prob_{no},label\n0.3,0.7,{yes}\n0.4,0.6,{no}\n")
    assert Predictions.load(tmp_path / "p.csv").labels.tolist() == [0, 1]


def test_a_star_that_stands_for_nothing():
    with pytest.raises(FileFormatError, match="columns besides labels and ids, got none"):
        Predictions.from_frame(pd.DataFrame({"label": [1], "id": [2]}), probs="*")


def test_numbered_columns_leave_others_alone():
    given = pd.DataFrame({f"logits_{j}": Z[:, j] for j in range(3)} | {"logits_max": 1.0, "y": Y})
    p = Predictions.from_frame(given)
    np.testing.assert_array_equal(p.logits, Z)
    assert list(p.extra) == ["logits_max"]


def test_one_hot_labels_are_class_labels(tmp_path):
    np.savez(tmp_path / "p.npz", logits=Z, labels=np.eye(3)[Y])
    p = Predictions.load(tmp_path / "p.npz")
    assert p.task == "auto"
    np.testing.assert_array_equal(p.labels, Y)
    np.savez(tmp_path / "p.npz", logits=Z, labels=Y[:, None])
    np.testing.assert_array_equal(Predictions.load(tmp_path / "p.npz").labels, Y)


def test_class_names_beside_the_arrays(tmp_path):
    np.savez(tmp_path / "p.npz", logits=Z[:2], labels=[0, 2], class_names=np.array(NAMES))
    assert Predictions.load(tmp_path / "p.npz").class_names == NAMES
    torch.save(
        {"logits": torch.tensor(Z), "y": Y.tolist(), "class_names": NAMES}, tmp_path / "p.pt"
    )
    p = Predictions.load(tmp_path / "p.pt")
    assert p.class_names == NAMES
    np.testing.assert_array_equal(p.labels, Y)


def test_bytes_are_texts(tmp_path):
    np.savez(tmp_path / "p.npz", logits=Z, labels=np.array([b"low", b"high", b"medium"]))
    np.testing.assert_array_equal(Predictions.load(tmp_path / "p.npz", classes=NAMES).labels, Y)


def test_npy_files(tmp_path):
    np.save(tmp_path / "a_probs.npy", np.full((3, 2), 0.5))
    with pytest.raises(FileFormatError, match="expected 'labels'"):
        Predictions.load(tmp_path / "a_probs.npy")
    np.save(tmp_path / "truth.npy", Y % 2)
    for where in (str(tmp_path / "truth.npy"), "truth.npy"):
        p = Predictions.load(tmp_path / "a_probs.npy", labels_key=where)
        np.testing.assert_array_equal(p.labels, Y % 2)
    with pytest.raises(FileFormatError, match="check the path of the labels"):
        Predictions.load(tmp_path / "a_probs.npy", labels_key="nowhere.npy")
    np.save(tmp_path / "model.npy", Z)
    with pytest.raises(FileFormatError, match="got model"):
        Predictions.load(tmp_path / "model.npy")
    p = Predictions.load(tmp_path / "model.npy", logits_key="model", labels_required=False)
    np.testing.assert_array_equal(p.logits, Z)
    np.savez(tmp_path / "p.npz", logits=np.float64(1))
    with pytest.raises(FileFormatError, match="value for each sample"):
        Predictions.load(tmp_path / "p.npz", labels_required=False)


class Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_pt_files_never_run_code(tmp_path):
    torch.save({"logits": Bomb(tmp_path / "ran")}, tmp_path / "p.pt")
    with pytest.raises(FileFormatError, match="holds more than tensors"):
        read_table(tmp_path / "p.pt")
    assert not (tmp_path / "ran").exists()
    torch.save([1, 2], tmp_path / "p.pt")
    with pytest.raises(FileFormatError, match="dict of tensors, got list"):
        read_table(tmp_path / "p.pt")
    torch.save(torch.tensor(Z), tmp_path / "logits.pt")
    assert Predictions.load(tmp_path / "logits.pt", labels_required=False).n == 3


def test_pt_without_torch(tmp_path, monkeypatch):
    (tmp_path / "p.pt").write_bytes(b"x")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"focalcal\[torch\]"):
        read_table(tmp_path / "p.pt")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"logits": [1, 2]}\n{oops\n', "line 2 is not JSON"),
        ("[1]\n", "line 1: expected a JSON object, got list"),
        ("\n", "has no rows"),
        ('{"logits": [1, 2], "y": 0}\n{"logits": [1], "y": 0}\n', "length 2, as in row 0, got 1"),
        ('{"logits": [1, 2], "y": 0}\n{"logits": 3, "y": 0}\n', "got 3 at row 1"),
        ('{"logits": [1, "x"], "y": 0}\n', "lists of numbers, got another at row 0"),
        ('{"logits": [1, 2], "y": 0}\n{"logits": [1, 2]}\n', "label at row 1 is missing"),
        ('{"prob": 0.5, "y": 0}\n{"y": 0}\n', "expected a number, got None at row 1"),
    ],
)
def test_json_lines_that_are_none(tmp_path, text, message):
    (tmp_path / "p.jsonl").write_text(text)
    with pytest.raises(FileFormatError, match=message):
        Predictions.load(tmp_path / "p.jsonl")


def test_damaged_gzip(tmp_path):
    (tmp_path / "p.csv.gz").write_bytes(b"logits_0,labels\n1,0\n")
    with pytest.raises(FileFormatError, match="not a readable gzip file"):
        read_table(tmp_path / "p.csv.gz")
    whole = gzip.compress(b"logits_0,labels\n1,0\n" * 99)
    (tmp_path / "p.csv.gz").write_bytes(whole[:-20])
    with pytest.raises(FileFormatError, match="not a readable gzip file"):
        read_table(tmp_path / "p.csv.gz")


def test_csv_fields_beyond_reason(tmp_path):
    (tmp_path / "p.csv").write_text("a,b\n" + "x" * 200_000 + ",1\n")
    with pytest.raises(FileFormatError, match="not a readable csv file"):
        read_table(tmp_path / "p.csv")


def test_semicolons_without_numbers_keep_their_commas(tmp_path):
    (tmp_path / "p.csv").write_text("prob;y;name\n0,25;0;Doe, Jane\n0,75;1;Roe, Jim\n")
    p = Predictions.load(tmp_path / "p.csv")
    assert p.probs.tolist() == [0.25, 0.75]
    assert p.column("name").tolist() == ["Doe, Jane", "Roe, Jim"]


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_decimal_commas(tmp_path, delimiter):
    """With any delimiter; what is only carried along is written as it was read."""
    given = pd.DataFrame({"prob_1": [0.25, 0.75], "label": [1.0, 0.0], "price": [1.5, 20.25]})
    given.to_csv(tmp_path / "p.csv", sep=delimiter, decimal=",", index=False)
    found = loading.load(tmp_path / "p.csv")
    assert found.predictions.probs.tolist() == [0.25, 0.75]
    assert found.predictions.labels.tolist() == [1, 0]
    assert found.predictions.column("price").tolist() == [1.5, 20.25]
    found.save_calibrated(tmp_path / "c.tsv", np.eye(2), {})
    assert pd.read_csv(tmp_path / "c.tsv", sep="\t")["price"].tolist() == ["1,5", "20,25"]
    (tmp_path / "p.jsonl").write_text('{"probs": ["0,25", "0.75"], "label": "1"}\n')
    assert Predictions.load(tmp_path / "p.jsonl").probs.tolist() == [[0.25, 0.75]]


def test_what_can_be_read_but_not_written(tmp_path):
    with pytest.raises(
        FileFormatError, match=r"can be read but not written; end the name in \.npz"
    ):
        write_table(tmp_path / "p.pt", {"logits": Z}, {})


def test_twice_the_same_column(tmp_path):
    pq.write_table(pa.table([[1.0], [2.0]], names=["logits", "logits"]), tmp_path / "p.parquet")
    with pytest.raises(FileFormatError, match=r"distinct column names|not a readable"):
        read_table(tmp_path / "p.parquet")


@pytest.mark.parametrize("kind", ["file", "stream"])
def test_arrow_files(tmp_path, kind):
    table = pa.table({"logits": Z.tolist(), "label": Y})
    new = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
    with new(tmp_path / "p.arrow", table.schema) as writer:
        writer.write_table(table)
    np.testing.assert_array_equal(Predictions.load(tmp_path / "p.arrow").logits, Z)
    (tmp_path / "p.arrow").write_bytes(b"nothing of the kind")
    with pytest.raises(FileFormatError, match="not a readable arrow file"):
        read_table(tmp_path / "p.arrow")


def test_hugging_face_folders_that_are_none(tmp_path):
    (tmp_path / "dataset_info.json").write_text("{}")
    with pytest.raises(FileFormatError, match=r"expected \.arrow files"):
        read_table(tmp_path)
    (tmp_path / "data.arrow").write_bytes(b"x")
    (tmp_path / "state.json").write_text(json.dumps({"_indices_files": [{"filename": "i.arrow"}]}))
    with pytest.raises(FileFormatError, match=r"flatten_indices\(\) first"):
        read_table(tmp_path)
    (tmp_path / "dataset_info.json").write_text("[1]")
    with pytest.raises(FileFormatError, match="expected a JSON object, got list"):
        read_table(tmp_path)
    (tmp_path / "dataset_info.json").write_text("{")
    with pytest.raises(FileFormatError, match="is not JSON"):
        read_table(tmp_path)
    (tmp_path / "dataset_dict.json").write_text("{}")
    with pytest.raises(FileFormatError, match="expected splits with a dataset_info"):
        read_table(tmp_path)
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "dataset_info.json").write_text("{}")
    with pytest.raises(FileFormatError, match=r"holds the splits test; name one, as in .*test"):
        read_table(tmp_path)


def test_concatenation():
    first = Predictions(logits=Z, labels=Y, ids=[1, 2, 3], extra={"a": [1, 2, 3], "b": [0, 0, 0]})
    second = Predictions(logits=Z[:1], labels=Y[:1], ids=[4], extra={"a": [9]})
    both = concatenate([first, second])
    assert (both.n, both.ids.tolist(), list(both.extra)) == (4, [1, 2, 3, 4], ["a"])
    assert concatenate([first]) is first
    unlabelled = Predictions(logits=Z)
    assert concatenate([first, unlabelled]).labels is None
    with pytest.raises(
        InputError, match="3 classes as logits, as in the first part, got 2 as prob"
    ):
        concatenate([first, Predictions(probs=[0.5])])
    parts = [Predictions(logits=Z, class_names=names) for names in ("abc", "acb")]
    for given in (parts, [first, *parts]):
        with pytest.raises(InputError, match="the classes a, b, c, as before, got a, c, b"):
            concatenate(given)


def test_what_calibrated_probabilities_would_overwrite_is_renamed(tmp_path):
    np.savez(tmp_path / "p.npz", logits=Z, probs=np.full((3, 3), 1 / 3), labels=Y)
    found = loading.load(tmp_path / "p.npz", Keys())
    found.save_calibrated(tmp_path / "out.npz", np.eye(3), {"by": "test"})
    table, metadata = read_table(tmp_path / "out.npz")
    assert list(table) == ["probs", "uncalibrated_probs", "labels"]
    np.testing.assert_array_equal(table["probs"], np.eye(3))
    assert metadata["provenance"] == {"by": "test"}
    assert "carried along: probs" in found.describe()


NUMBERS = [
    ("10", "20", "30"),
    ("1", "2", "3"),
    ("-1", "0", "1"),
    ("2", "1", "0"),
    ("01", "02", "03"),
]
FRACTIONS = ("0.5", "1.0", "1.5")


@pytest.mark.parametrize("names", [*NUMBERS, FRACTIONS], ids="-".join)
@pytest.mark.parametrize("typed", ["texts", "numbers"])
@pytest.mark.parametrize("source", ["csv", "jsonl", "parquet", "npz"])
def test_classes_that_are_numbers_keep_their_labels(tmp_path, names, typed, source):
    """Stars from 1 to 5 are not the indices 1 to 5, in whatever file they are written next."""
    labels = np.array(names)[[2, 0, 0, 1]]
    labels = labels if typed == "texts" else labels.astype(float)
    if typed == "numbers" and names != FRACTIONS:
        labels = labels.astype(int)
    z = np.arange(12.0).reshape(4, 3) % 5
    path = tmp_path / f"p.{source}"
    if source == "npz":
        np.savez(path, logits=z, labels=labels, classes=np.array(names))
    else:
        wide = {f"logits_{name}": z[:, j] for j, name in enumerate(names)}
        write_table(path, wide | {"labels": labels}, {})
    found = loading.load(path)
    by_class = dict(
        zip(found.predictions.class_names or ("0", "1", "2"), found.predictions.logits.T)
    )
    for j, name in enumerate(names):
        np.testing.assert_array_equal(by_class[name], z[:, j])
    expected = [names[j] for j in (2, 0, 0, 1)]
    for ending in ("csv", "jsonl", "parquet", "npz"):
        found.save_calibrated(tmp_path / f"c.{ending}", found.predictions.probabilities(), {})
        again = Predictions.load(tmp_path / f"c.{ending}")
        called = again.class_names or ("0", "1", "2")
        assert [called[i] for i in again.labels] == expected
        if ending == "parquet":
            source = Source.open(tmp_path / "c.parquet", classes=called)
            parts = next(source.partitions[0].batches())
            assert parts.labels.tolist() == again.labels.tolist()


def test_saved_indices_of_classes_that_are_numbers_stay_indices(tmp_path):
    p = Predictions(logits=Z, labels=Y, class_names=("1", "2", "3"))
    for ending in ("npz", "parquet", "csv", "jsonl"):
        p.save(tmp_path / f"p.{ending}")
        np.testing.assert_array_equal(Predictions.load(tmp_path / f"p.{ending}").labels, Y)
    parts = next(Source.open(tmp_path / "p.parquet").partitions[0].batches())
    np.testing.assert_array_equal(parts.labels, Y)


def test_one_column_of_two_classes(tmp_path):
    path = tmp_path / "p.csv"
    path.write_text("prob_1,label\n0.9,1\n0.2,0\n")
    np.testing.assert_array_equal(Predictions.load(path).probs, [0.9, 0.2])
    path.write_text("prob_no,label\n0.9,no\n0.2,yes\n")
    p = Predictions.load(path)
    assert p.class_names == ("yes", "no")
    assert p.labels.tolist() == [1, 0]
    path.write_text("prob_spam,label\n0.9,1\n0.2,0\n")
    assert Predictions.load(path).labels.tolist() == [1, 0]
    path.write_text("prob_0,label\n0.1,1\n0.8,0\n")
    with pytest.raises(FileFormatError, match="expected prob_1 or a column per class"):
        Predictions.load(path)
    assert Predictions.load(path, probs_key="prob_0").probs.tolist() == [0.1, 0.8]
    Predictions(probs=np.array([[0.1], [0.8]]), labels=[0, 1]).save(path)
    assert Predictions.load(path).probs.tolist() == [0.1, 0.8]
    frame = pd.DataFrame({"prob_no": [0.9, 0.2], "label": [1, 0]})
    frame.to_parquet(tmp_path / "p.parquet")
    assert next(Source.open(tmp_path / "p.parquet").partitions[0].batches()).labels.tolist() == [
        1,
        0,
    ]


def test_missing_labels_matter_only_where_labels_are_needed(tmp_path):
    frame = pd.DataFrame(Z, columns=["logits_0", "logits_1", "logits_2"])
    for label in (["a", None, "b"], [1.0, None, 2.0], pd.array([1, None, 2], dtype="Int64")):
        for ending in ("csv", "parquet"):
            path = tmp_path / f"p.{ending}"
            getattr(frame.assign(label=label), f"to_{ending}")(path, index=False)
            with pytest.raises(FileFormatError, match="label at row 1 is missing"):
                Predictions.load(path)
            with pytest.warns(InputWarning, match="labels are not used"):
                assert Predictions.load(path, labels_required=False).labels is None
    np.savez(tmp_path / "p.npz", logits=Z, labels=[0, np.nan, 1])
    with pytest.raises(FileFormatError, match="label at row 1 is missing"):
        Predictions.load(tmp_path / "p.npz")
    (tmp_path / "p.csv").write_text("logits_0,logits_1,label\n1,2,0\n1,2,NaN\n")
    with pytest.raises(FileFormatError, match="label at row 1 is missing"):
        Predictions.load(tmp_path / "p.csv")


def test_frames_with_numbers_for_names():
    frame = pd.DataFrame(Z).assign(label=Y)
    for columns in ([0, 1, 2], ["0", "1", "2"]):
        np.testing.assert_array_equal(Predictions.from_frame(frame, logits=columns).logits, Z)


def test_the_advice_names_the_whole_prefix(tmp_path):
    (tmp_path / "p.csv").write_text(".pred_a,.pred_b,label\n0.4,0.6,a\n")
    with pytest.raises(FileFormatError, match=r"pass --probs-prefix \.pred_ "):
        Predictions.load(tmp_path / "p.csv")


def test_labels_beside_class_names_are_values_or_indices(tmp_path):
    z, indices = np.eye(4, 3), np.array([0, 1, 2, 0])
    for labels in (indices, indices + 5):
        np.savez(tmp_path / "a.npz", logits=z, labels=labels, class_names=["5", "6", "7"])
        assert Predictions.load(tmp_path / "a.npz").labels.tolist() == [0, 1, 2, 0]


def test_a_single_column_must_be_that_of_the_second_class():
    keys = Keys(probs_prefix="p_", classes=("ham", "spam"), labels_required=False)
    spam = loading.from_table({"p_spam": np.array([0.2, 0.7])}, {}, keys, "file")
    assert spam.predictions.class_names == ("ham", "spam")
    with pytest.raises(FileFormatError, match="expected the column of class 'spam', got that of"):
        loading.from_table({"p_ham": np.array([0.2, 0.7])}, {}, keys, "file")


def test_labels_that_are_not_numbers_are_missing(tmp_path):
    (tmp_path / "a.csv").write_text("probs_0,probs_1,labels\n0.2,0.8,1\n0.5,0.5,nan\n")
    with pytest.warns(InputWarning, match="labels are not used"):
        assert Predictions.load(tmp_path / "a.csv", labels_required=False).labels is None
    with pytest.raises(FileFormatError, match="label at row 1 is missing"):
        loading.load(tmp_path / "a.csv")


def test_one_label_of_a_multilabel_task(tmp_path):
    (tmp_path / "a.csv").write_text("probs,labels\n0.2,0\n0.8,1\n")
    found = Predictions.load(tmp_path / "a.csv", task="multilabel")
    assert found.probs.shape == found.labels.shape == (2, 1)


SPORTS = ["sport", "music", "art"]


@pytest.mark.parametrize("kind", [int, float, bool])
@pytest.mark.parametrize("ending", ["frame", "csv", "parquet", "jsonl"])
@pytest.mark.parametrize("several", [True, False])
def test_columns_of_labels_are_matched_by_name(tmp_path, rng, kind, ending, several):
    """The labels of a class are in the column that names it, wherever that column is."""
    probs = rng.dirichlet(np.ones(3), 20)
    truth = rng.random((20, 3)) < 0.5 if several else np.eye(3, dtype=bool)[probs.argmax(axis=1)]
    given = pd.DataFrame(probs, columns=[f"prob_{name}" for name in SPORTS])
    for j in (2, 0, 1):
        given[f"labels_{SPORTS[j]}"] = truth[:, j].astype(kind)
    path = tmp_path / f"p.{ending}"
    if ending == "csv":
        given.to_csv(path)
    elif ending == "parquet":
        given.to_parquet(path)
    elif ending == "jsonl":
        given.to_json(path, orient="records", lines=True, double_precision=15)
    for classes in (None, ("art", "sport", "music")):
        if ending == "frame":
            p = Predictions.from_frame(given, classes=classes)
        else:
            p = Predictions.load(path, classes=classes)
        for j, name in enumerate(p.class_names):
            np.testing.assert_allclose(p.probs[:, j], probs[:, SPORTS.index(name)], rtol=1e-9)
            labels = p.labels[:, j] if several else p.labels == j
            np.testing.assert_array_equal(labels, truth[:, SPORTS.index(name)])


def test_columns_of_labels_that_name_other_classes(tmp_path):
    given = pd.DataFrame({"prob_a": [0.4], "prob_b": [0.6], "label_id": [7], "label_text": ["a"]})
    with pytest.raises(FileFormatError, match="expected 'labels', got label_id, label_text"):
        Predictions.from_frame(given)
    one_hot = pd.DataFrame({"prob_1": [0.4, 0.1], "prob_2": [0.6, 0.9]})
    one_hot = one_hot.assign(label_2=[0, 1], label_1=[1, 0])
    assert Predictions.from_frame(one_hot).labels.tolist() == [0, 1]
    np.savez(
        tmp_path / "p.npz", probs=np.eye(3) / 2 + 1 / 6, labels=[[1.0, 0, 1], [0, 0, 0], [0, 1, 0]]
    )
    assert Predictions.load(tmp_path / "p.npz").labels.dtype == np.int64


def test_one_hot_labels_follow_the_order_of_the_classes():
    given = pd.DataFrame({"prob_a": [0.4, 0.1], "prob_b": [0.6, 0.9], "y": [[1, 0], [0, 1]]})
    p = Predictions.from_frame(given, classes=["b", "a"])
    assert [p.class_names[i] for i in p.labels] == ["a", "b"]


@pytest.mark.parametrize("ending", ["frame", "csv", "parquet", "jsonl", "npz"])
def test_booleans_are_the_classes_of_that_name(tmp_path, ending):
    path = tmp_path / f"p.{ending}"

    def load(columns):
        given = pd.DataFrame(columns)
        if ending == "frame":
            return Predictions.from_frame(given)
        if ending == "npz":
            np.savez(path, **columns)
        elif ending == "jsonl":
            given.to_json(path, orient="records", lines=True)
        else:
            getattr(given, f"to_{ending}")(path)
        return Predictions.load(path)

    label = [True, True, False]
    p = load({"prob_True": [0.9, 0.8, 0.1], "prob_False": [0.1, 0.2, 0.9], "label": label})
    assert [p.class_names[i] for i in p.labels] == ["True", "True", "False"]
    p = load({"prob_false": [0.1, 0.2, 0.9], "label": label})
    assert (p.class_names, p.labels.tolist()) == (("true", "false"), [0, 0, 1])
    p = load({"prob_yes": [0.9, 0.8, 0.1], "label": label})
    assert p.labels.tolist() == [1, 1, 0]
    p = load({"prob_no": [0.1, 0.2, 0.9], "prob_yes": [0.9, 0.8, 0.1], "label": label})
    assert p.labels.tolist() == [1, 1, 0]


@pytest.mark.parametrize("missing", ["NA", "nan", "#N/A", " "])
def test_texts_that_stand_for_a_missing_label(tmp_path, missing):
    path = tmp_path / "p.csv"
    path.write_text(f"prob_cat,prob_dog,label\n0.4,0.6,dog\n0.5,0.5,{missing}\n")
    with pytest.raises(FileFormatError, match="label at row 1 is missing"):
        Predictions.load(path)
    with pytest.warns(InputWarning, match="labels are not used"):
        assert Predictions.load(path, labels_required=False).labels is None
    path.write_text(f"prob_cat,prob_dog,label\n0.4,0.6,{missing}\n".replace("cat", missing.strip()))
    if missing.strip():
        assert Predictions.load(path).labels.tolist() == [0]
    path.write_text(f"score,label\n0.4,spam\n0.5,{missing}\n")
    with pytest.raises(FileFormatError, match="label at row 1 is missing"):
        Predictions.load(path)


def test_texts_of_spreadsheets(tmp_path):
    """UTF-16, spaces after commas, empty rows and columns, and lines that end in CR."""
    path = tmp_path / "p.csv"
    plain = "prob_Öl,prob_Gas,label\n0.4,0.6,Gas\n0.5,0.5,Öl\n"
    for text in (
        plain.encode("utf-16"),
        "\ufeff".encode("utf-16-be") + plain.encode("utf-16-be"),
        plain.replace(",", ", ").encode(),
        plain.replace("\n", "\r").encode(),
        (plain.replace("\n", ",,\r\n") + ",,,,\r\n  \r\n").encode(),
    ):
        path.write_bytes(text)
        p = Predictions.load(path)
        assert (p.class_names, p.labels.tolist(), list(p.extra)) == (("Öl", "Gas"), [1, 0], [])
        assert p.probs.tolist() == [[0.4, 0.6], [0.5, 0.5]]


def test_the_line_that_names_the_separator_for_spreadsheets(tmp_path):
    for separator in ",;\t|":
        text = f"prob_a{separator}prob_b{separator}y\r\n0.5{separator}0.5{separator}1\r\n"
        (tmp_path / "p.csv").write_bytes(f"\ufeffsep={separator}\r\n{text}".encode())
        p = Predictions.load(tmp_path / "p.csv")
        assert (p.class_names, p.labels.tolist()) == (("a", "b"), [1])


@pytest.mark.parametrize("write", [str, np.array, lambda row: f" [{row[0]} {row[1]}\n] "])
def test_lists_as_texts(tmp_path, write):
    """As pandas writes lists and arrays in a column to csv."""
    rows, labels = [[-1.5, 2e-3], [0.25, 3.0]], [[1, 1], [0, 1]]
    boxes = ["[1, 2]", "[3, 4]"]
    frame = pd.DataFrame({"logits": [write(row) for row in rows], "box": boxes})
    frame.assign(y=[1, 0]).to_csv(tmp_path / "p.csv", index=False)
    p = Predictions.load(tmp_path / "p.csv")
    assert p.logits.tolist() == rows
    assert p.column("box").tolist() == boxes
    frame.assign(y=list(map(write, labels))).to_csv(tmp_path / "m.csv", index=False)
    many = Predictions.load(tmp_path / "m.csv")
    assert (many.task, many.labels.tolist()) == ("multilabel", labels)
    frame[["box"]].assign(p_a=[0.1, 0.2], p_b=0.5, y=list(map(write, labels))).to_csv(
        tmp_path / "n.csv", index=False
    )
    said = loading.load(tmp_path / "n.csv", Keys(probs_prefix="p_")).describe()
    assert "labels from y; labels a, b; carried along: box" in said
    frame.assign(logits=["[1, 2]", "[1, 2, 3]"], y=[1, 0]).to_csv(tmp_path / "p.csv")
    with pytest.raises(FileFormatError, match="expected lists of length 2, as in row 0, got 3"):
        Predictions.load(tmp_path / "p.csv")


@pytest.mark.parametrize("missing", ["", "NA", "#N/A"])
def test_missing_cells_among_carried_numbers(tmp_path, missing):
    table = pd.DataFrame({"probs": [0.1, 0.2, 0.3], "y": [0, 1, 0]})
    table["week"] = ["9", missing, "10"]
    table["age"] = ["9,5", "10", missing]
    table["name"] = ["x", missing, "10"]
    table["none"] = missing
    table.to_csv(tmp_path / "p.csv", index=False)
    p = Predictions.load(tmp_path / "p.csv")
    assert p.column("week").tolist() == [9, None, 10]
    np.testing.assert_array_equal(p.column("age"), [9.5, 10.0, np.nan])
    assert p.column("name").tolist() == ["x", missing, "10"]
    assert p.column("none").tolist() == [missing] * 3


def test_json_lines_with_unicode_line_separators(tmp_path):
    path = tmp_path / "p.jsonl"
    texts = ["one\u2028two", "three\x85four"]
    rows = [{"probs": [0.4, 0.6], "label": 1, "text": text} for text in texts]
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    path.write_text("\r\n".join(lines), encoding="utf-8", newline="")
    assert Predictions.load(path).column("text").tolist() == texts


def test_columns_of_databases(tmp_path):
    """Decimals, categories of numbers, and dictionaries."""
    from decimal import Decimal

    path = tmp_path / "p.arrow"
    probs = [[0.25, 0.75], [0.5, 0.5]]
    decimals = pa.array([[Decimal("0.25"), Decimal("0.75")], [Decimal("0.5")] * 2])
    codes = pa.array([20, 10]).dictionary_encode()
    table = pa.table({"probs": decimals, "label": codes, "price": [Decimal("1.50"), None]})
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(
        InputError, match=r"labels in 0\.\.1, got 20"
    ):  # 20, 10: no order of classes
        Predictions.load(path)
    p = Predictions.load(path, classes=["10", "20"])
    assert (p.probs.tolist(), p.labels.tolist()) == (probs, [1, 0])
    assert p.column("price").tolist() == [Decimal("1.50"), None]
    dictionaries = pd.DataFrame({"probs": [{"b": 0.25, "a": 0.75}] * 2, "label": ["a", "b"]})
    p = Predictions.from_frame(dictionaries)
    assert (p.class_names, p.probs[0].tolist(), p.labels.tolist()) == (
        ("b", "a"),
        [0.25, 0.75],
        [1, 0],
    )


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_categories_in_the_order_of_their_occurrence_are_only_texts(tmp_path, ending):
    """A Categorical of polars numbers its categories as they occur, an Enum as its user says."""
    path = tmp_path / f"p.{ending}"
    given = pl.DataFrame({"probs": [[0.3, 0.7], [0.8, 0.2]], "label": ["b", "a"]})
    for kind, names in ((pl.Categorical, ("a", "b")), (pl.Enum(["b", "a"]), ("b", "a"))):
        frame = given.with_columns(pl.col("label").cast(kind))
        frame.write_parquet(path) if ending == "parquet" else frame.write_ipc(path)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", InputWarning)
            p = Predictions.load(path)
        assert p.class_names == names
        assert [p.class_names[i] for i in p.labels] == ["b", "a"]
        assert ["alphabetical order" in str(w.message) for w in caught] == [True] * (
            names[0] == "a"
        )


@pytest.mark.parametrize("order", [("high", "low", "mid"), ("mid", "low", "high")])
def test_given_class_names_are_those_of_the_columns_beside_categories(tmp_path, order):
    """`pd.Categorical` sorts its categories, whatever the order of the columns."""
    names, values = ["low", "mid", "high"], [[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]]
    labels = pd.Categorical(["low", "high"], categories=order)
    frame = pd.DataFrame({"probs": values, "label": labels})
    frame.to_parquet(tmp_path / "p.parquet")
    (parts,) = Source.open(tmp_path / "p.parquet", classes=names).partitions
    for p in (
        Predictions.from_frame(frame, classes=names),
        Predictions.load(tmp_path / "p.parquet", classes=names),
        *parts.batches(),
    ):
        assert (p.class_names, p.labels.tolist()) == (tuple(names), [0, 2])
        assert p.probs.tolist() == values
    assert Predictions.from_frame(frame).class_names == order


@pytest.mark.parametrize("names", [("1", "2", "3"), ("2", "0", "1"), ("-1.5", "0", "7")])
@pytest.mark.parametrize(("stored", "ending"), [("npz", "csv"), ("parquet", "jsonl")])
def test_positions_among_classes_named_by_numbers_become_names_in_text(
    tmp_path, names, stored, ending
):
    """A text file does not store the names, so that 0 would be the class 0."""
    probs, labels = np.array([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6], [0.2, 0.5, 0.3]]), [0, 2, 1]
    given = Predictions(probs=probs, labels=labels, class_names=names)
    given.save(tmp_path / f"p.{stored}")
    found = loading.load(tmp_path / f"p.{stored}")
    found.save_calibrated(tmp_path / f"c.{ending}", probs, {})
    found.save_calibrated(tmp_path / "c.npz", probs, {})
    np.testing.assert_array_equal(np.load(tmp_path / "c.npz")["labels"], labels)
    p = Predictions.load(tmp_path / f"c.{ending}")
    called = p.class_names or ("0", "1", "2")
    assert [called[i] for i in p.labels] == [names[i] for i in labels]
    order = [names.index(name) for name in called]
    np.testing.assert_array_equal(p.probs, probs[:, order])


@pytest.mark.parametrize("names", [("1", "2"), ("-1", "1"), ("no", "yes")])
@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_one_column_of_two_classes_named_by_numbers_is_read_back(tmp_path, names, ending):
    path = tmp_path / f"p.{ending}"
    Predictions(probs=[0.25, 0.75], labels=[0, 1], class_names=names).save(path)
    p = Predictions.load(path)
    assert (p.probs.tolist(), p.labels.tolist()) == ([0.25, 0.75], [0, 1])


def test_texts_with_underscores_are_no_numbers(tmp_path):
    """Python reads 2026_05 as 202605."""
    path = tmp_path / "p.csv"
    path.write_text("prob_1_0,prob_2_0,label,month\n0.2,0.8,2_0,2026_05\n0.9,0.1,1_0,2026_12\n")
    p = Predictions.load(path)
    assert (p.class_names, p.labels.tolist()) == (("1_0", "2_0"), [1, 0])
    assert p.column("month").tolist() == ["2026_05", "2026_12"]
    frame = pd.DataFrame({"probs": p.probs.tolist(), "label": ["2026_12", "2026_05"]})
    with pytest.warns(InputWarning, match="alphabetical"):
        assert Predictions.from_frame(frame).class_names == ("2026_05", "2026_12")


def test_a_text_file_without_names_of_columns(tmp_path):
    np.savetxt(tmp_path / "p.csv", [[0.2, 0.8, 1], [0.7, 0.3, 0]], delimiter=",")
    with pytest.raises(FileFormatError, match="first line must name the columns, as in prob_0"):
        Predictions.load(tmp_path / "p.csv")


def test_a_missing_label_of_several_columns(tmp_path):
    path = tmp_path / "p.csv"
    path.write_text("prob_a,prob_b,label_a,label_b\n0.5,0.2,1,0\n0.1,0.9,1,\n")
    with pytest.raises(FileFormatError, match="column 'label_b': the label at row 1 is missing"):
        Predictions.load(path)
    with pytest.warns(InputWarning, match="labels are not used"):
        found = Predictions.load(path, labels_required=False, task="multilabel")
    assert (found.labels, sorted(found.extra)) == (None, ["label_a", "label_b"])


@pytest.mark.parametrize(
    "given", [pa.table({"probs": [0.5], "y": [1]}), pl.LazyFrame({"probs": [0.5]}), {}, Z]
)
def test_what_is_no_frame(given):
    with pytest.raises(InputError, match=f"pandas or polars frame, got {type(given).__name__};"):
        Predictions.from_frame(given)


def test_objects_within_objects(tmp_path):
    row = '{"out": {"probs": {"cat": 0.25, "dog": 0.75}, "ms": 7}, "y": "dog"}\n'
    (tmp_path / "p.jsonl").write_text(row)
    p = Predictions.load(tmp_path / "p.jsonl", probs="out.probs")
    assert (p.class_names, p.probs.tolist()) == (("cat", "dog"), [[0.25, 0.75]])
    assert p.column("out.ms").tolist() == [7]


def test_frames_whose_columns_have_commas_or_the_same_name():
    given = pd.DataFrame({"a,b": [0.4], "c": [0.6], "label": ["c"]})
    p = Predictions.from_frame(given, probs=["a,b", "c"])
    assert (p.class_names, p.labels.tolist()) == (("a,b", "c"), [1])
    with pytest.raises(FileFormatError, match="distinct column names"):
        Predictions.from_frame(pd.concat([given, given], axis=1), probs="c")
    with pytest.raises(FileFormatError, match="expected ','"):
        Predictions.from_frame(given, probs=",")


def test_labels_beside_probabilities_called_as_in_scikit_learn(tmp_path):
    for values, labels in (
        ("y_prob", "y_true"),
        ("my_scores", "my_labels"),
        ("y_probs", "y_labels"),
    ):
        np.save(tmp_path / f"{values}.npy", [0.2, 0.9])
        np.save(tmp_path / f"{labels}.npy", [0, 1])
        assert Predictions.load(tmp_path / f"{values}.npy").labels.tolist() == [0, 1]


def test_keywords_that_do_not_exist(tmp_path):
    (tmp_path / "p.csv").write_text("probs,labels\n0.5,1\n")
    for unknown in ("truth_key", "label", "classes_names"):
        with pytest.raises(TypeError, match=f"^unexpected keyword argument '{unknown}'; expected"):
            Predictions.load(tmp_path / "p.csv", **{unknown: "x"})


@pytest.mark.parametrize("ending", ["csv", "npz", "jsonl", "parquet"])
@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["9", "10", "-1"], [9, 10, -1]),
        (["1.5", "2", "1e3"], [1.5, 2.0, 1000.0]),
        (["007", "8", "9"], ["007", "8", "9"]),
        (["950", "1,234", "-1,234,567"], ["950", "1,234", "-1,234,567"]),
        (["950", "1,234", "0,5"], [950.0, 1.234, 0.5]),
        (["-00.5", "0.5", "0"], ["-00.5", "0.5", "0"]),
        ([str(2**70), str(2**70 + 1), "0"], [str(2**70), str(2**70 + 1), "0"]),
    ],
)
def test_carried_texts_are_numbers_only_where_nothing_is_lost(tmp_path, ending, texts, expected):
    path = tmp_path / f"p.{ending}"
    Predictions(probs=[0.1, 0.2, 0.3], labels=[0, 1, 0], extra={"code": np.array(texts)}).save(path)
    found = Predictions.load(path).column("code")
    assert [(x, type(x)) for x in found.tolist()] == [(x, type(x)) for x in expected]


def test_numbers_beside_columns_in_another_order_are_said_to_be_of_that_order():
    given = pd.DataFrame({"prob_a": [0.4, 0.1], "prob_b": [0.6, 0.9], "y": [0, 1]})
    with pytest.warns(InputWarning, match="in the order b, a; the label 0 is taken to be b"):
        p = Predictions.from_frame(given, classes=["b", "a"])
    assert p.labels.tolist() == [0, 1]
    assert Predictions.from_frame(given, classes=["a", "b"]).labels.tolist() == [0, 1]


@pytest.mark.parametrize("kind", ["string", "boolean", "Int64"])
def test_missing_labels_of_pandas_own_types(kind):
    label = {"string": ["a", None], "boolean": [True, None], "Int64": [1, None]}[kind]
    given = pd.DataFrame({"prob_a": [0.4, 0.1], "prob_b": [0.6, 0.9]})
    given["label"] = pd.array(label, dtype=kind)
    with pytest.raises(FileFormatError, match="label at row 1 is missing"):
        Predictions.from_frame(given)
    with pytest.warns(InputWarning, match="labels are not used"):
        assert Predictions.from_frame(given, labels_required=False).labels is None


@pytest.mark.parametrize("order", [["pos", "neg"], ["neg", "pos"], ["pos"], ["neg"]])
@pytest.mark.parametrize("classes", [None, ("neg", "pos")])
def test_numbers_of_a_class_label_mean_its_names(tmp_path, order, classes):
    """Whatever the order of the columns, which then are called by the names of the ClassLabel."""
    if classes and order == ["neg"]:
        return  # a single column is that of the second class
    probs = {"pos": [0.9, 0.2], "neg": [0.1, 0.8]}
    table = pa.table({f"prob_{name}": probs[name] for name in order} | {"label": [1, 0]})
    with pa.ipc.new_stream(tmp_path / "data.arrow", table.schema) as writer:
        writer.write_table(table)
    feature = {"names": ["neg", "pos"], "_type": "ClassLabel"}
    (tmp_path / "dataset_info.json").write_text(json.dumps({"features": {"label": feature}}))
    found = loading.load(tmp_path, Keys(classes=classes))
    p = found.predictions
    assert [p.class_names[i] for i in p.labels] == ["pos", "neg"]
    assert p.probabilities()[:, p.class_names.index("pos")].tolist() == pytest.approx([0.9, 0.2])
    found.save_calibrated(tmp_path / "c.parquet", p.probabilities(), {})
    again = Predictions.load(tmp_path / "c.parquet")
    assert again.labels.tolist() == p.labels.tolist()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([1, None], None),
        ([1, -1], None),
        ([1.0, 0.0], ["pos", "neg"]),
        (["pos", "neg"], ["pos", "neg"]),
    ],
)
def test_labels_of_a_class_label_that_are_no_plain_numbers(tmp_path, given, expected):
    table = pa.table({"prob_pos": [0.9, 0.2], "prob_neg": [0.1, 0.8], "label": given})
    with pa.ipc.new_stream(tmp_path / "data.arrow", table.schema) as writer:
        writer.write_table(table)
    feature = {"names": ["neg", "pos"], "_type": "ClassLabel"}
    (tmp_path / "dataset_info.json").write_text(json.dumps({"features": {"label": feature}}))
    if expected is None:
        with pytest.raises(FileFormatError, match="label at row 1 is missing"):
            Predictions.load(tmp_path)
        with pytest.warns(InputWarning, match="labels are not used"):
            assert Predictions.load(tmp_path, labels_required=False).labels is None
    else:
        p = Predictions.load(tmp_path)
        assert [p.class_names[i] for i in p.labels] == expected


def stored_names(folder, kind: str, probs: np.ndarray, codes: np.ndarray):
    """A file with the class names NAMES beside integers as labels, or their one-hot rows."""
    path = folder / f"p.{'parquet' if kind == 'parquet' else 'npz'}"
    if kind in ("npz", "parquet"):
        Predictions(probs=probs, labels=codes, class_names=NAMES).save(path)
    elif kind in ("array", "one-hot"):
        labels = np.eye(3)[codes] if kind == "one-hot" else codes.astype(float)
        np.savez(path, probs=probs, labels=labels, class_names=np.array(NAMES))
    elif kind == "columns":
        labels = {f"label_{name}": codes == i for i, name in [*enumerate(NAMES)][::-1]}
        metadata = np.array(json.dumps({"class_names": NAMES}))
        np.savez(path, probs=probs, focalcal=metadata, **labels)
    elif kind == "applied":  # to a file whose columns name the classes
        columns = {f"probs_{name}": probs[:, i] for i, name in enumerate(NAMES)}
        write_table(folder / "p.csv", columns | {"labels": codes}, {})
        loading.load(folder / "p.csv").save_calibrated(path, probs, {})
    else:
        table = pa.table({"probs": list(probs), "label": codes})
        with pa.ipc.new_stream(folder / "data.arrow", table.schema) as writer:
            writer.write_table(table)
        features = {"label": {"names": NAMES, "_type": "ClassLabel"}}
        (folder / "dataset_info.json").write_text(json.dumps({"features": features}))
        return folder
    return path


@pytest.mark.parametrize("ending", ["npz", "parquet", "csv", "jsonl"])
@pytest.mark.parametrize(
    "kind", ["npz", "parquet", "array", "applied", "one-hot", "columns", "ClassLabel"]
)
def test_integers_beside_stored_names_mean_these_in_every_order(tmp_path, rng, kind, ending):
    """Accuracy and log-loss come from the names of the labels, each looked up in its own row."""
    probs, codes = rng.dirichlet(np.ones(3), 40), rng.integers(0, 3, 40)
    truth = [NAMES[i] for i in codes]
    rows = [dict(zip(NAMES, row)) for row in probs]
    accuracy = np.mean([max(row, key=row.get) == name for row, name in zip(rows, truth)])
    log_loss = -np.mean([np.log(row[name]) for row, name in zip(rows, truth)])
    order, written = ("high", "low", "medium"), tmp_path / f"written.{ending}"

    def check(p: Predictions, names: tuple[str, ...]) -> None:
        assert p.class_names == names
        assert np.mean(p.probs.argmax(axis=1) == p.labels) == accuracy
        assert -np.log(p.probs[np.arange(40), p.labels]).mean() == pytest.approx(log_loss)
        assert [names[i] for i in p.labels] == truth

    found = loading.load(stored_names(tmp_path, kind, probs, codes), Keys(classes=order))
    check(found.predictions, order)
    found.save_calibrated(written, found.predictions.probs, {})
    check(Predictions.load(written), order)
    check(Predictions.load(written, classes=NAMES), NAMES)


@pytest.mark.parametrize("label", [[0, None, 2], [0.0, np.nan, 2.0], ["0", "NA", "2"]])
def test_missing_labels_remain_so_in_another_order(tmp_path, label):
    table = pa.table({"probs": list(np.full((3, 3), 1 / 3)), "label": label})
    metadata = {"focalcal": json.dumps({"class_names": NAMES})}
    pq.write_table(table.replace_schema_metadata(metadata), tmp_path / "p.parquet")
    keys = Keys(classes=NAMES[::-1], labels_required=False)
    with pytest.warns(InputWarning, match="the label at row 1 is missing"):
        found = loading.load(tmp_path / "p.parquet", keys)
    found.save_calibrated(tmp_path / "c.parquet", found.predictions.probs, {})
    written = pq.read_table(tmp_path / "c.parquet")["label"].to_pylist()
    assert written == ["low", None, "high"]


@pytest.mark.parametrize("wrong", [-1, 3, 0.5])
@pytest.mark.filterwarnings("ignore:.*the columns of the classes were put in the order")
def test_labels_that_are_no_positions_in_the_stored_names(tmp_path, wrong):
    np.savez(tmp_path / "p.npz", logits=Z[:2], labels=np.array([0, wrong]), class_names=NAMES)
    with pytest.raises(InputError, match=r"expected (labels in 0\.\.2, got|integer labels)"):
        Predictions.load(tmp_path / "p.npz", classes=NAMES[::-1])


@pytest.mark.parametrize("names", [("False", "True"), ("True", "False"), ("no", "yes")])
@pytest.mark.parametrize("kind", [bool, int])
def test_booleans_beside_stored_names_mean_the_same_in_every_order(tmp_path, names, kind):
    labels = np.array([False, True, True]).astype(kind)
    for given in (Z[:, :2], Z[::-1, :2]):
        np.savez(tmp_path / "p.npz", logits=given, labels=labels, class_names=names)
        for order in (names, names[::-1]):
            p = Predictions.load(tmp_path / "p.npz", classes=order)
            by_name = kind is bool and "True" in names
            expected = [str(bool(x)) if by_name else names[int(x)] for x in labels]
            assert [p.class_names[i] for i in p.labels] == expected


@pytest.mark.parametrize("names", [("5", "6", "7"), ("1", "2", "3")])
def test_numbers_that_are_class_names_mean_the_same_in_every_order(tmp_path, names):
    for codes in (np.array([0, 2]), np.array([0, 2]) + int(names[0])):
        np.savez(tmp_path / "p.npz", logits=Z[:2], labels=codes, class_names=names)
        for order in (names, names[::-1]):
            p = Predictions.load(tmp_path / "p.npz", classes=order)
            assert [p.class_names[i] for i in p.labels] == [names[0], names[2]]


def test_a_class_label_whose_names_are_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.NAMES", ("1", "2", "3"))
    p = Predictions.load(stored_names(tmp_path, "ClassLabel", np.eye(3), Y))
    assert (p.class_names, p.labels.tolist()) == (("1", "2", "3"), Y.tolist())


def test_columns_of_labels_beside_a_matrix_are_matched_by_name(tmp_path):
    one_hot = {f"is_{name}": i == Y for i, name in [*enumerate(NAMES)][::-1]}
    np.savez(tmp_path / "p.npz", logits=Z, **one_hot)
    p = Predictions.load(tmp_path / "p.npz", classes=NAMES, labels="is_high,is_medium,is_low")
    assert p.labels.tolist() == Y.tolist()


def test_a_single_column_of_class_1_is_not_that_of_class_0(tmp_path):
    Predictions(probs=[0.2, 0.9], labels=[0, 1], class_names=("0", "1")).save(tmp_path / "p.npz")
    with pytest.raises(FileFormatError, match="expected the column of class '0', got that of '1'"):
        Predictions.load(tmp_path / "p.npz", classes=("1", "0"))
    assert Predictions.load(tmp_path / "p.npz", classes=("no", "yes")).labels.tolist() == [0, 1]


def test_labels_of_a_single_column_are_not_positions_in_the_names_of_others(tmp_path):
    given = {"prob_b": np.array([0.2, 0.9]), "is_b": np.array([0, 1])}
    np.savez(tmp_path / "p.npz", **given, class_names=["b", "c", "d"])
    p = Predictions.load(tmp_path / "p.npz", labels="is_b")
    assert (p.class_names, p.labels.tolist()) == (("not b", "b"), [0, 1])


def test_missing_labels_of_several_columns_are_all_known(tmp_path):
    path = tmp_path / "p.csv"
    path.write_text("prob_a,prob_b,label_a,label_b\n0.5,0.5,,0\n0.1,0.9,0,1\n0.2,0.8,0,NA\n")
    with pytest.raises(MissingLabel, match="column 'label_a': the label at row 0") as raised:
        Predictions.load(path)
    assert raised.value.missing.tolist() == [True, False, True]


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_carried_matrices_are_not_said_to_be_of_the_classes(tmp_path, ending):
    """They stay in the order of their file, which is not that of the probabilities."""
    probs = np.array([[0.2, 0.7, 0.1], [0.5, 0.2, 0.3]])
    np.savez(tmp_path / "p.npz", logits=np.log(probs), probs=probs, labels=Y[:2], class_names=NAMES)
    found = loading.load(tmp_path / "p.npz", Keys(classes=NAMES[::-1]))
    found.save_calibrated(tmp_path / f"c.{ending}", probs[:, ::-1], {})
    table, _ = read_table(tmp_path / f"c.{ending}")
    dot = "_" if ending == "csv" else "."
    assert [float(table[f"probs{dot}{name}"][0]) for name in NAMES] == probs[0].tolist()
    if ending == "csv":
        carried = [table[f"uncalibrated_probs_{j}"][0] for j in range(3)]
    else:
        carried = table["uncalibrated_probs"][0]
    assert [float(x) for x in carried] == probs[0].tolist()


@pytest.mark.parametrize("names", [["logits"], ["logit_0", "logit_1", "logit_2"]])
def test_calibrated_probabilities_are_read_and_not_the_logits_beside(tmp_path, names):
    columns = dict(zip(names, [Z] if len(names) == 1 else Z.T))
    np.savez(tmp_path / "p.npz", probs=np.full((3, 3), 1 / 3), labels=Y, **columns)
    found = loading.load(tmp_path / "p.npz", Keys(probs="probs"))
    found.save_calibrated(tmp_path / "c.npz", np.eye(3), {})
    written = Predictions.load(tmp_path / "c.npz")
    assert written.probs.tolist() == np.eye(3).tolist()
    assert sorted(written.extra) == [f"uncalibrated_{name}" for name in names]


def test_all_ways_to_write_a_missing_label_are_found_at_once(tmp_path):
    texts = ["cat", None, "dog", "NA", "n/a", "dog"]
    columns = {"probs_cat": [0.5] * 6, "probs_dog": [0.5] * 6, "label": texts}
    pq.write_table(pa.table(columns), tmp_path / "p.parquet")
    with pytest.raises(MissingLabel, match="label at row 1 is missing") as caught:
        Predictions.load(tmp_path / "p.parquet")
    assert np.flatnonzero(caught.value.missing).tolist() == [1, 3, 4]
    columns |= {"label": ["NA", None, "dog"] * 2, "probs_NA": columns.pop("probs_cat")}
    pq.write_table(pa.table(columns), tmp_path / "p.parquet")
    with pytest.raises(MissingLabel) as caught:
        Predictions.load(tmp_path / "p.parquet")
    assert np.flatnonzero(caught.value.missing).tolist() == [1, 4]


def huggingface_parquet(path, columns: dict, names: list[str], **metadata: str) -> None:
    """A file as `Dataset.to_parquet` writes it: a ClassLabel is integers, its names are a note."""
    features = {
        "label": {"names": names, "_type": "ClassLabel"},
        "probs": {"dtype": "float64", "_type": "Value"},
    }
    note = {"huggingface": json.dumps({"info": {"features": features}}), **metadata}
    pq.write_table(pa.table(columns).replace_schema_metadata(note), path)


@pytest.mark.parametrize("order", [["pos", "neg"], ["neg", "pos"]])
def test_a_class_label_in_parquet_names_the_classes(tmp_path, order):
    probs = {"pos": [0.9, 0.2], "neg": [0.1, 0.8]}
    columns = {f"prob_{name}": probs[name] for name in order} | {"label": [1, 0]}
    huggingface_parquet(tmp_path / "p.parquet", columns, ["neg", "pos"])
    (part,) = Source.open(tmp_path / "p.parquet").partitions[0].batches()
    for p in (Predictions.load(tmp_path / "p.parquet"), part):
        assert [p.class_names[i] for i in p.labels] == ["pos", "neg"]
        of_pos = p.probabilities()[:, p.class_names.index("pos")]
        assert of_pos.tolist() == pytest.approx([0.9, 0.2])
    columns = {"probs": [[0.1, 0.9], [0.8, 0.2]], "label": [1, 0]}
    huggingface_parquet(tmp_path / "p.parquet", columns, ["neg", "pos"])
    turned = {"probs": [[0.9, 0.1], [0.2, 0.8]], "label": [0, 1]}
    huggingface_parquet(tmp_path / "q.parquet", turned, ["pos", "neg"])
    source = Source.open([tmp_path / "p.parquet", tmp_path / "q.parquet"])
    read = [next(p.batches()) for p in source.partitions]
    for p in (Predictions.load(tmp_path / "p.parquet"), *read):
        assert (p.class_names, p.labels.tolist()) == (("neg", "pos"), [1, 0])
        assert p.probabilities().tolist() == [[0.1, 0.9], [0.8, 0.2]]


def test_class_names_of_the_file_come_before_those_of_a_class_label(tmp_path):
    own = json.dumps({"class_names": ["ham", "spam"]})
    columns = {"probs": [[0.1, 0.9], [0.8, 0.2]], "label": [1, 0]}
    huggingface_parquet(tmp_path / "p.parquet", columns, ["neg", "pos"], focalcal=own)
    p = Predictions.load(tmp_path / "p.parquet")
    assert (p.class_names, p.labels.tolist()) == (("ham", "spam"), [1, 0])
    huggingface_parquet(tmp_path / "p.parquet", columns, ["a", "b", "c"])
    assert Predictions.load(tmp_path / "p.parquet").class_names is None
    assert Source.open(tmp_path / "p.parquet").n_classes == 2


@pytest.mark.parametrize("note", ['{"info": null}', '{"info": {"features": [1]}}', "{}"])
def test_other_notes_of_datasets_are_no_names(tmp_path, note):
    table = pa.table({"probs": [[0.1, 0.9], [0.8, 0.2]], "label": [1, 0]})
    pq.write_table(table.replace_schema_metadata({"huggingface": note}), tmp_path / "p.parquet")
    assert Predictions.load(tmp_path / "p.parquet").class_names is None


@pytest.mark.parametrize("key", ["huggingface", "focalcal"])
def test_damaged_metadata_of_parquet_is_refused(tmp_path, key):
    table = pa.table({"probs": [[0.1, 0.9], [0.8, 0.2]], "label": [1, 0]})
    pq.write_table(table.replace_schema_metadata({key: b"{\xff"}), tmp_path / "p.parquet")
    for read in (Predictions.load, Source.open):
        with pytest.raises(FileFormatError, match=f"{key} metadata is not JSON"):
            read(tmp_path / "p.parquet")
