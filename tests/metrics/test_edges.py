"""Edge cases and bad input: every metric, one table."""

from __future__ import annotations

import numpy as np
import pytest

from focalcal import metrics
from focalcal.errors import InputError

CALIBRATION = [
    metrics.ece,
    metrics.mce,
    metrics.adaptive_ece,
    metrics.ace,
    metrics.rms_calibration_error,
    metrics.classwise_ece,
    metrics.debiased_ece,
    metrics.smooth_ece,
    metrics.ks_error,
]
FLOATS = [
    *CALIBRATION,
    metrics.accuracy,
    metrics.error,
    metrics.nll,
    metrics.brier,
    metrics.confidence_gap,
    metrics.auroc_of_confidence,
    metrics.aurc,
]
RESULTS = [
    metrics.brier_decomposition,
    metrics.high_confidence,
    metrics.risk_coverage,
    metrics.correctness_split,
    metrics.reliability,
    metrics.equal_mass_reliability,
]
floats = pytest.mark.parametrize("metric", FLOATS, ids=lambda f: f.__name__)
calibration = pytest.mark.parametrize("metric", CALIBRATION, ids=lambda f: f.__name__)
every = pytest.mark.parametrize("metric", FLOATS + RESULTS, ids=lambda f: f.__name__)


@calibration
def test_certain_and_right_is_perfect(metric):
    assert metric([0, 1, 2], np.eye(3)) == 0
    assert metric([0, 1, 1], [0.0, 1.0, 1.0]) == 0


@pytest.mark.parametrize("metric", [metrics.ece, metrics.mce, metrics.adaptive_ece])
def test_certain_and_wrong_is_one(metric):
    # Confidence exactly 1 belongs to the last bin, 0 to the first; none falls out.
    assert metric([1, 2, 0], np.eye(3)) == 1
    assert metric([1, 0, 0], [0.0, 1.0, 1.0]) == 1


@calibration
def test_all_samples_equal(metric):
    y, c = np.array([1, 1, 1, 0]), np.full(4, 0.6)
    # Debiased: 0.15² is less than the variance 0.75·0.25/3 of an accuracy from 4 samples.
    expected = 0 if metric is metrics.debiased_ece else 0.15
    assert metric(y, c) == pytest.approx(expected, abs=1e-6)


@floats
def test_one_sample(metric):
    value = metric([1], [[0.2, 0.8]])
    expected = {
        "accuracy": 1,
        "error": 0,
        "nll": -np.log(0.8),
        "brier": 0.08,
        "confidence_gap": -0.2,
        "aurc": 0,
        "auroc_of_confidence": np.nan,
    }.get(metric.__name__, 0.2)
    assert value == pytest.approx(expected, abs=1e-6, nan_ok=True)


@calibration
def test_fewer_samples_than_bins(metric, rng):
    p = rng.dirichlet(np.ones(3), size=4)
    y = np.array([0, 1, 2, 2])
    options = {} if metric in (metrics.smooth_ece, metrics.ks_error) else {"bins": 50}
    assert 0 <= metric(y, p, **options) <= 1


def test_ties_on_edges_are_decided_alike_in_both_precisions():
    c = np.linspace(0, 1, 16)
    y = (np.arange(16) % 2).astype(int)
    single = c.astype(np.float32)
    expected = pytest.approx(metrics.ece(y, confidence=c), abs=1e-7)
    assert metrics.ece(y, confidence=single) == expected
    counts = metrics.reliability(y, confidence=single).counts
    np.testing.assert_array_equal(counts, metrics.reliability(y, confidence=c).counts)


def test_a_class_absent_from_the_labels_still_counts(rng):
    # The class count is the number of columns, not max(label) + 1.
    p = np.array([[0.5, 0.2, 0.3], [0.4, 0.3, 0.3]])
    y = np.array([0, 1])
    expected = (abs(0.45 - 0.5) * 0 + 0.5 * 1 + 0.4 + 0.2 + 0.7 + 0.3 * 2) / 2 / 3
    assert metrics.classwise_ece(y, p) == pytest.approx(expected)
    assert metrics.evaluate(y, p, resamples=5).n_classes == 3


