"""Every loader, given damaged and hostile files: a valid result or a FocalcalError."""

from __future__ import annotations

import datetime
import io
import json
import warnings
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from focalcal import calibrators
from focalcal.errors import FocalcalError
from focalcal.metrics import CalibrationStats
from focalcal.predictions import Predictions

from .conftest import count, damage, mutated, number, run_cases, text, value

RNG = np.random.default_rng(0)
RECIPES = Path(__file__).resolve().parents[2] / "papers/src/focalcal_papers/recipes"
LOGITS, LABELS = RNG.normal(size=(6, 3)), np.array([0, 1, 2, 0, 1, 2])
PROBS = RNG.dirichlet(np.ones(3), size=6)
pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::focalcal.errors.InputWarning"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


def saved(folder, suffix: str) -> list[bytes]:
    """Valid files: logits with names, probabilities, and binary logits without labels."""
    path = folder / f"good{suffix}"
    found = []
    for predictions in (
        Predictions(logits=LOGITS, labels=LABELS, class_names=("a", "b", "c")),
        Predictions(probs=PROBS.astype(np.float32), labels=LABELS),
        Predictions(logits=LOGITS[:, 0], labels=LABELS % 2),
    ):
        predictions.save(path)
        found.append(path.read_bytes())
    return found


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

    def case(random: Random) -> None:
        path.write_bytes(damage(random, random.choice(good)))
        check_predictions(lambda: Predictions.load(path), f"damaged {suffix}")

    run_cases(0.08, case)


def test_damaged_parquet_in_parts(folder):
    """The engines read row groups in batches, another way through pyarrow."""
    from focalcal.scale import Source, statistics

    good = saved(folder, ".parquet")
    path = folder / "parts.parquet"

    def case(random: Random) -> None:
        path.write_bytes(damage(random, random.choice(good)))
        name = "damaged .parquet read in parts"
        try:
            found = statistics(Source.open(path)).compute()
        except FocalcalError:
            count(name, "refused")
            return
        assert all(0 <= found[key].value <= 1 for key in ("accuracy", "ece", "adaptive_ece"))
        count(name, "accepted")

    run_cases(0.02, case)


NAMES = ["logits", "probs", "labels", "logits_0", "logits_1", "focalcal", "é/.."]
DTYPES = ["f2", "f4", "f8", "i1", "i8", "u8", "?", "U3", "S2", "M8[s]", "c8", "f16", "O"]


def any_array(random: Random) -> np.ndarray:
    kind = random.randrange(4)
    if kind < 2:
        good = random.choice([LOGITS, LABELS, PROBS])
        return good.astype(random.choice(["f4", "f8", "i4", "i8", "?"]))
    shape = tuple(random.randrange(5) for _ in range(random.randrange(4)))
    dtype = np.dtype(random.choice(DTYPES))
    if dtype.hasobject:
        return np.full(shape, None)
    size = int(np.prod(shape)) * dtype.itemsize
    if dtype.kind == "U":  # not every four bytes are a letter
        return np.full(shape, text(random, 3))
    return np.frombuffer(random.randbytes(size), dtype).reshape(shape)


def test_npz_of_any_arrays(folder):
    path = folder / "any.npz"

    def case(random: Random) -> None:
        valid = {
            random.choice(["logits", "probs"]): random.choice([LOGITS, PROBS]),
            "labels": LABELS,
        }
        table = random.choice([{}, valid, valid]).copy()
        for _ in range(random.randrange(1, 4)):
            table[random.choice(NAMES)] = any_array(random)
        np.savez(path, **table)
        check_predictions(lambda: Predictions.load(path), "npz of any arrays")

    run_cases(0.06, case)


def any_column(random: Random, rows: int) -> list[Any]:
    """A parquet column: numbers, lists of numbers, or what has no place there."""
    kind = random.randrange(9)
    width = random.choice([1, 2, 2, 3])
    one = {
        0: lambda: random.randrange(3),
        1: lambda: number(random),
        2: lambda: [random.gauss(0, 3) for _ in range(width)],
        3: lambda: [number(random) for _ in range(width)],
        4: lambda: [number(random)] * random.randrange(3),
        5: lambda: random.choice([None, 1.5, [1.0, 2.0]][: random.choice([2, 3])]),
        6: lambda: random.randbytes(2),
        7: lambda: datetime.date(2026, 1, random.randint(1, 28)),
        8: lambda: value(random),
    }[kind]
    return [one() for _ in range(rows)]


def test_parquet_of_any_columns(folder):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    from focalcal.scale import Source

    path = folder / "any.parquet"
    names = ["logits", "probs", "labels", "logits_0", "logits_1", "logits_00", "id"]

    def case(random: Random) -> None:
        matrix = [[random.gauss(0, 3) for _ in range(3)] for _ in range(2)]
        table = random.choice([{}, {"logits": matrix, "labels": [0, 1]}]).copy()
        for _ in range(random.randint(1, 2)):
            name = random.choice(names)
            labels = name == "labels" and random.random() < 0.7
            table[name] = [random.randrange(2) for _ in "ab"] if labels else any_column(random, 2)
        try:
            arrow = pa.table(table)
            if random.random() < 0.3:
                note = json.dumps(value(random)).encode("utf-8", "surrogatepass")
                arrow = arrow.replace_schema_metadata({"focalcal": note})
            pq.write_table(arrow, path)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            count("parquet of any columns", "not a parquet file")
            return
        check_predictions(lambda: Predictions.load(path), "parquet of any columns")
        try:
            for partition in Source.open(path).partitions:
                list(partition.batches())
        except FocalcalError:
            pass

    run_cases(0.06, case)


