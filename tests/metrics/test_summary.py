"""`evaluate`: completeness, coverage of its intervals, level of its test, JSON."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from focalcal import metrics
from focalcal.errors import InputError
from focalcal.metrics import METRICS

FLOATS = (
    "accuracy",
    "error",
    "nll",
    "brier",
    "ece",
    "mce",
    "adaptive_ece",
    "ace",
    "rms_calibration_error",
    "classwise_ece",
    "debiased_ece",
    "smooth_ece",
    "ks_error",
    "confidence_gap",
    "auroc_of_confidence",
    "aurc",
)


def test_has_every_metric_with_its_value(case):
    y, p = case
    e = metrics.evaluate(y, p, resamples=40)
    assert e.n == len(y)
    assert e.n_classes == (2 if p.ndim == 1 else p.shape[1])
    for name in FLOATS:
        expected = getattr(metrics, name)(y, p)
        assert e[name].value == pytest.approx(expected, abs=1e-7), name
    split = metrics.brier_decomposition(y, p)
    assert e["brier_calibration"].value == split.calibration
    assert e["brier_refinement"].value == split.refinement
    assert e["entropy_wrong"].n == metrics.correctness_split(y, p).wrong.n
    assert e["high_confidence_accuracy"].n == metrics.high_confidence(y, p).n
    assert e.test.ece == e["ece"].value
    np.testing.assert_allclose(e.reliability.counts, metrics.reliability(y, p).counts)
    for m in e.metrics.values():
        if np.isfinite(m.low):
            assert m.low <= m.value <= m.high
    assert np.isnan(e["mce"].low)
    assert metrics.METRICS["mce"].why


def test_an_unknown_name_lists_the_known_ones(rng):
    y = rng.integers(0, 2, 60)
    p = rng.dirichlet([1, 1], 60)
    groups = {"group": [f"g{i % 50}" for i in range(60)]}
    for result, message in (
        (metrics.evaluate(y, p, resamples=20), "accuracy, .*; got 'adaece'"),
        (metrics.CalibrationStats(2).update(y, p).compute(), "accuracy, .*; got 'adaece'"),
        (metrics.compare(y, p, p, resamples=20), "accuracy, .*; got 'adaece'"),
        (metrics.evaluate_by(y, p, by=groups, resamples=20), "group.*, …; got 'adaece'"),
    ):
        with pytest.raises(KeyError, match=message):
            result["adaece"]


def test_json_is_strict_and_complete():
    # An infinite NLL and an undefined AUROC become null, never NaN or Infinity.
    e = metrics.evaluate([0, 0], [[0.0, 1.0], [0.0, 1.0]], resamples=10)
    state = json.loads(e.to_json(), parse_constant=pytest.fail)
    assert state["metrics"]["nll"]["value"] is None
    assert state["metrics"]["auroc_of_confidence"]["value"] is None
    assert state["metrics"]["ece"]["value"] == 1.0
    assert set(state["metrics"]) == set(e.metrics)
    assert len(state["reliability"]["edges"]) == 16


def test_intervals_cover():
    """95 % intervals hold the long-run value in about 95 % of data sets, also for biased errors."""
    rng = np.random.default_rng(0)

    def draw(n):
        c = 0.5 + 0.5 * rng.random(n)
        return (rng.random(n) < c - 0.08).astype(int), c

    y, c = draw(500_000)
    names = ("brier", "nll", "ece", "confidence_gap", "ks_error")
    truth = {name: getattr(metrics, name)(y, confidence=c) for name in names}
    held = dict.fromkeys(names, 0)
    rounds = 100
    for _ in range(rounds):
        y, c = draw(1000)
        found = metrics.evaluate(y, confidence=c, resamples=200)
        for name in names:
            held[name] += found[name].low <= truth[name] <= found[name].high
    # Binomial(100, .95) is below 86 once in 10,000.
    assert min(held.values()) >= 86, held


def test_errors_of_calibrated_data_reach_zero(rng):
    c = rng.random(400)
    e = metrics.evaluate((rng.random(400) < c).astype(int), confidence=c, resamples=99)
    assert e.test.p_value > 0.05
    assert e["ece"].low == e["smooth_ece"].low == 0
    off = metrics.evaluate((rng.random(400) < c**3).astype(int), confidence=c, resamples=99)
    assert off.test.p_value == 0.01
    assert off["ece"].low > 0


def test_level_of_the_test():
    """Calibrated data: the p-value is uniform. Over-confident data: it is small."""
    rng = np.random.default_rng(1)
    p_values = []
    for seed in range(150):
        c = rng.random(300)
        y = (rng.random(300) < c).astype(int)
        p_values.append(metrics.calibration_test(y, confidence=c, resamples=99, seed=seed).p_value)
    p_values = np.array(p_values)
    assert 0.01 < np.mean(p_values <= 0.1) < 0.2
    assert 0.4 < p_values.mean() < 0.6
    c = 0.5 + rng.random(300) / 2
    y = (rng.random(300) < c - 0.15).astype(int)
    test = metrics.calibration_test(y, confidence=c, resamples=99)
    assert test.p_value == 0.01
    assert test.expected_ece < test.ece


def test_progress_and_defaults(rng):
    p = rng.dirichlet(np.ones(3), size=50)
    y = rng.integers(3, size=50)
    heard = []
    e = metrics.evaluate(y, p, progress=heard.append)
    assert e.resamples == 1000
    assert heard[-1] == 1.0
    assert heard == sorted(heard)


@pytest.mark.parametrize("bad", [0, 1, -0.5, 95])
def test_level_is_checked(bad):
    with pytest.raises(InputError, match="level between 0 and 1"):
        metrics.evaluate([1, 0], [0.5, 0.5], level=bad)


def test_numbers_have_a_true_minus_and_no_negative_zero():
    nll, ece = METRICS["nll"], METRICS["ece"]
    assert [nll.text(x) for x in (-np.inf, np.inf, np.nan)] == ["−∞", "∞", "–"]
    assert [ece.text(x) for x in (-np.inf, -1e-7, -0.5)] == ["−∞", "0.00 %", "−50.00 %"]
    assert [ece.number(x) for x in (-1e-7, -0.5, np.nan)] == ["0.00", "−50.00", "–"]


def test_a_way_is_named_only_where_the_interval_of_the_gap_excludes_0():
    e = metrics.evaluate([0] * 60 + [1] * 40, confidence=[0.9] * 100, resamples=99)
    assert e.miscalibrated
    assert e.direction == "Under-confident by 50.0 points" or e.direction.startswith("Over")
    gap = e["confidence_gap"]
    unclear = dataclasses.replace(gap, low=-0.1, high=abs(gap.value) + 0.1)
    found = dataclasses.replace(e, metrics=e.metrics | {"confidence_gap": unclear})
    assert found.direction == "Miscalibrated, but neither clearly over- nor under-confident"


def test_the_level_decides_what_counts_as_miscalibrated():
    e = metrics.evaluate([0, 1], confidence=[0.5, 0.5], resamples=99)
    at = {level: dataclasses.replace(e, level=level) for level in (0.9, 0.99)}
    at = {
        x: dataclasses.replace(v, test=dataclasses.replace(v.test, p_value=0.03))
        for x, v in at.items()
    }
    assert at[0.9].miscalibrated
    assert not at[0.99].miscalibrated
    assert at[0.99].direction == "No sign of miscalibration"


def test_a_label_without_an_interval_leaves_the_mean_without_one(rng):
    """One error of label 0 gives an AUROC but no spread; its value belongs to the mean."""
    p = rng.uniform(0.6, 0.9, (200, 2))
    y = np.column_stack([np.arange(200) > 0, rng.random(200) < p[:, 1]]).astype(int)
    e = metrics.evaluate(y, p, task="multilabel", resamples=50)["auroc_of_confidence"]
    assert 0 < e.value < 1
    assert np.isnan([e.low, e.high]).all()


def test_many_labels_can_be_shown_to_be_miscalibrated(rng):
    """L/(resamples + 1) is above 5 %: without further draws no p-value could be."""
    p = rng.uniform(0.5, 1, (400, 20))
    y = (rng.random(p.shape) < p - 0.3).astype(int)
    assert metrics.evaluate(y, p, task="multilabel", resamples=100).test.p_value < 0.01
    honest = (rng.random(p.shape) < p).astype(int)
    assert metrics.evaluate(honest, p, task="multilabel", resamples=100).test.p_value > 0.05
