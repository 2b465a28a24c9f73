from __future__ import annotations

import datetime
import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.special import softmax

from focalcal import metrics
from focalcal.metrics import CalibrationStats
from focalcal.metrics.slicing import of_statistics
from focalcal.predictions import Predictions
from focalcal.scale import Source, open_engine, statistics, statistics_by

from .conftest import ROWS, spell


@pytest.mark.parametrize("bins", [15, 7])
def test_equals_the_metrics_in_memory(memory, pattern, bins):
    """`metrics.evaluate` sorts and bins all samples at once: no histogram, no merging."""
    z, y = memory
    found = statistics(Source.open(pattern), bins=bins).compute()
    truth = metrics.evaluate(y, logits=z, bins=bins, resamples=2)
    assert found.n == ROWS
    for name, streamed in found.metrics.items():
        expected = truth[name].value
        # Entropies of float32 logits are rounded in float32, differently here and there.
        rounding = 1e-8 if name.startswith("entropy") else 1e-9
        assert streamed.value == pytest.approx(expected, abs=streamed.error_bound + rounding), name
    assert found["ece"].error_bound == 0


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("k", [2, 3, 10, 64])
def test_statistics_of_logits_are_those_of_their_softmax(rng, dtype, k, order, compiled):
    """Independent: `update` sees only probabilities and takes every metric by itself."""
    z = (4 * rng.normal(size=(3000, k))).astype(dtype)
    z[:50] = np.round(z[:50])  # ties
    z[50:60] = 0
    y = rng.integers(0, k, 3000)
    found = CalibrationStats(k)
    for rows in (slice(0, 1000), slice(1000, 3000)):
        found.update(y[rows], logits=np.asarray(z, order=order)[rows])
    expected = CalibrationStats(k).update(y, softmax(z, axis=1))
    found, expected = json.loads(found.to_json()), json.loads(expected.to_json())
    rounding = 2e-6 if dtype == np.float32 else 1e-11
    for name, there in expected.items():
        if name == "fine" and dtype == np.float32:
            continue  # a last digit decides between cells
        if isinstance(there, dict):
            for part in there:
                close = {"rtol": rounding, "atol": rounding}
                np.testing.assert_allclose(found[name][part], there[part], **close)
        else:
            assert found[name] == there


def test_logits_whose_difference_overflows(compiled):
    z = np.array([[3e38, -3e38, 0.0], [1.0, 2.0, 3.0]], np.float32)
    found = CalibrationStats(3).update(np.array([0, 1]), logits=z).compute()
    p = Predictions(logits=z).probabilities()
    expected = CalibrationStats(3).update([0, 1], p).compute()
    for name in ("entropy_right", "entropy_wrong", "nll", "brier"):
        assert found[name].value == pytest.approx(expected[name].value, abs=1e-7), name


@pytest.mark.parametrize("engine", ["stream", "dask"])
def test_finite_logits_have_a_finite_loss(engine, tmp_path):
    """exp(−200) is 0 in float32; its logarithm is needed, not it."""
    if engine == "dask":
        pytest.importorskip("distributed")
    z = np.array([[200, 0, -5]], np.float32)
    Predictions(logits=z, labels=np.array([1])).save(tmp_path / "p.parquet")
    with open_engine(engine) as running:
        found = statistics(Source.open(tmp_path / "p.parquet"), running).compute()
    assert found["nll"].value == 200


def days(rng) -> list:
    return [datetime.datetime(2024, 1, 1 + int(i)) for i in rng.integers(0, 4, ROWS)]


@pytest.mark.parametrize(
    ("kind", "draw"),
    [
        (pa.float32(), lambda rng: (0.1 * rng.integers(-2, 3, ROWS)).astype(np.float32).tolist()),
        (pa.float64(), lambda rng: np.round(rng.normal(size=ROWS)).tolist()),  # has −0.0
        (pa.timestamp("us"), days),
        (pa.timestamp("ns"), days),
        (pa.date32(), lambda rng: [day.date() for day in days(rng)]),
        (pa.bool_(), lambda rng: (rng.random(ROWS) < 0.5).tolist()),
        (pa.list_(pa.int64()), lambda rng: [[int(i)] for i in rng.integers(0, 3, ROWS)]),
        (pa.binary(), lambda rng: [b"ab"[i : i + 1] for i in rng.integers(0, 2, ROWS)]),
    ],
)
def test_slices_are_those_in_memory_though_only_some_parts_have_missing_values(
    memory, tmp_path, rng, kind, draw
):
    z, y = memory
    values = [None if i < 2000 and i % 10 == 0 else x for i, x in enumerate(draw(rng))]
    table = pa.table({**spell("logits", z, "wide"), "labels": y, "by": pa.array(values, kind)})
    pq.write_table(table, tmp_path / "p.parquet", row_group_size=1000)
    found = of_statistics(statistics_by(Source.open(tmp_path / "p.parquet", extra=["by"])))
    given = Predictions.load(tmp_path / "p.parquet")
    there = metrics.evaluate_by(given, None, by="by", resamples=10)
    expected = {s.name.replace("-0.0", "0.0"): s for s in there.slices}
    assert {s.name: s.n for s in found.slices} == {name: s.n for name, s in expected.items()}
    assert sum(s.n for s in found.slices) == ROWS
    for name, s in expected.items():
        assert found[name].ece == pytest.approx(s.ece, abs=1e-9, nan_ok=True)


def test_slices_of_files_with_numbers_of_other_types_are_joined(memory, tmp_path):
    """pandas stores integers as floats where one is missing."""
    z, y = memory
    frame = pd.DataFrame({f"logits_{j}": x for j, x in enumerate(z.T)})
    frame = frame.assign(labels=y, store=np.arange(ROWS) % 3)
    frame[:1000].to_parquet(tmp_path / "a.parquet")
    frame[1000:].astype({"store": float}).to_parquet(tmp_path / "b.parquet")
    found = statistics_by(Source.open(tmp_path, extra=["store"]))
    assert {name: s.n for name, s in found.items()} == {
        f"store={i}": int((frame["store"] == i).sum()) for i in range(3)
    }


def test_merging_changes_neither_part(memory):
    z, y = memory
    p = Predictions(logits=z, labels=y).probabilities()
    a = CalibrationStats(4).update(y[:100], p[:100])
    b = CalibrationStats(4).update(y[100:300], p[100:300])
    before = a.to_json(), b.to_json()
    merged = a + b
    assert merged.n == 300
    assert (a.to_json(), b.to_json()) == before
    again = a + b
    assert again.to_json() == merged.to_json()
    assert np.isclose(merged.compute()["ece"].value, metrics.ece(y[:300], p[:300]), atol=1e-12)
