"""Predictions: what goes in comes out of every format, and bad input is named by row and column."""

from __future__ import annotations

import numpy as np
import pandas
import polars
import pytest
import torch
from scipy.special import expit, log_softmax

from focalcal.errors import FileFormatError, InputError, InputWarning
from focalcal.metrics import evaluate
from focalcal.predictions import Predictions

LOGITS = np.array([[2.0, 0.0, -1.0], [0.5, 0.25, 3.0], [-1e4, 1e4, 0.0], [0.1, 0.2, 0.3]])
LABELS = np.array([0, 2, 1, 1])


@pytest.mark.parametrize("suffix", ["npz", "parquet", "csv"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_format_returns_the_same_bits(tmp_path, suffix, dtype):
    saved = Predictions(logits=LOGITS.astype(dtype), labels=LABELS)
    saved.save(tmp_path / f"p.{suffix}")
    loaded = Predictions.load(tmp_path / f"p.{suffix}")
    np.testing.assert_array_equal(loaded.logits, saved.logits)
    np.testing.assert_array_equal(loaded.labels, LABELS)
    assert [f.name for f in tmp_path.iterdir()] == [f"p.{suffix}"]


@pytest.mark.parametrize("suffix", ["npz", "parquet"])
def test_names_provenance_and_task_are_kept(tmp_path, suffix):
    saved = Predictions(
        probs=np.array([[0.2, 0.9], [1.0, 0.0]]),
        labels=np.array([[0, 1], [1, 0]]),
        task="multilabel",
        class_names=("cat", "<b>dog</b>"),
        provenance={"seed": 3},
    )
    saved.save(tmp_path / f"p.{suffix}")
    loaded = Predictions.load(tmp_path / f"p.{suffix}")
    assert loaded.class_names == saved.class_names
    assert loaded.provenance == {"seed": 3}
    assert loaded.task == "multilabel"
    np.testing.assert_array_equal(loaded.labels, saved.labels)


def test_logits_and_probabilities_agree_with_scipy():
    p = Predictions(logits=LOGITS, labels=LABELS)
    np.testing.assert_allclose(p.log_probs(), log_softmax(LOGITS, axis=1), rtol=1e-14)
    np.testing.assert_allclose(p.probabilities().sum(axis=1), 1)
    q = Predictions(probs=p.probabilities()[:2], labels=LABELS[:2])
    np.testing.assert_allclose(q.as_logits(), p.log_probs()[:2], rtol=1e-13)


@pytest.mark.parametrize("shape", [(5,), (5, 1)])
def test_binary_columns_are_for_class_one(shape, rng):
    s = rng.normal(size=5)
    p = Predictions(logits=s.reshape(shape), labels=np.array([0, 1, 1, 0, 1]))
    assert p.n_classes == 2
    np.testing.assert_allclose(p.probabilities()[:, 1], expit(s), rtol=1e-14)
    q = Predictions(probs=expit(s).reshape(shape), labels=np.array([0, 1, 1, 0, 1]))
    np.testing.assert_allclose(q.probabilities(), p.probabilities(), rtol=1e-14)


def test_multilabel_logits_are_independent():
    s = np.array([[1e4, -1e4], [0.3, -2.0]])
    p = Predictions(logits=s, labels=np.array([[1, 0], [1, 1]]), task="multilabel")
    np.testing.assert_allclose(p.probabilities(), expit(s), rtol=1e-14)
    q = Predictions(probs=expit(s[1:]), labels=np.array([[1, 1]]), task="multilabel")
    np.testing.assert_allclose(q.as_logits(), s[1:], rtol=1e-12)
    with pytest.raises(InputError, match="as_logits"):
        p.log_probs()


def test_torch_stays_torch():
    p = Predictions(logits=torch.tensor(LOGITS), labels=torch.tensor(LABELS))
    assert isinstance(p.log_probs(), torch.Tensor)
    first, second = p.split(0.5, seed=1)
    assert isinstance(first.logits, torch.Tensor)
    assert first.n + second.n == 4


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor])
def test_rows_are_taken_by_number_or_by_mask(kind):
    p = Predictions(logits=kind(np.arange(8.0).reshape(4, 2)), labels=kind(np.array([0, 1, 1, 0])))
    picks = ([-1, 0], np.array([3, 0], np.uint8), np.arange(4)[::-3], [3, 0])
    for rows in picks:
        assert p.take(rows).logits.tolist() == [[6.0, 7.0], [0.0, 1.0]]
        assert type(p.take(rows).logits) is type(p.logits)
    assert p.take(np.array([True, False, False, True])).labels.tolist() == [0, 0]
    for rows in ([0.7, 1.2], [4]):
        with pytest.raises(IndexError):
            p.take(rows)


def test_split_is_disjoint_and_complete(rng):
    p = Predictions(logits=np.arange(22.0).reshape(11, 2), labels=np.zeros(11, int))
    first, second = p.split(0.3, seed=5)
    assert first.n == 3
    rows = np.concatenate([first.logits[:, 0], second.logits[:, 0]])
    np.testing.assert_array_equal(np.sort(rows), p.logits[:, 0])
    again, _ = p.split(0.3, seed=5)
    np.testing.assert_array_equal(again.logits, first.logits)


