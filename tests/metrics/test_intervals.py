"""Intervals hold what they claim to hold: a small form of benchmarks/interval_coverage.py."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import skew

from focalcal import metrics
from focalcal.metrics import METRICS, Sample
from focalcal.metrics.intervals import _exact, _hall, mean_interval, moments

NEEDS = ("sums", "top", "order", "classes", "even")
CLASSWISE = ("classwise_ece", "ace", "brier_calibration")


def softmax(z):
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


@pytest.mark.parametrize(("k", "n"), [(2, 500), (10, 1000)])
def test_class_wise_intervals_of_calibrated_data_reach_zero(k, n):
    """The true value is 0; of 60 intervals at most 8 may miss it (binomial, once in 500)."""
    rng = np.random.default_rng(k)
    missed = dict.fromkeys(CLASSWISE, 0)
    for _ in range(60):
        p = softmax(2 * rng.normal(size=(n, k)))
        y = (p.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1).clip(max=k - 1)
        sample = Sample.read(y, p, ("sums", "top", "order", "classes", "even"))
        stats = sample.stats()
        for name in CLASSWISE:
            low, high = METRICS[name].interval(float(METRICS[name].of(stats)), sample, 0.95)
            missed[name] += low > 0
            assert low <= METRICS[name].of(stats) <= high
    assert max(missed.values()) <= 8, missed


def test_class_wise_intervals_hold_a_known_error():
    """One column, always 0.1 too high: the class-wise errors are 0.1 whatever the bins."""
    rng = np.random.default_rng(0)
    missed = dict.fromkeys(("classwise_ece", "ace"), 0)
    for _ in range(60):
        q = rng.uniform(0.2, 0.7, 400)
        y = (rng.random(400) < q).astype(int)
        sample = Sample.read(y, q + 0.1, ("sums", "top", "order", "classes", "even"))
        for name in missed:
            value = float(METRICS[name].of(sample.stats()))
            low, high = METRICS[name].interval(value, sample, 0.95)
            missed[name] += not low <= 0.1 <= high
    assert max(missed.values()) <= 8, missed


def test_shares_have_the_exact_interval():
    """All of 20 right: 1 is no certainty. Independent: the tails of the binomial at the ends."""
    from scipy.stats import binom

    e = metrics.evaluate(np.zeros(20, int), np.tile([0.999, 0.001], (20, 1)), resamples=10)
    assert e["high_confidence_accuracy"].low ** 20 == pytest.approx(0.025)
    assert e["accuracy"].high == 1
    some = metrics.evaluate([0, 1] * 10, [[0.6, 0.4]] * 20, resamples=10)["accuracy"]
    assert binom.sf(9, 20, some.low) == pytest.approx(0.025)
    assert binom.cdf(10, 20, some.high) == pytest.approx(0.025)


@pytest.mark.parametrize("n", [20, 400])
@pytest.mark.parametrize("share", [0.0005, 0.02, 0.0229, 0.3, 0.96])
@pytest.mark.parametrize("level", [0.95, 0.9975])
def test_shares_cover(n, share, level):
    """Exact: binomial probabilities of the counts whose interval holds the share.

    The second level is that of 20 slices, where Wilson's interval missed four times too often.
    """
    from scipy.stats import binom

    held = [low <= share <= high for low, high in (_exact(h / n, n, level) for h in range(n + 1))]
    assert binom.pmf(np.arange(n + 1), n, share)[held].sum() >= level


def test_less_than_half_a_sample_says_nothing_of_a_share():
    """Weights may sum to less than a sample."""
    assert _exact(1.0, 0.1, 0.95) == _exact(0.0, 0.4, 0.8) == (0.0, 1.0)
    assert _exact(0.03, 10.0, 0.5)[0] == 0
    ends = [_exact(1.0, 0.8, level)[0] for level in (0.5, 0.8, 0.9, 0.95, 0.99)]
    assert ends == sorted(ends, reverse=True)
    e = metrics.evaluate([0], [[0.3, 0.7]], sample_weight=[0.1], resamples=10)
    assert (e["accuracy"].low, e["accuracy"].high) == (0.0, 1.0)


def test_quantiles_of_student_s_t():
    from scipy.stats import t

    for level in (0.8, 0.95, 0.99):
        for df in (5, 10, 100, 1e6):
            reach = _hall(0.0, 1.0, 0.0, level, df + 1)[1]
            assert reach == pytest.approx(t.ppf((1 + level) / 2, df), rel=1e-9)


def test_the_interval_of_a_symmetric_mean_is_student_s():
    """Independent: scipy.stats.ttest_1samp, which is exact for normal data without skewness."""
    from scipy.stats import ttest_1samp

    y, p = [1, 1, 0, 0] * 10, [0.9, 0.4, 0.6, 0.1] * 10
    got = metrics.evaluate(y, p, resamples=10)["brier"]
    losses = (np.array(y) - p) ** 2
    want = ttest_1samp(losses, 0).confidence_interval(0.95)
    assert (got.low, got.high) == pytest.approx(tuple(want), rel=1e-4)


def test_hall_s_interval_inverts_his_transformation():
    """Both ends give ±t for T + aT²/3 + a²T³/27 + a/6, by the formula itself."""
    from scipy.stats import t as student

    reach = student.ppf(0.975, 29)
    for a in (-0.4, 0.0, 0.3):
        for end, sign in zip(_hall(2.0, 0.5, a, 0.95, 30), (1, -1)):
            t = (2.0 - end) / 0.5
            at = t + a * t**2 / 3 + a**2 * t**3 / 27 + a / 6
            assert at == pytest.approx(sign * reach, rel=1e-5)


def test_intervals_of_weighted_means_are_those_of_repeated_rows(rng):
    y, p = rng.integers(0, 3, 40), rng.dirichlet(np.ones(3), 40)
    w = rng.integers(1, 4, 40)
    one = metrics.evaluate(y, p, sample_weight=w, resamples=10)
    other = metrics.evaluate(np.repeat(y, w), np.repeat(p, w, axis=0), resamples=10)
    for name, m in METRICS.items():
        if m.interval not in (None, "bootstrap"):
            got, want = one[name], other[name]
            ends = (got.low, got.high), (want.low, want.high)
            assert ends[0] == pytest.approx(ends[1], rel=1e-9, nan_ok=True), name


def test_a_rare_loss_is_skewed():
    """Nearly all losses are tiny and a few large: the upper end lies further from the mean."""
    rng = np.random.default_rng(3)
    y = (rng.random(300) < 0.03).astype(int)
    e = metrics.evaluate(y, np.full(300, 0.01), resamples=10)["nll"]
    assert e.high - e.value > 1.2 * (e.value - e.low)


@pytest.mark.parametrize(("n", "c", "a"), [(200, 0.97, 0.999), (50, 0.97, 0.91), (300, 0.99, 0.98)])
def test_intervals_of_errors_cover_where_few_are_wrong(n, c, a):
    """Exact: at equal confidence c every error is |c − a|, and the data are a binomial count."""
    from scipy.stats import binom

    held = dict.fromkeys((name for name, m in METRICS.items() if m.tested), 0.0)
    wrong = np.arange(n + 1)
    chance = binom.pmf(wrong, n, 1 - a)
    for h in wrong[chance > 1e-4]:
        e = metrics.evaluate(np.arange(n) >= h, confidence=np.full(n, c), resamples=200)
        for name in held:
            held[name] += chance[h] * (e[name].low <= abs(c - a) <= e[name].high)
    assert min(held.values()) >= 0.93, held


@pytest.mark.parametrize("label", [0, 1])
def test_samples_that_are_all_right_or_all_wrong_prove_no_error_of_zero(label):
    """Their resamples are all alike; the interval is that of the accuracy."""
    e = metrics.evaluate(np.full(20, label), np.full(20, 0.9), resamples=50)
    low, high = _exact(float(label), 20, 0.95)
    gap = e["confidence_gap"]
    assert (gap.low, gap.high) == pytest.approx((0.9 - high, 0.9 - low))
    for name in ("ece", "rms_calibration_error", "smooth_ece"):
        assert e[name].high == pytest.approx(max(0.9 - low, high - 0.9))


def test_few_of_a_kind_have_no_interval():
    """One wrong sample has no spread, and areas need both kinds."""
    e = metrics.evaluate([1] * 9 + [0], np.linspace(0.6, 0.9, 10), resamples=20)
    assert np.isnan(e["nll_wrong"].low)
    assert np.isnan(e["auroc_of_confidence"].high)
    assert np.isfinite(e["nll_right"].low)


def true_errors(p, q):
    """Class-wise ECE and the parts of the Brier score, by definition, of labels drawn from q."""
    at = np.minimum(np.ceil(p * 15).astype(int) - 1, 14).clip(min=0)
    error = square = 0.0
    for b in range(15):
        inside = at == b
        share, gap = inside.mean(axis=0), ((p - q) * inside).mean(axis=0)
        error += np.abs(gap).mean()
        square += np.divide(gap**2, share, out=np.zeros_like(gap), where=share > 0).sum()
    brier = ((p - q) ** 2 + q * (1 - q)).sum(axis=1).mean()
    return {"classwise_ece": error, "brier_calibration": square, "brier_refinement": brier - square}


def test_few_hits_per_cell_are_covered():
    """An accurate, over-confident classifier hits more often than its small probabilities say."""
    rng = np.random.default_rng(1)
    z = 8 * rng.normal(size=(100_000, 30))
    true = true_errors(softmax(1.5 * z), softmax(z))
    missed = dict.fromkeys(true, 0)
    for _ in range(40):
        z = 8 * rng.normal(size=(300, 30))
        y = (softmax(z).cumsum(axis=1) < rng.random((300, 1))).sum(axis=1).clip(max=29)
        sample = Sample.read(y, softmax(1.5 * z), ("sums", "top", "order", "classes", "even"))
        stats = sample.stats()
        for name in missed:
            low, high = METRICS[name].interval(float(METRICS[name].of(stats)), sample, 0.95)
            missed[name] += not low <= true[name] <= high
    assert max(missed.values()) <= 6, missed


def test_what_has_no_interval_says_why():
    for m in METRICS.values():
        assert (m.interval is None) == bool(m.why), m.name


@pytest.mark.parametrize("sharper", [1.0, 1.7])
@pytest.mark.parametrize("n", [50, 200])
def test_a_rare_class_that_was_not_drawn_is_allowed_for(n, sharper):
    """About 0.4 % of the samples are wrong, so that most data sets have no wrong one."""
    rng = np.random.default_rng(n)
    names = ("nll", "brier", "brier_refinement", "brier_calibration", "classwise_ece", "ace")

    def draw(size):
        z = 1.5 * rng.normal(size=size) - 6
        return expit(z), expit(sharper * z)

    q, p = draw(200_000)
    true = {  # with the probability of the label in place of the label
        "nll": float(-(q * np.log(p) + (1 - q) * np.log1p(-p)).mean()),
        "brier": float(2 * (q * (1 - p) ** 2 + (1 - q) * p**2).mean()),
    }
    at = np.ceil(p * 15)
    gaps = [(np.mean(at == b), (p - q)[at == b].mean()) for b in range(1, 16) if (at == b).any()]
    true["brier_calibration"] = float(2 * sum(share * gap**2 for share, gap in gaps))
    true["classwise_ece"] = float(sum(share * abs(gap) for share, gap in gaps))
    true["ace"] = float(np.abs(p - q).mean())  # the sign of z decides that of p − q
    true["brier_refinement"] = true["brier"] - true["brier_calibration"]
    held = dict.fromkeys(names, 0)
    for _ in range(100):
        q, p = draw(n)
        y = (rng.random(n) < q).astype(int)
        sample = Sample.read(y, np.column_stack([1 - p, p]), NEEDS)
        for name in names:
            value = float(METRICS[name].of(sample.stats()))
            low, high = METRICS[name].interval(value, sample, 0.95)
            held[name] += low - 1e-9 <= true[name] <= high + 1e-9
    assert min(held.values()) >= 90, held


def test_unseen_errors_of_two_classes_cost_what_the_other_class_does():
    p = np.array([0.9, 0.8, 0.95])
    error = 1 - METRICS["accuracy"].interval(1.0, Sample.read([1, 1, 1], p, ("top",)), 0.95)[0]
    for y_prob, scale in ((p, 1), (np.column_stack([1 - p, p]), 2)):
        sample = Sample.read([1, 1, 1], y_prob, ("sums", "top", "classes"))
        for name, right, wrong in (
            ("nll", -np.log(p), -np.log(1 - p)),
            ("brier", scale * (1 - p) ** 2, scale * p**2),
        ):
            seen = mean_interval(lambda s, name=name: s.values[name])(right.mean(), sample, 0.95)
            found = METRICS[name].interval(right.mean(), sample, 0.95)
            expected = seen[1] + error * (wrong - right).mean()
            np.testing.assert_allclose(found, (seen[0], expected))


def test_the_log_loss_of_certain_and_right_samples_has_no_interval():
    e = metrics.evaluate([0, 0, 1], [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], resamples=5)
    assert np.isnan([e["nll"].low, e["nll"].high]).all()
    assert e["brier"].high == pytest.approx(2 * (1 - e["accuracy"].low))


@pytest.mark.parametrize("scale", [1, 1e-130, 1e-250])
def test_the_spread_of_tiny_losses_is_seen(scale):
    x = np.array([1.0, 2.0, 4.0, 4.0])
    found = moments(scale * x, None)
    assert found[1] == pytest.approx(scale * x.std(ddof=1))
    assert found[2] == pytest.approx(skew(x))
    assert moments(scale * x[:3], np.array([1.0, 1.0, 2.0]))[1] == pytest.approx(found[1])


def test_nearly_certain_cells_have_no_noise():
    """A probability of 1e-310 has a variance whose ratio to a gap is beyond floats."""
    p = np.tile([1.0, 1e-310], (50, 1))
    e = metrics.evaluate([0] * 49 + [1], p, resamples=5)
    assert e["classwise_ece"].low <= e["classwise_ece"].value <= e["classwise_ece"].high


def test_rows_of_weight_zero_change_no_interval(rng):
    """Also where such a row is alone in its bin."""
    y, c = [1, 0, 1, 1, 0, 1], [0.61, 0.62, 0.63, 0.64, 0.65, 0.1]
    with_it = metrics.evaluate(y, confidence=c, sample_weight=[1, 1, 2, 1, 1, 0], resamples=10)
    without = metrics.evaluate(y[:5], confidence=c[:5], sample_weight=[1, 1, 2, 1, 1], resamples=10)
    for name in ("rms_calibration_error", "debiased_ece", "confidence_gap"):
        got, want = with_it[name], without[name]
        assert (got.low, got.high) == pytest.approx((want.low, want.high), rel=1e-12), name


def test_one_sample_has_no_interval_of_squared_errors():
    e = metrics.evaluate([1], confidence=[0.3], resamples=10)
    for name in ("rms_calibration_error", "debiased_ece"):
        assert np.isnan([e[name].low, e[name].high]).all(), name