@every
def test_thousand_classes(metric, draw, rng):
    y, p = draw(rng, 300, 1000, scale=3.0)
    wide = metric(y, p)
    if isinstance(wide, float):
        assert np.isfinite(wide)
        assert metric(y, p.astype(np.float32)) == pytest.approx(wide, abs=2e-3)


@every
def test_layouts_and_kinds_of_array_do_not_matter(metric, draw, rng):
    torch = pytest.importorskip("torch")
    y, p = draw(rng, 200, 5)
    expected = repr(metric(y, p))
    frozen = p.copy()
    frozen.flags.writeable = False
    spaced = np.zeros((400, 10))
    spaced[::2, ::2] = p
    for other in (frozen, spaced[::2, ::2], np.asfortranarray(p), p.tolist(), torch.tensor(p)):
        assert repr(metric(y, other)) == expected
    for labels in (y.tolist(), y.astype(np.uint8), y.astype(np.int32), torch.tensor(y)):
        assert repr(metric(labels, p)) == expected
    grad = torch.tensor(p, requires_grad=True)
    assert repr(metric(torch.tensor(y), grad)) == expected


@floats
@pytest.mark.filterwarnings("ignore:rows of y_prob do not sum to 1")
def test_half_precision(metric, draw, rng):
    torch = pytest.importorskip("torch")
    y, p = draw(rng, 200, 5)
    value = metric(y, p.astype(np.float16))
    assert isinstance(value, float)
    assert value == pytest.approx(metric(y, p), abs=0.05)
    coarse = torch.tensor(p).to(torch.bfloat16)
    assert metric(y, coarse) == pytest.approx(metric(y, p), abs=0.2)


@pytest.mark.filterwarnings("ignore:rows of y_prob do not sum to 1")
def test_half_precision_in_summary_and_stream(draw, rng):
    y, p = draw(rng, 200, 5)
    half = p.astype(np.float16)
    assert metrics.evaluate(y, half, resamples=5)["ece"].value == metrics.ece(y, half)
    streamed = metrics.CalibrationStats(5).update(y, half).compute()["ece"].value
    assert streamed == pytest.approx(metrics.ece(y, half), abs=1e-12)


@pytest.mark.gpu
@floats
def test_on_a_gpu(metric, draw, rng):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    y, p = draw(rng, 500, 5)
    on_gpu = metric(torch.tensor(y).cuda(), torch.tensor(p).cuda())
    assert on_gpu == pytest.approx(metric(y, p), abs=1e-12)
    assert metric(y, torch.tensor(p).cuda()) == pytest.approx(on_gpu, abs=1e-12)


@every
def test_input_is_not_changed(metric, draw, rng):
    y, p = draw(rng, 100, 4)
    w = rng.random(100)
    copies = y.copy(), p.copy(), w.copy()
    metric(y, p, sample_weight=w)
    for before, after in zip(copies, (y, p, w)):
        np.testing.assert_array_equal(before, after)


def test_one_column_is_the_forecast_of_an_event():
    y, p = [1, 0, 1], np.array([0.7, 0.4, 0.9])
    assert metrics.ece(y, p[:, None]) == metrics.ece(y, p)


def test_a_softmax_that_overshoots_one_is_accepted():
    p = np.array([[1 + 1e-7, 0.0]], dtype=np.float32)
    assert metrics.ece([0], p) == 0