@pytest.mark.parametrize("fraction", [0.0, 1.0, 0.001])
def test_split_needs_rows_on_both_sides(fraction):
    with pytest.raises(InputError, match="both sides"):
        Predictions(logits=LOGITS, labels=LABELS).split(fraction)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "exactly one of logits and probs"),
        ({"logits": LOGITS, "probs": LOGITS}, "exactly one of logits and probs"),
        ({"logits": LOGITS, "task": "ranking"}, "expected task in"),
        ({"logits": LOGITS, "labels": [0, 1]}, r"labels of shape \(4,\)"),
        ({"logits": LOGITS, "labels": [0, 1, 3, 0]}, "got 3 at row 2"),
        ({"logits": LOGITS, "labels": [0.0, 1.0, 1.0, 0.0]}, "integer labels"),
        ({"logits": [[0.0, np.nan]]}, "row 0, column 1"),
        ({"logits": [[0.0, 1.0], [np.inf, 0.0]]}, "row 1, column 0"),
        ({"logits": np.zeros((0, 3))}, r"N >= 1"),
        ({"logits": [["a", "b"]]}, "expected numbers"),
        ({"logits": LOGITS, "class_names": ("a",)}, "3 class names, got 1"),
        ({"logits": LOGITS, "class_names": ("b", "a", "a")}, "distinct class names, got 'a' twice"),
        ({"probs": [[0.5, 0.6]]}, "sum to 1, got 1.1 at row 0"),
        ({"probs": [[1.5, -0.5]]}, r"in \[0, 1\]"),
        ({"probs": [[0.1, 0.9]], "labels": [1], "task": "multilabel"}, "multi-label labels"),
        ({"probs": [[0.1, 0.9]], "labels": [[1, 2]], "task": "multilabel"}, "got 2 at row 1"),
    ],
)
def test_bad_arrays_are_named(arguments, message):
    with pytest.raises(InputError, match=message):
        Predictions(**arguments)


@pytest.mark.parametrize("decimals", [2, 3, 4, 5])
def test_rounded_probabilities_are_rescaled_and_evaluated(decimals, rng):
    p = np.round(rng.dirichlet(np.ones(4), 200), decimals)
    with pytest.warns(InputWarning, match="rescaled"):
        given = Predictions(probs=p, labels=rng.integers(0, 4, 200))
    evaluate(given.labels, given.probabilities(), resamples=2)  # no second warning


@pytest.mark.filterwarnings("ignore:rows of probs do not sum to 1")
@pytest.mark.parametrize("k", [2, 10, 1000])
def test_half_precision_is_evaluated(k, rng):
    p = rng.dirichlet(np.ones(k), 100).astype(np.float16)
    given = Predictions(probs=p, labels=rng.integers(0, k, 100))
    found = evaluate(given.labels, given.probabilities(), resamples=2)
    assert found["accuracy"].value == (p.argmax(axis=1) == given.labels).mean()


def test_zero_probability_needs_a_floor():
    p = Predictions(probs=np.array([[0.5, 0.5], [1.0, 0.0]]), labels=np.array([0, 0]))
    with pytest.raises(InputError, match="row 1, column 1"):
        p.log_probs()
    floored = np.exp(p.log_probs(floor=1e-6))
    np.testing.assert_allclose(floored.sum(axis=1), 1)
    assert floored[1, 1] == pytest.approx(1e-6, rel=1e-5)
    with pytest.raises(InputError, match="floor between"):
        p.log_probs(floor=0.7)


def test_keys_name_other_arrays(tmp_path):
    np.savez(tmp_path / "p.npz", val_logits=LOGITS, val_labels=LABELS)
    loaded = Predictions.load(tmp_path / "p.npz", logits_key="val_logits", labels_key="val_labels")
    np.testing.assert_array_equal(loaded.logits, LOGITS)
    with pytest.raises(FileFormatError, match="val_logits, val_labels"):
        Predictions.load(tmp_path / "p.npz")
    with pytest.raises(FileFormatError, match="expected 'x'"):
        Predictions.load(tmp_path / "p.npz", logits_key="x")


def test_labels_may_be_absent_where_they_are_not_needed(tmp_path):
    np.savez(tmp_path / "p.npz", logits=LOGITS)
    assert Predictions.load(tmp_path / "p.npz", labels_required=False).labels is None
    with pytest.raises(FileFormatError, match="expected 'labels'"):
        Predictions.load(tmp_path / "p.npz")


def test_a_bad_array_in_a_file_names_the_file(tmp_path):
    np.savez(tmp_path / "p.npz", logits=LOGITS, labels=LABELS + 0.5)
    with pytest.raises(InputError, match=r"p\.npz: expected integer labels"):
        Predictions.load(tmp_path / "p.npz")


