"""A monitor: alarms where there is a change, none where there is none, and a state that goes on."""

from __future__ import annotations

import doctest
import json

import numpy as np
import pytest

from focalcal.errors import FileFormatError, InputError
from focalcal.metrics import METRICS, Monitor, evaluate, monitoring


def draw(rng, n, sharpness=1.0, honesty=1.0):
    """Forecasts of three classes; with honesty < 1 the logits claim too much."""
    truth = 2 * sharpness * rng.normal(size=(n, 3))
    y = np.argmax(honesty * truth + rng.gumbel(size=truth.shape), axis=1)
    p = np.exp(truth - truth.max(axis=1, keepdims=True))
    return y, p / p.sum(axis=1, keepdims=True)


def test_examples():
    assert doctest.testmod(monitoring).failed == 0


def test_no_change_no_alarm_and_a_change_is_found(rng):
    y, p = draw(rng, 2000)
    monitor = Monitor(y, p)
    for week in range(8):
        y, p = draw(rng, 500, honesty=1.0 if week < 4 else 0.6)
        monitor.update(f"week {week}", p, y)
    assert set(monitor.alarms) == {"calibrated", "reference"}
    assert set(monitor.alarms.values()) <= {"week 4", "week 5", "week 6"}
    assert monitor.verdict.startswith("Alarm: not calibrated since week")


def test_drift_of_confidences_needs_no_labels(rng):
    monitor = Monitor(*draw(rng, 2000))
    calm = [monitor.update(str(i), draw(rng, 500)[1]) for i in range(3)]
    assert all(r.trusted and r.accuracy is None and r.metrics == {} for r in calm)
    for i in range(3):
        last = monitor.update(f"drift {i}", draw(rng, 500, sharpness=0.6)[1])
    assert set(monitor.alarms) == {"confidences"}
    assert last.caution == "the confidences have drifted"


def test_expected_accuracy_covers_the_accuracy_that_comes(rng):
    monitor = Monitor(*draw(rng, 5000))
    inside = 0
    for i in range(100):
        y, p = draw(rng, 300)
        e = monitor.update(str(i), p).expected_accuracy
        inside += e.low <= np.mean(p.argmax(axis=1) == y) <= e.high
    assert e.value == pytest.approx(p.max(axis=1).mean())
    assert inside >= 88  # 95 % of 100, less three standard errors


@pytest.mark.parametrize("errors", [0.02, 0.06, 0.17, 0.5, 1, 4, 20])
def test_expected_accuracy_covers_where_errors_are_rare(errors):
    """Exact: at one confidence the number of right samples of a batch is binomial."""
    from scipy.stats import binom

    n, c = 50, 1 - errors / 50
    monitor = Monitor(np.arange(20_000) >= 400 * errors, np.full(20_000, c))
    e = monitor.update("one", np.full(n, c)).expected_accuracy
    right = np.arange(n + 1)
    inside = (right >= n * e.low - 1e-9) & (right <= n * e.high + 1e-9)
    assert binom.pmf(right, n, c)[inside].sum() >= 0.95


def test_a_reference_that_is_not_calibrated_is_said(rng):
    monitor = Monitor(*draw(rng, 2000, honesty=0.5))
    assert (
        monitor.update("one", draw(rng, 100)[1]).caution == "the reference itself is not calibrated"
    )


def test_metrics_are_those_of_evaluate(rng):
    monitor = Monitor(*draw(rng, 500))
    y, p = draw(rng, 400)
    result = monitor.update("one", p, y)
    whole = evaluate(y, p, resamples=2)
    assert {n for n, m in METRICS.items() if m.streams} == set(result.metrics)
    for name in ("accuracy", "nll", "ece"):
        assert result.metrics[name] == pytest.approx(whole[name].value)
    assert result.accuracy.value == pytest.approx(whole["accuracy"].value)