BAD = {
    "nan": ([0, 1], [[0.5, 0.5], [np.nan, 0.5]], "finite y_prob, got nan at row 1, column 0"),
    "infinite": ([0, 1], [[0.5, 0.5], [0.5, np.inf]], "got inf at row 1, column 1"),
    "negative": ([0, 1], [[0.5, 0.5], [1.5, -0.5]], r"in \[0, 1\], got 1.5 at row 1, column 0"),
    "sums": ([0, 1], [[0.5, 0.5], [0.5, 0.1]], "sum to 1, got 0.6 at row 1"),
    "logits": ([0, 1], [[2.0, -1.0], [0.3, 4.0]], "pass logits through a softmax"),
    "label high": ([0, 2], [[0.5, 0.5], [0.5, 0.5]], r"y_true in 0..1, got 2 at row 1"),
    "label low": ([0, -1], [[0.5, 0.5], [0.5, 0.5]], "got -1 at row 1"),
    "event label": ([0, 2], [0.5, 0.5], "got 2 at row 1"),
    "float labels": ([0.0, 1.0], [[0.5, 0.5], [0.5, 0.5]], "integer y_true, got dtype float64"),
    "lengths": ([0], [[0.5, 0.5], [0.5, 0.5]], r"shape \(2,\), got \(1,\)"),
    "empty": (np.zeros(0, int), np.zeros((0, 2)), "N >= 1"),
    "no classes": ([0, 1], np.zeros((2, 0)), "N >= 1"),
    "cube": ([0, 1], np.full((2, 2, 2), 0.5), "shape"),
    "objects": ([0], np.array([[None, 0.5]], dtype=object), "dtype object"),
    "text": (["a"], [[0.5, 0.5]], "expected 2 different y_true, one per class"),
    "complex": ([0], np.array([[0.5 + 0j, 0.5]]), "expected numbers in y_prob"),
}


@every
@pytest.mark.parametrize("kind", BAD)
def test_bad_input_is_named(metric, kind):
    y, p, message = BAD[kind]
    with pytest.raises(InputError, match=message):
        metric(y, p)


@pytest.mark.parametrize("kind", BAD)
def test_summary_and_stream_name_bad_input_too(kind):
    y, p, message = BAD[kind]
    with pytest.raises(InputError, match=message):
        metrics.evaluate(y, p, resamples=5)
    columns = 1 if np.ndim(p) == 1 else max(np.shape(p)[-1], 1)
    with pytest.raises(InputError, match=message):
        metrics.CalibrationStats(columns).update(y, p)


@every
@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0], r"sample_weight of shape \(2,\)"),
        ([1.0, -1.0], ">= 0, got -1.0 at row 1"),
        ([1.0, np.nan], "finite sample_weight, got nan at row 1"),
        ([0.0, 0.0], "positive sum"),
    ],
)
def test_bad_weights_are_named(metric, weights, message):
    with pytest.raises(InputError, match=message):
        metric([0, 1], [[0.5, 0.5], [0.4, 0.6]], sample_weight=weights)


def test_bad_rows_far_down_are_named(rng):
    # The one-pass reduction works in blocks; the row reported is that of the whole array.
    n = 100_000
    p = rng.dirichlet(np.ones(4), size=n)
    y = rng.integers(4, size=n)
    p[77_777, 2] = np.nan
    with pytest.raises(InputError, match="row 77777, column 2"):
        metrics.ece(y, p)


@pytest.mark.parametrize("k", [2, 10, 64, 65, 200])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_pass_reduction_is_max_and_argmax(k, dtype, rng):
    n = 70_000 if k < 20 else 3000
    p = rng.random((n, k)).astype(dtype)
    p[::7] = np.round(p[::7], 1)  # ties
    p[p.sum(axis=1) == 0, 0] = 1
    p /= p.sum(axis=1, keepdims=True)
    y = rng.integers(k, size=n)
    b = metrics.reliability(y, p)
    assert b.correct_sums.sum() == np.count_nonzero(p.argmax(axis=1) == y)
    assert b.confidence_sums.sum() == pytest.approx(p.max(axis=1).astype(np.float64).sum())


@pytest.mark.parametrize("bad", [0, -2, 2.5])
def test_bin_counts_are_checked(bad):
    for metric in (metrics.ece, metrics.adaptive_ece, metrics.classwise_ece, metrics.ace):
        with pytest.raises(InputError, match="whole number of bins"):
            metric([0, 1], [0.5, 0.5], bins=bad)