def test_golden_file_loads(shared_data):
    p = Predictions.load(
        shared_data / "logits" / "cifar10_resnet50_flsd53.npz",
        logits_key="test_logits",
        labels_key="test_labels",
    )
    assert (p.n, p.n_classes) == (10_000, 10)
    assert (p.logits.argmax(axis=1) == p.labels).mean() == 0.9502


def test_ids_and_other_columns_are_carried(tmp_path):
    p = Predictions(
        logits=LOGITS,
        labels=LABELS,
        ids=["007", "b", "c", "d"],
        extra={"country": ["FI", "SE", "FI", "NO"], "age": [1.5, 2, 3, 4]},
    )
    assert p.take([2, 0]).ids.tolist() == ["c", "007"]
    assert p.take([2, 0]).column("country").tolist() == ["FI", "FI"]
    assert [part.n for part in p.split(0.5)] == [2, 2]
    for name in ("p.npz", "p.parquet", "p.csv", "p.tsv", "p.jsonl", "p.csv.gz", "p.jsonl.gz"):
        p.save(tmp_path / name)
        again = Predictions.load(tmp_path / name)
        np.testing.assert_array_equal(again.logits, LOGITS)
        np.testing.assert_array_equal(again.labels, LABELS)
        assert again.ids.tolist() == p.ids.tolist()
        assert again.column("country").tolist() == p.column("country").tolist()
        assert again.column("age").tolist() == [1.5, 2, 3, 4]
    assert p.column("labels").tolist() == p.column("y_true").tolist() == LABELS.tolist()
    with pytest.raises(InputError, match="country, age, ids, labels; got 'town'"):
        p.column("town")


@pytest.mark.parametrize(
    ("carried", "message"),
    [
        ({"ids": [1, 2]}, r"ids of 4 samples, got shape \(2,\)"),
        ({"extra": {"a": [1]}}, r"column 'a' of 4 samples, got shape \(1,\)"),
        ({"extra": {"a": 1}}, r"got shape \(\)"),
    ],
)
def test_carried_columns_have_a_value_per_sample(carried, message):
    with pytest.raises(InputError, match=message):
        Predictions(logits=LOGITS, **carried)


NAMES = ("low", "medium", "high")
TEXTS = [NAMES[i] for i in LABELS]


@pytest.mark.parametrize("kind", ["list", "numpy", "object", "pandas", "categorical", "enum"])
def test_text_labels_are_looked_up_among_the_class_names(kind):
    given = {
        "list": lambda: TEXTS,
        "numpy": lambda: np.array(TEXTS),
        "object": lambda: np.array(TEXTS, dtype=object),
        "pandas": lambda: pandas.Series(TEXTS, index=[9, 8, 7, 6]),
        "categorical": lambda: pandas.Series(pandas.Categorical(TEXTS)),  # alphabetical codes
        "enum": lambda: polars.Series(TEXTS, dtype=polars.Enum(sorted(NAMES))),
    }[kind]()
    p = Predictions(logits=LOGITS, labels=given, class_names=NAMES)
    np.testing.assert_array_equal(p.labels, LABELS)
    assert p.class_names == NAMES


@pytest.mark.parametrize("suffix", ["npz", "parquet", "csv", "tsv", "jsonl"])
def test_class_names_survive_every_format(tmp_path, suffix):
    p = Predictions(logits=LOGITS, labels=TEXTS, class_names=NAMES)
    p.save(tmp_path / f"p.{suffix}")
    again = Predictions.load(tmp_path / f"p.{suffix}")
    assert again.class_names == NAMES
    np.testing.assert_array_equal(again.labels, LABELS)


def test_categories_are_class_names():
    labels = pandas.Categorical(TEXTS, categories=NAMES, ordered=True)
    p = Predictions(logits=LOGITS, labels=labels)
    np.testing.assert_array_equal(p.labels, LABELS)
    assert p.class_names == NAMES


def test_texts_alone_are_ordered_as_in_scikit_learn_and_it_is_said():
    with pytest.warns(InputWarning, match="high, low, medium, in alphabetical order"):
        p = Predictions(logits=LOGITS, labels=TEXTS)
    assert p.class_names == ("high", "low", "medium")
    np.testing.assert_array_equal(p.labels, [1, 0, 2, 2])


@pytest.mark.parametrize(
    ("labels", "names", "message"),
    [
        (["a", "b", "a", "b"], None, "3 different labels, one per class, got 2: a, b"),
        (["a", "b", "c", "x"], ("a", "b", "c"), "among a, b, c, got 'x' at row 3"),
        (["a", "b", "c", "a"], ("a", "b", "a"), "distinct class names"),
        (pandas.Categorical(["a", "b", "a", "b"]), None, "3 categories in labels"),
        (pandas.Categorical(["a", "b", "c", None]), None, "got none at row 3"),
    ],
)
def test_text_labels_that_fit_no_class(labels, names, message):
    with pytest.raises(InputError, match=message):
        Predictions(logits=LOGITS, labels=labels, class_names=names)