def test_parts_of_a_batch_add_up(rng):
    reference, (y, p) = draw(rng, 600), draw(rng, 300)
    whole, parts = Monitor(*reference), Monitor(*reference)
    one = whole.update("w", p, y)
    a, b = parts.summarise(p[:100], y[:100]), parts.summarise(p[100:], y[100:])
    two = parts.update("w", a + b)
    assert two.p_values == pytest.approx(one.p_values)
    assert two.metrics == pytest.approx(one.metrics, nan_ok=True)
    assert two.expected_accuracy.value == pytest.approx(one.expected_accuracy.value)
    mixed = parts.summarise(p[:100]) + parts.summarise(p[100:], y[100:])
    assert (mixed.seen.total, mixed.labelled.total) == (300, 200)


def test_a_saved_monitor_goes_on_as_if_never_stopped(rng):
    reference = draw(rng, 500)
    batches = [draw(rng, 200, honesty=h) for h in (1, 1, 0.6, 0.6)]
    whole = Monitor(*reference)
    for i, (y, p) in enumerate(batches):
        whole.update(str(i), p, y)
    stopped = Monitor(*reference)
    for i, (y, p) in enumerate(batches):
        stopped = Monitor.from_json(stopped.to_json())
        stopped.update(str(i), p, y)
    assert stopped.to_json() == whole.to_json()


def test_a_year_of_state_is_a_few_hundred_kilobytes(rng):
    monitor = Monitor(*draw(rng, 500))
    for i in range(52):
        y, p = draw(rng, 50)
        monitor.update(f"week {i}", p, y)
    assert len(monitor.to_json()) < 300_000


def test_binary_probabilities_of_one_column(rng):
    p = rng.uniform(0, 1, 400)
    y = (rng.random(400) < p).astype(int)
    one, two = Monitor(y, p), Monitor(y, np.column_stack([1 - p, p]))
    assert (
        one.update("w", p, y).p_values == two.update("w", np.column_stack([1 - p, p]), y).p_values
    )


def test_tolerance_forgives_small_errors(rng):
    reference, batches = draw(rng, 500), [draw(rng, 3000, honesty=0.9) for _ in range(6)]
    strict, patient = Monitor(*reference), Monitor(*reference, tolerance=0.1)
    for i, (y, p) in enumerate(batches):
        strict.update(str(i), p, y)
        patient.update(str(i), p, y)
    assert "calibrated" in strict.alarms
    assert "calibrated" not in patient.alarms


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"level": 1.0}, "level between"), ({"tolerance": -0.1}, "tolerance in")],
)
def test_settings_are_checked(rng, settings, message):
    with pytest.raises(InputError, match=message):
        Monitor(*draw(rng, 20), **settings)


def test_labels_and_classes_are_checked(rng):
    y, p = draw(rng, 50)
    with pytest.raises(InputError, match="reference with labels"):
        Monitor(None, p)
    with pytest.raises(InputError, match="expected 3 classes"):
        Monitor(y, p).update("w", p[:, :2] / p[:, :2].sum(axis=1, keepdims=True))


@pytest.mark.parametrize(
    "damage",
    [
        lambda s: "{",
        lambda s: "[]",
        lambda s: json.dumps(s | {"format": "other"}),
        lambda s: json.dumps(s | {"seen": [[1.0]]}),
        lambda s: json.dumps(s | {"edges": "x"}),
        lambda s: json.dumps({k: v for k, v in s.items() if k != "tests"}),
        lambda s: json.dumps(s | {"batches": [{"name": 1}]}),
    ],
)
def test_damaged_states_are_refused(rng, damage):
    state = json.loads(Monitor(*draw(rng, 50)).to_json())
    with pytest.raises(FileFormatError):
        Monitor.from_json(damage(state))


def test_a_file_of_another_kind_is_called_by_its_name():
    text = json.dumps({"format": "focalcal-calibrator", "version": 2})
    with pytest.raises(FileFormatError, match=r"a monitor saved, got: focalcal-calibrator version"):
        Monitor.from_json(text)
