"""The one way in: kinds of input, log space, the top label against NumPy's own reductions."""

from __future__ import annotations

import numpy as np
import pytest

from focalcal import metrics
from focalcal.columns import read
from focalcal.errors import InputError
from focalcal.metrics import CalibrationStats
from focalcal.predictions import Predictions


def top(y, p):
    c = read(y, p).columns(slice(None))
    return c.confidence, c.correct


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("k", [2, 3, 10, 17, 64, 100])
def test_top_label_is_max_and_first_argmax(k, dtype, rng):
    # Rounded to few digits so that ties, also of the largest, are common.
    p = np.round(rng.dirichlet(np.full(k, 0.5), 5_000) * 8) + 1e-3
    p = (p / p.sum(axis=1, keepdims=True)).astype(dtype)
    y = rng.integers(0, k, len(p))
    for q in (p, np.asfortranarray(p), p[:, ::-1]):
        confidence, correct = top(y, q)
        np.testing.assert_array_equal(confidence, q.max(axis=1))
        np.testing.assert_array_equal(correct, q.argmax(axis=1) == y)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, ">f4", ">f8"])
@pytest.mark.parametrize("bad", [-0.25, np.nan, np.inf, -np.inf, 1.5])
def test_one_bad_value_among_many_is_found(dtype, bad, rng, compiled):
    p = rng.dirichlet(np.ones(10), 3_000)
    p[1234, 7] += bad
    with pytest.raises(InputError, match="row 1234"):
        top(rng.integers(0, 10, len(p)), p.astype(dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("first", [1.25, 1.001])
def test_a_row_that_sums_to_one_may_still_be_bad(dtype, first, rng, compiled):
    p = rng.dirichlet(np.ones(10), 300)
    p[123] = [first, 1 - first, *[0] * 8]
    with pytest.raises(InputError, match="row 123"):
        top(rng.integers(0, 10, len(p)), p.astype(dtype))


def test_no_digit_is_lost_in_the_other_byte_order():
    confidence, correct = top([1], np.array([[0.5 - 1e-10, 0.5 + 1e-10]], dtype=">f8"))
    assert confidence.dtype == np.float64
    assert confidence[0] == 0.5 + 1e-10
    assert correct[0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_logits_stay_in_log_space(dtype, compiled):
    """exp(−200) is 0 in float32, and softmax − 1 would lose what is left of certainty."""
    z = np.array([[200, 0, -5], [0, 800, 0], [1e30, -1e30, 0]], dtype)
    y = np.array([1, 0, 0])
    expected = np.array([200.0, 800.0, 0.0])
    got = read(y, logits=z).columns(slice(None))
    np.testing.assert_allclose(got.nll, expected, rtol=1e-7)
    assert np.isfinite(got.entropy).all()
    assert metrics.evaluate(y, logits=z, resamples=5)["nll"].value == pytest.approx(1000 / 3)
    streamed = CalibrationStats(3).update(y, logits=z).compute()
    assert streamed["nll"].value == pytest.approx(1000 / 3)
    assert metrics.evaluate(Predictions(logits=z, labels=y), resamples=5)["nll"].value == (
        pytest.approx(1000 / 3)
    )


def test_logits_are_their_softmax(draw_logits, compiled):
    y, z = draw_logits
    p = np.exp(z - z.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    one, other = (metrics.evaluate(y, resamples=20, **x) for x in ({"y_prob": p}, {"logits": z}))
    for name in metrics.METRICS:
        assert one[name].value == pytest.approx(other[name].value, abs=1e-9), name


@pytest.fixture
def draw_logits(rng):
    z = 3 * rng.normal(size=(500, 6))
    return np.argmax(z / 2 + rng.gumbel(size=z.shape), axis=1), z


BRIER = ("brier", "brier_calibration", "brier_refinement")


@pytest.mark.parametrize("logits", [False, True])
def test_one_column_is_class_1_of_a_binary_classifier(rng, logits):
    """As [1 − p, p] in everything, but the Brier score counts one class, as scikit-learn does."""
    s = 2 * rng.normal(size=400)
    y = (rng.random(400) < 1 / (1 + np.exp(-s / 2))).astype(int)
    p = 1 / (1 + np.exp(-s))
    one = {"logits": s} if logits else {"y_prob": p}
    two = {"logits": np.column_stack([0 * s, s])} if logits else {"y_prob": np.stack([1 - p, p], 1)}
    a, b = (metrics.evaluate(y, resamples=30, **x) for x in (one, two))
    column = {key: v[:, None] for key, v in one.items()}
    c = metrics.evaluate(y, resamples=30, **column)
    file = Predictions(labels=y, **({"logits": s} if logits else {"probs": p}))
    d = metrics.evaluate(file, resamples=30)
    streamed = CalibrationStats(1).update(y, **one).compute()
    for name in metrics.METRICS:
        half = 0.5 if name in BRIER else 1.0
        assert a[name].value == pytest.approx(half * b[name].value, abs=1e-12), name
        assert a[name].low == pytest.approx(half * b[name].low, abs=1e-9, nan_ok=True), name
        assert a[name].value == pytest.approx(c[name].value) == pytest.approx(d[name].value)
        if name in streamed.metrics:
            bound = streamed[name].error_bound
            assert streamed[name].value == pytest.approx(a[name].value, abs=bound + 1e-9)
    assert a.n_classes == 2
    assert metrics.error(y, **one) == pytest.approx(metrics.risk_coverage(y, **one).risk[-1])


def test_the_forecast_of_an_event(rng):
    """Confidence and correctness as they stand, whatever side of one half."""
    c = rng.random(300)
    y = (rng.random(300) < c**2).astype(int)
    e = metrics.evaluate(y, confidence=c, resamples=20)
    assert e["accuracy"].value == pytest.approx(y.mean())
    assert e["confidence_gap"].value == pytest.approx(c.mean() - y.mean())
    assert e["brier"].value == pytest.approx(((c - y) ** 2).mean())
    assert e["nll"].value == pytest.approx(-np.log(np.where(y, c, 1 - c)).mean())
    assert e["classwise_ece"].value == pytest.approx(e["ece"].value)
    assert e.n_classes == 1
    assert metrics.risk_coverage(y, confidence=c).risk[-1] == pytest.approx(1 - y.mean())
    streamed = CalibrationStats(1, kind="event").update(y, confidence=c).compute()
    assert streamed["ece"].value == pytest.approx(e["ece"].value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "exactly one of y_prob, logits and confidence, got 0"),
        ({"y_prob": [0.5], "logits": [0.0]}, "got 2"),
        ({"confidence": [[0.5, 0.5]]}, "one forecast per sample"),
        ({"logits": [[np.nan, 0.0]]}, "finite logits"),
    ],
)
def test_what_is_given_is_checked(given, message):
    with pytest.raises(InputError, match=message):
        metrics.ece([1], **given)


@pytest.mark.parametrize("measure", [metrics.ece, metrics.evaluate])
def test_predictions_hold_their_own_values(measure):
    """Calibrated probabilities beside the predictions they were made of would be ignored."""
    given = Predictions(logits=np.zeros((2, 3)), labels=np.array([0, 1]))
    with pytest.raises(InputError, match="expected Predictions alone"):
        measure(given, given.probabilities())


def test_predictions_need_labels_of_one_task():
    with pytest.raises(InputError, match="with labels"):
        metrics.evaluate(Predictions(logits=np.zeros((2, 3))))
    labels = np.zeros((2, 3), int)
    with pytest.raises(InputError, match="multilabel"):
        metrics.ece(Predictions(logits=np.zeros((2, 3)), labels=labels, task="multilabel"))


def test_several_labels_need_one_kind_of_values():
    """The logits were ignored where both were given."""
    y, z = np.eye(3, dtype=int), np.zeros((3, 3))
    with pytest.raises(InputError, match="exactly one of y_prob, logits and confidence, got 2"):
        metrics.evaluate(y, z + 0.5, logits=z, task="multilabel")


def test_rows_of_weight_zero_are_left_out(rng):
    y, p = rng.integers(0, 3, 60), rng.dirichlet(np.ones(3), 60)
    w = np.where(rng.random(60) < 0.3, 0.0, rng.integers(1, 3, 60))
    some = w > 0
    one = metrics.evaluate(y, p, sample_weight=w, resamples=20)
    other = metrics.evaluate(y[some], p[some], sample_weight=w[some], resamples=20)
    assert one.to_dict() == other.to_dict()
    stats = CalibrationStats(3).update(y, p, w)
    assert stats.to_json() == CalibrationStats(3).update(y[some], p[some], w[some]).to_json()
