"""Every loader, given damaged and hostile files: a valid result or a FocalcalError."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from focalcal import calibrators
from focalcal.errors import FocalcalError
from focalcal.metrics import CalibrationStats
from focalcal.predictions import Predictions

from .conftest import JSON, cases, count, damage, mutated

RNG = np.random.default_rng(0)
RECIPES = Path(__file__).resolve().parents[2] / "recipes"
LOGITS, LABELS = RNG.normal(size=(6, 3)), np.array([0, 1, 2, 0, 1, 2])
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


def saved(folder, suffix: str) -> bytes:
    path = folder / f"good{suffix}"
    Predictions(logits=LOGITS, labels=LABELS, class_names=("a", "b", "c")).save(path)
    return path.read_bytes()


def check_predictions(load, name: str) -> None:
    """Load and use: what is accepted has probabilities that are probabilities."""
    try:
        found = load()
        probs = found.probabilities()
    except FocalcalError:
        count(name, "refused")
        return
    assert np.isfinite(probs).all()
    assert (probs >= 0).all()
    assert (probs <= 1 + 1e-6).all()
    if found.task == "auto":
        np.testing.assert_allclose(probs.sum(axis=1), 1, atol=3e-2)
        assert probs.shape == (found.n, found.n_classes)
    count(name, "accepted")


@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".csv"])
def test_damaged_files(folder, suffix):
    good = saved(folder, suffix)
    path = folder / f"bad{suffix}"

    @cases(0.1)
    @given(damage(good))
    def run(data: bytes) -> None:
        path.write_bytes(data)
        check_predictions(lambda: Predictions.load(path), f"damaged {suffix}")

    run()


DTYPES = st.sampled_from(
    ["f2", "f4", "f8", "i1", "i8", "u8", "?", "U3", "S2", "M8[s]", "c8", "f16"]
)
ARRAYS = DTYPES.flatmap(
    lambda d: hnp.arrays(
        np.dtype(d), hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
    )
)


@st.composite
def tables(draw):
    names = st.sampled_from(
        ["logits", "probs", "labels", "logits_0", "logits_1", "focalcal", "é/.."]
    )
    return draw(st.dictionaries(names, ARRAYS | st.just(LOGITS) | st.just(LABELS), max_size=4))


def test_npz_of_any_arrays(folder):
    path = folder / "any.npz"

    @cases(0.05)
    @given(tables())
    def run(table) -> None:
        np.savez(path, **table)
        check_predictions(lambda: Predictions.load(path), "npz of any arrays")

    run()


def test_parquet_of_any_columns(folder):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    path = folder / "any.parquet"
    scalars = st.none() | st.integers(-3, 300) | st.floats() | st.text(max_size=2) | st.booleans()
    column = st.one_of(
        st.lists(kind, min_size=2, max_size=2)
        for kind in (
            st.integers(0, 3),
            st.floats(),
            st.lists(st.floats(), min_size=2, max_size=2),
            st.none() | st.lists(st.none() | st.floats(width=32), max_size=3),
            scalars,
            st.binary(max_size=3),
            st.dates(),
            st.dictionaries(st.text(max_size=2), st.floats(), max_size=2),
        )
    )
    names = st.sampled_from(["logits", "probs", "labels", "logits_0", "logits_1", "logits_00"])

    @cases(0.05)
    @given(st.dictionaries(names, column, min_size=1, max_size=4), JSON)
    def run(table, metadata) -> None:
        try:
            arrow = pa.table(table)
            text = json.dumps(metadata)
            pq.write_table(arrow.replace_schema_metadata({"focalcal": text}), path)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            return
        check_predictions(lambda: Predictions.load(path), "parquet of any columns")
        from focalcal.scale import Source

        try:
            for partition in Source.open(path).partitions:
                list(partition.batches())
        except FocalcalError:
            pass

    run()


def test_csv_of_any_text(folder):
    path = folder / "any.csv"
    cell = st.sampled_from(["1", "0.5", "nan", "1e999", "", '"', "x", "=1+1", "\x00", " 2 ", "1_0"])
    line = st.lists(cell, max_size=4).map(",".join)
    header = st.sampled_from(["logits_0,logits_1,labels", "probs,labels", "logits,labels", "a,a"])
    text = st.builds(lambda h, rows: "\n".join([h, *rows]), header, st.lists(line, max_size=5))

    @cases(0.05)
    @given(text | st.text(max_size=60))
    def run(content: str) -> None:
        path.write_bytes(content.encode("utf-8", "surrogatepass"))
        check_predictions(lambda: Predictions.load(path), "csv of any text")

    run()


@pytest.fixture(scope="module")
def documents():
    from focalcal.calibrators.persistence import to_dict

    rng = np.random.default_rng(1)
    z = 2 * rng.normal(size=(200, 3))
    y = np.argmax(z / 2 + rng.gumbel(size=z.shape), axis=1)
    found = []
    for name in calibrators.METHODS:
        fitted = calibrators.make(name)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("warnings.warn", lambda *a, **k: None)
            fitted.fit(z, y)
        found.append(json.loads(json.dumps(to_dict(fitted))))
    return found


def check_calibrator(path, name: str) -> None:
    try:
        loaded = calibrators.load(path)
        probs = loaded.predict_proba(np.zeros((2, max(loaded.n_classes_, 1))))
    except FocalcalError:
        count(name, "refused")
        return
    assert np.isfinite(probs).all()
    assert (probs >= 0).all()
    if loaded.task == "auto":
        np.testing.assert_allclose(probs.sum(axis=1), 1, atol=1e-6)
    count(name, "accepted")


def test_calibrator_documents(folder, documents):
    path = folder / "c.json"

    @cases(0.15)
    @given(st.sampled_from(documents).flatmap(mutated))
    def run(document) -> None:
        path.write_bytes(json.dumps(document).encode("utf-8", "surrogatepass"))
        check_calibrator(path, "calibrator JSON, fields changed")

    run()


def test_damaged_calibrator_files(folder, documents):
    path = folder / "d.json"
    good = json.dumps(documents[1]).encode()

    @cases(0.05)
    @given(damage(good))
    def run(data: bytes) -> None:
        path.write_bytes(data)
        check_calibrator(path, "calibrator JSON, bytes changed")

    run()


def test_calibration_statistics():
    stats = CalibrationStats(2, bins=2).update([0, 1], [[0.9, 0.1], [0.4, 0.6]])
    good = json.loads(stats.to_json())

    @cases(0.05)
    @given(mutated(good))
    def run(document) -> None:
        name = "CalibrationStats JSON"
        try:
            found = CalibrationStats.from_json(json.dumps(document)).compute()
        except FocalcalError:
            count(name, "refused")
            return
        for metric, streamed in found.metrics.items():
            assert streamed.value >= -1 or np.isnan(streamed.value), (metric, document)
        count(name, "accepted")

    run()


def test_recipes(folder):
    pytest.importorskip("torch")
    from focalcal.training import TrainConfig

    path = folder / "r.toml"
    good = next(RECIPES.glob("*.toml")).read_text()
    names = [line.split(" =")[0] for line in good.splitlines() if " =" in line]
    odd = '1 -1 0 nan inf -inf 1e400 true "x" "" [] [1.5] [nan] [[1]] [{}] {} {a=1} 1979-05-27'
    value = st.sampled_from([*odd.split(), "99999999999999999999"])

    @cases(0.05)
    @given(st.data())
    def run(data) -> None:
        if data.draw(st.booleans()):
            text = "\n".join(
                f"{data.draw(st.sampled_from(names))} = {data.draw(value)}"
                for _ in range(data.draw(st.integers(1, 2)))
            ).encode()
        else:
            text = data.draw(damage(good.encode()))
        path.write_bytes(text)
        try:
            found = TrainConfig.load(path)
        except FocalcalError:
            count("TOML recipes", "refused")
            return
        assert TrainConfig.from_dict(found.to_dict()) == found
        count("TOML recipes", "accepted")

    run()


def test_image_files(folder):
    pytest.importorskip("torch")
    from focalcal.data.cifar import load_cifar10
    from focalcal.data.idx import read_idx
    from focalcal.data.pickled import read_cifar_pickle

    idx = bytes([0, 0, 8, 1]) + (5).to_bytes(4, "big") + bytes(range(5))
    record = bytes([3]) + bytes(3072)
    pickled = _cifar_pickle()
    (folder / "cifar").mkdir()
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        (folder / "cifar" / f"{name}.bin").write_bytes(record * 2)
    path, batch = folder / "x", folder / "cifar" / "data_batch_3.bin"

    @cases(0.05)
    @given(st.sampled_from([("idx", idx), ("pickle", pickled), ("cifar", record * 2)]), st.data())
    def run(kind, data) -> None:
        name, good = kind
        (batch if name == "cifar" else path).write_bytes(data.draw(damage(good)))
        try:
            if name == "idx":
                assert read_idx(path, 1).ndim == 1
            elif name == "pickle":
                assert isinstance(read_cifar_pickle(path), dict)
            else:
                splits = load_cifar10(folder / "cifar", complete=False)
                assert int(splits.train.labels.max()) < 10
        except FocalcalError:
            count(f"{name} files", "refused")
            return
        count(f"{name} files", "accepted")

    run()


def _cifar_pickle() -> bytes:
    import pickle

    content = {b"data": np.zeros((2, 3072), np.uint8), b"labels": [1, 2]}
    out = io.BytesIO()
    pickle.dump(content, out, protocol=2)
    return out.getvalue()
