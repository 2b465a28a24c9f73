"""Venn–Abers against refitting scikit-learn's isotonic regression for every sample and label."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.isotonic import IsotonicRegression

from focalcal.calibrators import VennAbers, load
from focalcal.errors import FileFormatError, InputError

pytestmark = pytest.mark.filterwarnings("ignore::focalcal.errors.FitWarning")


def refitted(s, y, weights, at):
    """[p0, p1] by definition: one isotonic regression for each sample and each of its labels."""
    return [
        [
            IsotonicRegression()
            .fit(np.append(s, v), np.append(y, label), sample_weight=np.append(weights, 1.0))
            .predict([v])[0]
            for label in (0, 1)
        ]
        for v in at
    ]


@pytest.mark.parametrize("seed", range(30))
def test_interval_equals_refitting(seed):
    rng = np.random.default_rng(seed)
    levels, n = rng.integers(1, 12), rng.integers(1, 40)
    s = rng.integers(0, levels, n).astype(float)  # many ties
    y = rng.integers(0, 2, n)
    weights = rng.integers(1, 4, n).astype(float) if seed % 2 else np.ones(n)
    at = np.concatenate([np.unique(s), np.arange(-1, levels + 1) + 0.5])
    calibrator = VennAbers().fit(s, y, sample_weight=weights)
    interval = calibrator.predict_interval(at)
    np.testing.assert_allclose(interval, refitted(s, y, weights, at), atol=1e-12)
    p0, p1 = interval.T
    expected = p1 / (1 - p0 + p1)
    np.testing.assert_allclose(calibrator.predict_proba(at)[:, 1], expected, atol=1e-12)


def test_interval_of_continuous_scores_and_of_every_class(calibrated_data):
    z, y = calibrated_data(60, 3)
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    interval = VennAbers().fit(z, y).predict_interval(z)
    assert interval.shape == (60, 3, 2)
    for k in range(3):
        expected = refitted(p[:, k], y == k, np.ones(60), p[:, k])
        np.testing.assert_allclose(interval[:, k], expected, atol=1e-9)
    assert (interval[..., 0] < interval[..., 1]).all()


def test_interval_of_other_tasks(calibrated_data):
    z, y = calibrated_data(80, 3)
    top = VennAbers(mode="top-label").fit(z, y)
    assert top.predict_interval(z).shape == (80, 2)
    labels = (z[:, :2] > 0).astype(int)
    labels[::7] = 1 - labels[::7]
    many = VennAbers(task="multilabel").fit(z[:, :2], labels)
    interval = many.predict_interval(z[:, :2])
    one = VennAbers().fit(z[:, 0], labels[:, 0]).predict_interval(z[:, 0])
    np.testing.assert_array_equal(interval[:, 0], one)


def test_interval_of_tensors(calibrated_data):
    torch = pytest.importorskip("torch")
    z, y = calibrated_data(50, 2)
    calibrator = VennAbers().fit(z, y)
    got = calibrator.predict_interval(torch.as_tensor(z))
    assert isinstance(got, torch.Tensor)
    np.testing.assert_allclose(got.numpy(), calibrator.predict_interval(z), atol=1e-12)


def test_more_data_narrow_the_interval(calibrated_data):
    few, many = (
        VennAbers().fit(*calibrated_data(n, 2)).predict_interval(calibrated_data(500, 2, seed=9)[0])
        for n in (100, 10_000)
    )
    assert np.diff(many).mean() < 0.2 * np.diff(few).mean()


def test_each_pair_of_values_is_kept_once():
    """300 classes and 3,000 samples took 144 MB as JSON."""
    s = np.arange(200.0)
    fitted = VennAbers().fit(s, s >= 100)
    pairs = np.stack([fitted.lower_[0], fitted.upper_[0]], axis=1)
    used = np.unique(pairs, axis=0)
    assert len(used) == len(np.unique(fitted.edges_)) + 1
    assert len(used) < 210


def test_bad_input_is_refused(calibrated_data, tmp_path):
    z, y = calibrated_data(50, 3)
    calibrator = VennAbers().fit(z, y)
    with pytest.raises(InputError, match="expected logits for 3 classes"):
        calibrator.predict_interval(z[:, :2])
    calibrator.lower_ = calibrator.lower_ + 2
    calibrator.save(tmp_path / "c.json")
    with pytest.raises(FileFormatError, match="expected lower_ in"):
        load(tmp_path / "c.json")


def test_weighted_intervals_stay_in_range_and_load_again(tmp_path):
    """Sums of fractional weights are rounded: p0 was −1e-12, and the saved file was refused."""
    rng = np.random.default_rng(0)
    z = 3 * rng.normal(size=(400, 4))
    y = np.argmax(z + rng.gumbel(size=z.shape), axis=1)
    fitted = VennAbers().fit(z, y, sample_weight=rng.uniform(0.2, 3, 400))
    assert fitted.lower_.min() == 0
    assert fitted.upper_.max() == 1
    fitted.save(tmp_path / "cal.json")
    again = load(tmp_path / "cal.json")
    np.testing.assert_array_equal(again.predict_interval(z), fitted.predict_interval(z))