def test_csv_of_any_text(folder):
    path = folder / "any.csv"
    odd = ["nan", "1e999", "", '"', "x", "=1+1", "\x00", " 2 ", "1_0", "0x1", "é"]
    headers = ["logits_0,logits_1,labels", "probs,labels", "logits,labels", "a,a", "labels"]

    def case(random: Random) -> None:
        header = random.choice(headers)
        width = header.count(",") + 1
        strange = random.choice([0, 0, 0.02, 0.3])
        lines = [header]
        for _ in range(random.randrange(5)):
            cells = [f"{random.random():.3f}" for _ in range(width - 1)] + [random.choice("0011x")]
            cells = [random.choice(odd) if random.random() < strange else c for c in cells]
            lines.append(",".join(cells[: width + random.choice([0] * 9 + [-1])]))
        content = "\n".join(lines) if random.random() < 0.9 else text(random, 60)
        path.write_bytes(content.encode("utf-8", "surrogatepass"))
        check_predictions(lambda: Predictions.load(path), "csv of any text")

    run_cases(0.06, case)


@pytest.fixture(scope="module")
def documents():
    from focalcal.calibrators.persistence import to_dict

    rng = np.random.default_rng(1)
    z = 2 * rng.normal(size=(60, 3))
    y = np.argmax(z / 2 + rng.gumbel(size=z.shape), axis=1)
    found = []
    for name in calibrators.METHODS:
        fitted = calibrators.make(name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
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

    def case(random: Random) -> None:
        document = mutated(random, random.choice(documents))
        path.write_bytes(json.dumps(document).encode("utf-8", "surrogatepass"))
        check_calibrator(path, "calibrator JSON, fields changed")

    run_cases(0.15, case)


def test_damaged_calibrator_files(folder, documents):
    path = folder / "d.json"
    good = [json.dumps(document).encode() for document in documents]

    def case(random: Random) -> None:
        path.write_bytes(damage(random, random.choice(good), most=2))
        check_calibrator(path, "calibrator JSON, bytes changed")

    run_cases(0.05, case)


def test_calibration_statistics():
    stats = CalibrationStats(2, bins=2).update([0, 1], [[0.9, 0.1], [0.4, 0.6]])
    good = json.loads(stats.to_json())

    def case(random: Random) -> None:
        document = mutated(random, good)
        name = "CalibrationStats JSON"
        try:
            found = CalibrationStats.from_json(json.dumps(document)).compute()
        except FocalcalError:
            count(name, "refused")
            return
        for metric, streamed in found.metrics.items():
            assert streamed.value >= -1 or np.isnan(streamed.value), (metric, document)
        count(name, "accepted")

    # A document has 49,000 numbers, mostly zeros: each case costs tens of the others.
    run_cases(0.015, case)


def test_recipes(folder):
    pytest.importorskip("torch")
    from focalcal_papers.training import TrainConfig

    path = folder / "r.toml"
    good = next(RECIPES.glob("*.toml")).read_text()
    names = [line.split(" =")[0] for line in good.splitlines() if " =" in line]
    odd = '1 -1 0 nan inf -inf 1e400 true "x" "" [] [1.5] [nan] [[1]] [{}] {} {a=1} 1979-05-27'
    values = [*odd.split(), "99999999999999999999"]

    def case(random: Random) -> None:
        if random.random() < 0.5:
            chosen = random.sample(names, random.randint(1, 2))
            content = "\n".join(f"{name} = {random.choice(values)}" for name in chosen).encode()
        else:
            content = damage(random, good.encode(), most=2)
        path.write_bytes(content)
        try:
            found = TrainConfig.load(path)
        except FocalcalError:
            count("TOML recipes", "refused")
            return
        assert TrainConfig.from_dict(found.to_dict()) == found
        count("TOML recipes", "accepted")

    run_cases(0.05, case)


def test_image_files(folder):
    pytest.importorskip("torch")
    from focalcal_papers.data.cifar import load_cifar10
    from focalcal_papers.data.idx import read_idx
    from focalcal_papers.data.pickled import read_cifar_pickle

    record = bytes([3]) + bytes(3072)
    good = {
        "idx": bytes([0, 0, 8, 1]) + (5).to_bytes(4, "big") + bytes(range(5)),
        "pickle": _cifar_pickle(),
        "cifar": record * 2,
    }
    (folder / "cifar").mkdir()
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        (folder / "cifar" / f"{name}.bin").write_bytes(record * 2)
    path, batch = folder / "x", folder / "cifar" / "data_batch_3.bin"

    def case(random: Random) -> None:
        name = random.choice(list(good))
        (batch if name == "cifar" else path).write_bytes(damage(random, good[name], most=2))
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

    run_cases(0.05, case)


def _cifar_pickle() -> bytes:
    import pickle

    content = {b"data": np.zeros((2, 3072), np.uint8), b"labels": [1, 2]}
    out = io.BytesIO()
    pickle.dump(content, out, protocol=3)  # 2, from Python 3, hides bytes in a function call
    return out.getvalue()
