"""Streaming equals one pass, merging equals streaming, bounds hold, JSON is strict."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from focalcal import metrics
from focalcal.errors import FileFormatError, InputError
from focalcal.metrics import CalibrationStats

BOUNDED = ("adaptive_ece", "ks_error", "auroc_of_confidence", "smooth_ece", "aurc")


def stats_of(y, p, w=None, **options):
    return CalibrationStats(1 if p.ndim == 1 else p.shape[1], **options).update(y, p, w)


def in_batches(y, p, w=None, size=37):
    stats = CalibrationStats(1 if p.ndim == 1 else p.shape[1])
    for i in range(0, len(y), size):
        stats.update(y[i : i + size], p[i : i + size], None if w is None else w[i : i + size])
    return stats


@pytest.mark.parametrize("weighted", [False, True])
def test_stream_equals_one_pass(case, weighted):
    y, p = case
    w = np.random.default_rng(0).random(len(y)) if weighted else None
    result = in_batches(y, p, w).compute()
    once = metrics.evaluate(y, p, sample_weight=w, resamples=2)
    assert result.n == len(y)
    for name, streamed in result.metrics.items():
        expected = once[name].value
        close = pytest.approx(expected, abs=streamed.error_bound + 1e-7, nan_ok=True)
        assert streamed.value == close, name
        assert (streamed.error_bound > 0) <= (name in BOUNDED)
        if name not in BOUNDED:
            assert streamed.value == pytest.approx(expected, abs=1e-12, nan_ok=True), name


@pytest.mark.parametrize("seed", range(6))
def test_bounds_hold_and_are_useful(seed, draw):
    rng = np.random.default_rng(seed)
    y, p = draw(rng, 20_000, 4, scale=1 + 2 * seed)
    if seed % 2:
        p = p.astype(np.float32)
    result = in_batches(y, p, size=7000).compute()
    for name in BOUNDED:
        exact = getattr(metrics, name)(y, p)
        streamed = result[name]
        assert abs(streamed.value - exact) <= streamed.error_bound + 1e-9, name
        assert streamed.error_bound < 0.005, name


def test_saturated_confidences_are_ties_and_exact():
    # Confidence exactly 0 and 1 have cells of their own, so nothing about them is uncertain.
    y = np.array([1, 0, 1, 1, 0, 0])
    p = np.array([1.0, 1.0, 1.0, 0.0, 0.0, 0.0])
    result = stats_of(y, p).compute()
    for name in BOUNDED:
        assert result[name].error_bound == 0
        assert result[name].value == pytest.approx(getattr(metrics, name)(y, p), abs=1e-9)


def test_merge_equals_stream(case):
    y, p = case
    parts = [stats_of(y[i::3], p[i::3]) for i in range(3)]
    merged = parts[0].merge(parts[1]).merge(parts[2]).compute()
    whole = stats_of(y, p).compute()
    for name, streamed in whole.metrics.items():
        assert merged[name].value == pytest.approx(streamed.value, abs=1e-7, nan_ok=True)
        assert merged[name].error_bound == pytest.approx(streamed.error_bound, abs=1e-12)
    assert merged.n == whole.n


def test_merge_needs_the_same_settings():
    with pytest.raises(InputError, match="same settings"):
        CalibrationStats(3).merge(CalibrationStats(3, bins=10))


def test_json_round_trip_is_exact(case):
    y, p = case
    stats = stats_of(y, p, bins=9, threshold=0.9)
    again = CalibrationStats.from_json(stats.to_json())
    assert again.to_json() == stats.to_json()
    assert repr(again.compute().metrics) == repr(stats.compute().metrics)


def test_float64_sums_where_float32_fails():
    """Elsewhere counts kept in float32 stop growing at 2^24 and ECE falls to 0 at 4e7 samples.

    Here 200,000 samples of weight 200 are 4e7; the sums still move by single samples after that.
    """
    n = 200_000
    y = (np.arange(n) % 10 < 7).astype(np.int64)
    p = np.full(n, 0.9, dtype=np.float32)
    assert metrics.ece(y, p, sample_weight=np.full(n, 200.0)) == pytest.approx(0.2, abs=1e-7)
    stats = CalibrationStats(1)
    for _ in range(3):
        stats.update(y, p, np.full(n, 2000.0))
    before = stats.compute()
    assert before["ece"].value == pytest.approx(0.2, abs=1e-7)
    after = stats.update([0], [0.9]).compute()
    change = after.reliability.counts.sum() - before.reliability.counts.sum()
    assert change == 1.0
    running = np.float32(2**24)
    assert running + np.float32(1) == running  # the fault, for the record


def test_zero_probability_survives_merging_and_json():
    stats = stats_of(np.array([0, 1]), np.array([[0.0, 1.0], [0.2, 0.8]]))
    result = CalibrationStats.from_json(stats.to_json()).compute()
    assert result["nll"].value == np.inf
    assert result["nll_wrong"].value == np.inf
    assert result["nll_right"].value == pytest.approx(-np.log(0.8))


@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_weights_leave_their_device_once(case, weight, monkeypatch):
    torch, moved = pytest.importorskip("torch"), []
    cpu = torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: moved.append(self) or cpu(self))
    y, p = case
    stats_of(y, p, torch.full((len(y),), weight))
    assert len(moved) == 1


def test_masked_weights_are_refused(case):
    y, p = case
    for values in (np.zeros(len(y)), np.ones(len(y))):
        with pytest.raises(InputError, match="without masked values"):
            stats_of(y, p, np.ma.masked_array(values, mask=np.arange(len(y)) == 0))


def test_a_batch_without_weight_adds_nothing_but_is_checked(case):
    y, p = case
    stats, alone = stats_of(y, p), stats_of(y, p)
    stats.update(y[:5], p[:5], np.zeros(5))
    assert stats.to_json() == alone.to_json()
    for bad in ((y[:5], p[:5], np.zeros(4)), (y[:5] + 99, p[:5], np.zeros(5))):
        with pytest.raises(InputError):
            stats.update(*bad)
    empty = CalibrationStats(1 if p.ndim == 1 else p.shape[1]).update(y, p, 0 * y)
    assert empty.n == 0
    assert empty.merge(alone).to_json() == alone.to_json()


def test_state_does_not_grow(rng, draw):
    stats = CalibrationStats(10)
    size = len(stats.to_json())
    y, p = draw(rng, 20_000, 10)
    stats.update(y, p)
    sizes = [b.counts.size for b in stats.tables().values()]
    assert sum(sizes) == 15 + 150 + stats.fine.counts.size
    assert len(stats.to_json()) < 12 * size


def test_needs_samples_and_matching_classes():
    with pytest.raises(InputError, match="at least one sample"):
        CalibrationStats(3).compute()
    with pytest.raises(InputError, match="expected y_prob with 3 classes"):
        CalibrationStats(3).update([0], [[0.5, 0.5]])
    with pytest.raises(InputError, match="expected y_prob with 3 classes"):
        CalibrationStats(3).update([0], [0.5])
    for classes, kind in ((3, "event"), (1, "classes"), (2, "other")):
        with pytest.raises(InputError, match="expected kind"):
            CalibrationStats(classes, kind=kind)
    for bad in (0, 1.5, True):
        with pytest.raises(InputError, match="whole number of classes"):
            CalibrationStats(bad)
    stats = CalibrationStats(2)
    with pytest.raises(InputError, match="row 1"):
        stats.update([0, 5], [[0.5, 0.5], [0.5, 0.5]])
    assert stats.n == 0


def change(**fields):
    def edit(state):
        for key, value in fields.items():
            if value is None:
                del state[key]
            else:
                state[key] = value
        return json.dumps(state)

    return edit


def change_sums(value):
    def edit(state):
        state["sums"]["brier"] = value
        return json.dumps(state)

    return edit


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda s: "not json", "expected JSON"),
        (lambda s: "[1]", "format"),
        (change(format="other"), "format"),
        (change(version=99), "expected version 2, got 99"),
        (change(n=None), r"missing \['n'\]"),
        (change(more=1), r"unknown \['more'\]"),
        (change(n=-1), "whole number >= 0"),
        (change(n=1.5), "whole number >= 0"),
        (change(bins=0), "valid settings"),
        (change(n_classes="two"), "valid settings"),
        (change(threshold="high"), "valid settings"),
        (change(n_classes="two", bins=10**12), "valid settings"),
        (change(n_classes=10**9), "valid settings"),
        (change(bins=3), "shape"),
        (change(sums={}), "wrong fields in sums"),
        (change(top=[]), "wrong fields in top"),
        (change_sums([0.0, float("nan")]), "finite numbers >= 0 in sums.brier"),
        (change_sums([0.0, -1.0]), "finite numbers >= 0 in sums.brier"),
        (change_sums("x"), "expected numbers in sums.brier"),
        (change_sums([1.0]), "shape"),
        (change(kind="other"), "valid settings"),
        (change(kind="event"), "valid settings"),
    ],
)
def test_damaged_json_is_refused(edit, message):
    state = json.loads(stats_of(np.array([0, 1]), np.array([[0.6, 0.4], [0.3, 0.7]])).to_json())
    with pytest.raises(FileFormatError, match=message):
        CalibrationStats.from_json(edit(state))


def test_nothing_is_remembered_from_before_an_update(case):
    y, p = case
    stats = stats_of(y[:50], p[:50])
    stats.compute()
    stats.update(y[50:], p[50:])
    expected = stats_of(y, p).compute()
    for name, found in stats.compute().metrics.items():
        assert found.value == pytest.approx(expected[name].value, rel=1e-12, nan_ok=True), name


HERE = Path(__file__).parent
OLD_PROBS = np.array(
    [
        [0.7, 0.2, 0.1],
        [0.1, 0.8, 0.1],
        [0.25, 0.25, 0.5],
        [0.05, 0.0, 0.95],
        [0.34, 0.33, 0.33],
        [0.995, 0.004, 0.001],
        [0.6, 0.3, 0.1],
        [0.2, 0.3, 0.5],
    ]
)
OLD_LABELS, OLD_WEIGHTS = [0, 1, 0, 1, 2, 0, 0, 2], [1.0, 2.0, 1.0, 1.0, 0.5, 3.0, 1.0, 1.0]
OLD_FORECASTS, OLD_EVENTS = [0.9, 0.2, 0.65, 0.4, 1.0, 0.5], [1, 0, 1, 1, 1, 0]


def written_by_0_1(name):
    """What version 0.1 wrote for the samples above."""
    return gzip.decompress((HERE / f"stats_0_1_{name}.json.gz").read_bytes()).decode()


def test_files_of_version_0_1():
    old = CalibrationStats.from_json(written_by_0_1("classes"))
    new = CalibrationStats(3, bins=5).update(OLD_LABELS, OLD_PROBS, OLD_WEIGHTS)
    assert (old.n, old.bins, old.kind) == (8, 5, "classes")
    expected = new.compute().metrics
    for name, found in old.compute().metrics.items():
        assert found.value == pytest.approx(expected[name].value, rel=1e-12, nan_ok=True), name
    again = CalibrationStats.from_json(old.merge(new).to_json())
    assert again.n == 16
    assert again.compute()["ece"].value == pytest.approx(expected["ece"].value)


def test_forecasts_of_version_0_1():
    """One column was the forecast of an event; how its losses split by the event is unknown."""
    old = CalibrationStats.from_json(written_by_0_1("event"))
    new = CalibrationStats(1, bins=5, kind="event").update(OLD_EVENTS, confidence=OLD_FORECASTS)
    assert (old.n, old.kind) == (6, "event")
    expected = new.compute().metrics
    found = old.compute().metrics
    for name in ("accuracy", "nll", "brier", "ece", "mce", "confidence_gap", "adaptive_ece"):
        assert found[name].value == pytest.approx(expected[name].value, rel=1e-12), name


@pytest.mark.parametrize("missing", ["right", "nll_wrong"])
def test_damaged_files_of_version_0_1(missing):
    state = json.loads(written_by_0_1("classes"))
    del state["sums"][missing]
    with pytest.raises(FileFormatError, match=f"version 1: '{missing}'"):
        CalibrationStats.from_json(json.dumps(state))
