"""Focal calibration and focal temperature scaling."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special

from focalcal._arrays import softmax
from focalcal.calibrators import (
    FocalCalibration,
    FocalTemperatureScaling,
    TemperatureScaling,
    focal,
    make,
)
from focalcal.calibrators.base import FitData
from focalcal.calibrators.focal import GAMMAS, NllScores, focal_sums
from focalcal.calibrators.grid import GridLine, Point, TopScores, grid_search, point_log_odds
from focalcal.errors import FitWarning, InputError
from focalcal.maps import focal_log_map
from focalcal.metrics import adaptive_ece, ece

METRICS = {"ece": ece, "adaptive_ece": adaptive_ece}
COARSE = np.arange(1, 51) / 10


def nll(z, y, gamma, t, weights=None):
    log_p = focal_log_map(z / t, gamma)[np.arange(len(y)), y]
    return -np.average(log_p, weights=weights)


def plain_loop(z, y, objective, gammas, temperatures, weights=None):
    """The published search as it is described: no sharing, no interpolation; the oracle."""
    best = (np.inf, None, None)
    for gamma in gammas:
        for t in temperatures:
            if objective == "nll":
                value = nll(z, y, gamma, t, weights)
            else:
                p = np.exp(focal_log_map(z / t, gamma))
                value = METRICS[objective](y, p, sample_weight=weights)
            if value < best[0] - 1e-13:
                best = (value, gamma, t)
    return best


@pytest.mark.parametrize("gamma", [-0.5, 0.0, 0.37, 5.0])
@pytest.mark.parametrize("t", [0.01, 0.4, 1.0, 5.0])
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_log_odds_are_those_of_the_map(calibrated_data, gamma, t, kind):
    # The map works class by class on full rows, the log-odds on the odds of the other classes.
    z, _ = calibrated_data(200, 20, scale=4.0)
    expected = np.exp(focal_log_map(z / t, gamma).max(axis=1))
    given = z
    if kind == "torch":
        given = pytest.importorskip("torch").as_tensor(z)
    for double, tolerance in ((True, 2e-14), (False, 2e-6)):
        odds = np.asarray(point_log_odds(given, [Point(t, (gamma, 0.0))], double=double))[0]
        np.testing.assert_allclose(
            scipy.special.expit(odds.astype(float)), expected, atol=tolerance
        )


def test_log_odds_keep_their_digits_when_saturated():
    z = np.array([[1e4, -1e4, -1e4], [40.0, 0.0, -5.0]])
    odds = point_log_odds(z, [Point(1.0, (0.0, 1.0))], double=True)
    # Ψ^γ nearly multiplies large log-odds by 1+γ: log h_top ≈ −γ log R − log(1+γ).
    assert odds[0] == pytest.approx([2e4 - np.log(2), -np.log(np.exp(-40) + np.exp(-45))])
    assert odds[1] == pytest.approx(2 * odds[0] - np.log(2), rel=1e-12)


@pytest.mark.filterwarnings("ignore:.*end of the searched range")
@pytest.mark.parametrize("objective", ["ece", "adaptive_ece", "nll"])
@pytest.mark.parametrize("weighted", [False, True])
def test_grid_has_the_optimum_of_a_plain_loop(calibrated_data, objective, weighted):
    z, y = calibrated_data(400, 6, scale=3.0, seed=5)
    z = 2.2 * z
    weights = np.random.default_rng(0).integers(0, 4, 400) if weighted else None
    value, gamma, t = plain_loop(z, y, objective, GAMMAS, COARSE, weights)
    fitted = FocalTemperatureScaling(objective, "grid", temperatures=COARSE)
    fitted.fit(z, y, sample_weight=weights)
    assert (fitted.gamma_, fitted.temperature_) == (gamma, t)
    assert fitted.diagnostics_.after == pytest.approx(value, abs=1e-12)


@pytest.mark.filterwarnings("ignore:.*end of the searched range")
def test_paper_grid_has_the_optimum_of_a_plain_loop_on_real_logits(shared_data):
    file = np.load(shared_data / "logits" / "cifar10_resnet50_flsd53.npz")
    z, y = file["val_logits"][:600].astype(np.float64), file["val_labels"][:600]
    fitted = FocalTemperatureScaling("adaptive_ece").fit(z, y)
    scores = TopScores(FitData(z, y, None), "adaptive_ece", 15)
    temperatures = np.arange(1, 501) / 100
    errors = scores.exact([(g, t) for g in GAMMAS for t in temperatures]).reshape(9, 500)
    # `exact` is float64 log-odds and the library's bins: check it against the map and the metric.
    for i, j in [(0, 20), (4, 100), (8, 499)]:
        p = np.exp(focal_log_map(z / temperatures[j], GAMMAS[i]))
        assert errors[i, j] == pytest.approx(adaptive_ece(y, p), abs=1e-12)
    i, j = np.unravel_index(errors.argmin(), errors.shape)
    assert (fitted.gamma_, fitted.temperature_) == (GAMMAS[i], temperatures[j])


def test_mean_confidence_falls_as_the_temperature_rises(calibrated_data):
    # The grid search skips temperatures because of this; `plausible` relies on nothing else.
    z, _ = calibrated_data(300, 7, scale=3.0)
    gammas = (-0.95, -0.5, 0.0, 1.0, 10.0)
    points = [Point(t, gammas) for t in np.geomspace(0.02, 50, 100).tolist()]
    odds = point_log_odds(z, points, double=True).reshape(100, len(gammas), -1)
    assert (np.diff(scipy.special.expit(odds), axis=0) <= 1e-14).all()


@pytest.mark.parametrize("objective", ["ece", "adaptive_ece"])
@pytest.mark.parametrize("case", ["plain", "ties", "weights"])
def test_bounds_of_interpolated_errors_hold(calibrated_data, objective, case):
    z, y = calibrated_data(700, 8, scale=4.0, seed=2)
    if case == "ties":  # equal confidences share a bin, so none may be split between two
        z[100:140] = z[0]
    weights = np.random.default_rng(0).random(700) if case == "weights" else None
    scores = TopScores(FitData(z, y, weights), objective, 15)
    temperatures = np.arange(5, 505) / 100
    path = GridLine(np.log(temperatures), lambda x: Point(np.exp(x), (1.0,)))
    nodes, matrix = path.nodes()
    assert len(nodes) < len(temperatures) / 4
    bounds = np.array([scores._bounds(row) for row in matrix @ point_log_odds(z, nodes)])
    truth = scores.exact([(1.0, t) for t in temperatures])
    assert (bounds[:, 0] <= truth).all()
    assert (truth <= bounds[:, 1]).all()
    assert case == "ties" or np.median(bounds[:, 1] - bounds[:, 0]) < 4e-3


@pytest.mark.parametrize("objective", ["ece", "adaptive_ece"])
def test_first_look_keeps_the_best_temperature(calibrated_data, objective):
    z, y = calibrated_data(300, 4, scale=3.0)
    temperatures = np.random.default_rng(0).permutation(np.arange(1, 101) / 20)
    for factor in (0.3, 1.0, 3.0):
        scores = TopScores(FitData(factor * z, y, None), objective, 15)
        kept = scores.plausible((-0.5, 1.0), temperatures)
        errors = [scores.exact([(g, t) for t in temperatures.tolist()]) for g in (-0.5, 1.0)]
        assert kept[np.argmin(np.min(errors, axis=0))]
        assert not kept.all()


@pytest.mark.parametrize("objective", ["nll", "adaptive_ece"])
def test_search_on_tensors_equals_numpy(calibrated_data, objective):
    # On a GPU the log-odds are computed in torch; CPU tensors take the same path.
    torch = pytest.importorskip("torch")
    z, y = calibrated_data(500, 5, scale=3.0)
    data = FitData(2 * z, y, None)
    scores = NllScores(data) if objective == "nll" else TopScores(data, objective, 15)
    temperatures = np.arange(1, 101) / 20
    a = grid_search(scores, (-0.5, 1.0), temperatures)
    scores.logits = torch.as_tensor(2 * z)
    b = grid_search(scores, (-0.5, 1.0), temperatures)
    assert (a.gamma, a.temperature) == (b.gamma, b.temperature)
    assert a.error == pytest.approx(b.error, abs=1e-12)


@pytest.mark.filterwarnings("ignore:.*end of the searched range")
def test_torch_tensors_reach_the_same_optimum(calibrated_data):
    torch = pytest.importorskip("torch")
    z, y = calibrated_data(500, 5, scale=3.0)
    settings = {"objective": "adaptive_ece", "temperatures": COARSE}
    a = FocalTemperatureScaling(**settings).fit(2 * z, y)
    b = FocalTemperatureScaling(**settings).fit(torch.as_tensor(2 * z), torch.as_tensor(y))
    assert (a.gamma_, a.temperature_) == (b.gamma_, b.temperature_)


@pytest.mark.gpu
def test_grid_on_the_device_equals_numpy(calibrated_data):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    z, y = calibrated_data(2000, 20, scale=3.0)
    a = FocalTemperatureScaling("adaptive_ece").fit(2 * z, y)
    b = FocalTemperatureScaling("adaptive_ece").fit(
        torch.as_tensor(2 * z, device="cuda"), torch.as_tensor(y, device="cuda")
    )
    assert (a.gamma_, a.temperature_) == (b.gamma_, b.temperature_)


@pytest.mark.parametrize("gamma", [-0.7, 0.0, 0.5, 4.0])
def test_gradient_of_the_nll(calibrated_data, gamma):
    # Independent: central differences of scipy's log_softmax route through the map.
    z, y = calibrated_data(60, 5, scale=3.0)
    w = np.random.default_rng(0).random(60)
    x, h = np.array([np.log1p(gamma), np.log(1.25)]), 1e-5
    *sums, total = focal_sums(z, y, w, x[None])
    assert total == pytest.approx(w.sum())
    f = lambda a, b: w.sum() * nll(z, y, np.expm1(a), np.exp(b), w)  # noqa: E731
    assert sums[0] == pytest.approx(f(*x), rel=1e-12)
    for found, step in zip(sums[1:], np.eye(2) * h):
        assert found == pytest.approx((f(*(x + step)) - f(*(x - step))) / (2 * h), abs=1e-5)


def test_gradient_of_the_nll_of_saturated_logits():
    z, y = np.array([[1e4, -1e4, 0.0], [40.0, 0.0, -5.0], [3.0, 900.0, 0.0]]), np.array([0, 1, 0])
    x = np.array([[np.log1p(3.0), np.log(2.0)], [np.log1p(-0.5), np.log(0.01)]])
    found = focal_sums(z, y, None, x)
    assert np.isfinite(found).all()
    expected = [3 * nll(z, y, 3.0, 2.0), 3 * nll(z, y, -0.5, 0.01)]
    assert found[[0, 3]] == pytest.approx(expected, rel=1e-12)


def test_nll_from_odds_is_the_nll(calibrated_data):
    z, y = calibrated_data(300, 5, scale=3.0)
    pairs = [(-0.5, 0.7), (0.0, 1.0), (3.0, 2.0)]
    found = NllScores(FitData(z, y, None)).exact(pairs)
    assert found == pytest.approx([nll(z, y, g, t) for g, t in pairs], abs=1e-12)


def test_nll_from_odds_is_the_nll_of_saturated_logits():
    z, y = np.array([[1e4, -1e4, 0.0], [40.0, 0.0, -5.0], [3.0, 900.0, 0.0]]), np.array([0, 1, 0])
    pairs = [(-0.5, 0.01), (0.0, 1.0), (3.0, 2.0)]
    found = NllScores(FitData(z, y, None)).exact(pairs)
    assert found == pytest.approx([nll(z, y, g, t) for g, t in pairs], rel=1e-12)


@pytest.mark.filterwarnings("ignore:.*end of the searched range")
def test_gradient_search_beats_temperature_scaling_and_the_grid(calibrated_data):
    z, y = calibrated_data(3000, 5, scale=2.0, seed=7)
    z = 2 * np.sign(z) * np.abs(z) ** 1.3
    best = FocalTemperatureScaling().fit(z, y).diagnostics_.after
    assert best <= TemperatureScaling().fit(z, y).diagnostics_.after + 1e-9
    for search in ("grid", "line"):
        found = FocalTemperatureScaling(search=search, temperatures=COARSE).fit(z, y)
        assert best <= found.diagnostics_.after + 1e-9


def test_gradient_search_recovers_gamma_and_temperature():
    # Labels drawn from Ψ^2(softmax(z)) itself; γ and T trade off, so the tolerance is wide.
    rng = np.random.default_rng(0)
    z = 1.2 * rng.normal(size=(30_000, 3))
    y = np.argmax(focal_log_map(z, 2.0) + rng.gumbel(size=z.shape), axis=1)
    fitted = FocalTemperatureScaling().fit(z * 1.5, y)
    assert fitted.diagnostics_.after <= nll(z, y, 2.0, 1.0) + 1e-9
    assert fitted.gamma_ == pytest.approx(2.0, abs=0.7)
    assert fitted.temperature_ == pytest.approx(1.5, abs=0.3)


def test_gamma_that_runs_away_is_bounded_and_said(calibrated_data):
    z, y = calibrated_data(2000, 3)
    with pytest.warns(FitWarning, match="gamma ran to the end"):
        fitted = FocalTemperatureScaling(gamma_range=(0.5, 0.6)).fit(z, y)
    assert 0.5 <= fitted.gamma_ <= 0.6
    assert fitted.diagnostics_.at_edge


@pytest.mark.filterwarnings("ignore:.*end of the searched range")
def test_line_search_compares_three_times_as_many_points(calibrated_data):
    z, y = calibrated_data(500, 5, scale=3.0)
    fitted = FocalTemperatureScaling("adaptive_ece", "line", temperatures=COARSE).fit(2 * z, y)
    assert fitted.diagnostics_.iterations <= 3 * len(COARSE)
    ends = [plain_loop(2 * z, y, "adaptive_ece", (g,), COARSE)[0] for g in (-0.25, 1.0)]
    assert fitted.diagnostics_.after <= min(ends) + 1e-12


@pytest.mark.filterwarnings("ignore::focalcal.errors.FitWarning")
@pytest.mark.parametrize("case", ["chance", "separable", "flat"])
def test_degenerate_data_give_temperature_scaling(calibrated_data, case):
    z, _ = calibrated_data(300, 4)
    y = {"chance": z.argmin(axis=1), "separable": z.argmax(axis=1), "flat": z.argmax(axis=1)}[case]
    z = z * (case != "flat")
    fitted = FocalTemperatureScaling().fit(z, y)
    assert fitted.gamma_ == 0
    assert fitted.temperature_ == TemperatureScaling().fit(z, y).temperature_
    assert np.isfinite(fitted.predict_proba(z)).all()


def test_edge_of_the_grid_is_said(calibrated_data):
    z, y = calibrated_data(500, 4)
    with pytest.warns(FitWarning, match="end of the searched range"):
        TemperatureScaling("ece", temperatures=[0.1, 0.2, 0.3]).fit(z, y)


def test_golden_temperature_by_ece(shared_data):
    # Mukhoti et al.: ResNet-50, CIFAR-10, FLSD-53: T = 1.1 by validation ECE, test ECE 0.95 %.
    file = np.load(shared_data / "logits" / "cifar10_resnet50_flsd53.npz")
    fitted = TemperatureScaling(objective="ece").fit(file["val_logits"], file["val_labels"])
    assert fitted.temperature_ == 1.1
    value = ece(file["test_labels"], fitted.predict_proba(file["test_logits"]))
    assert round(100 * value, 4) == 0.9528


def test_focal_calibration_is_the_map(calibrated_data):
    z, y = calibrated_data(50, 4)
    with pytest.warns(FitWarning, match="trained with this gamma"):
        fitted = FocalCalibration(gamma=2.0).fit(z, y)
    np.testing.assert_array_equal(fitted.predict_log_proba(z), focal_log_map(z, 2.0))


@pytest.mark.parametrize(
    "params",
    [
        {"search": "random"},
        {"objective": "ece", "search": "gradient"},
        {"gammas": []},
        {"gammas": [-1.0]},
        {"gamma_range": (1.0, 0.5)},
        {"temperatures": [0.0]},
    ],
)
def test_bad_settings_are_refused(params):
    with pytest.raises(InputError, match="expected"):
        FocalTemperatureScaling(**params).fit([[0.0, 1.0]], [1])


def test_bad_gamma_is_refused():
    with pytest.raises(InputError, match="gamma"):
        FocalCalibration(gamma=-1.0).fit([[0.0, 1.0]], [1])


@pytest.mark.filterwarnings("ignore::focalcal.errors.FitWarning")
@pytest.mark.parametrize("method", ["temperature", "focal-temperature"])
@pytest.mark.parametrize("objective", ["ece", "adaptive_ece"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_fitted_error_is_that_of_the_probabilities_on_tied_logits(
    calibrated_data, method, objective, dtype
):
    """Rounding decides on which side of an edge tied confidences lie: it must be the same one."""
    for k in (2, 3, 5):
        z, y = calibrated_data(1500, k, seed=k)
        z = np.round(2 * z).astype(dtype)
        calibrator = make(method, objective=objective, temperatures=COARSE).fit(z, y)
        proba = calibrator.predict_proba(z)
        np.testing.assert_array_equal(proba.argmax(axis=1), z.argmax(axis=1))
        measured = METRICS[objective](y, proba)
        assert calibrator.diagnostics_.after == pytest.approx(measured, abs=1e-12)
        before = METRICS[objective](y, softmax(z))
        assert calibrator.diagnostics_.before == pytest.approx(before, abs=1e-6)


@pytest.mark.parametrize("seed", [20, 29, 43, 56])
def test_no_saturated_point_of_the_grid_is_pruned(seed):
    """Confidences that are 1 in float64 tie, although their log-odds differ."""
    rng = np.random.default_rng(seed)
    z = 25 * rng.normal(size=(20, 2))
    y = np.argmax(z / 25 + rng.gumbel(size=z.shape), axis=1)
    gammas, temperatures = (-0.5, 0.25, 0.5), np.arange(1, 31) / 100
    scores = TopScores(FitData(z, y, None), "adaptive_ece", 15)
    pairs = [(g, float(t)) for g in gammas for t in temperatures]
    errors = scores.exact(pairs)
    best = grid_search(scores, gammas, temperatures)
    assert (best.gamma, best.temperature) == pairs[int(np.argmin(errors))]
    assert best.error == errors.min()


@pytest.mark.filterwarnings("ignore::focalcal.errors.FitWarning")
@pytest.mark.parametrize("seed", [30, 35])
def test_gradient_search_finds_the_basin_near_minus_092(seed):
    """Compared with a grid of T at such γ, which knows nothing of starting points."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(200, 3))
    y = np.argmax(3 * z + rng.gumbel(size=z.shape), axis=1)
    y = np.where(rng.random(200) < 0.25, rng.integers(0, 3, 200), y)
    grid = [nll(6 * z, y, g, t) for g in (-0.949, -0.94, -0.92) for t in np.geomspace(3, 20, 80)]
    assert FocalTemperatureScaling().fit(6 * z, y).diagnostics_.after <= min(grid) + 1e-9


@pytest.mark.parametrize("seed", [7, 16, 33])
def test_optima_of_some_samples_are_compared_on_all(seed, monkeypatch):
    """The NLL has several low points in (γ, T); here another one is lowest for a third of rows."""
    rng = np.random.default_rng(seed)
    z = 2 * rng.normal(size=(3000, 3))
    y = np.argmax(0.5 * z + rng.gumbel(size=z.shape), axis=1)
    whole = FocalTemperatureScaling().fit(z, y).diagnostics_.after
    monkeypatch.setattr(focal, "_START_ELEMENTS", 3000)
    assert FocalTemperatureScaling().fit(z, y).diagnostics_.after == pytest.approx(whole, abs=1e-9)


def definition(z, y, gamma, t):
    """NLL of Ψ^γ written out: h(v) = v / ((1−v)^γ − γ(1−v)^(γ−1) v ln v), normalised."""
    log_v = z / t - np.logaddexp.reduce(z / t, axis=1, keepdims=True)
    v, rest = np.exp(log_v), -np.expm1(log_v)
    h = v / (rest**gamma - gamma * rest ** (gamma - 1) * v * log_v)
    return -np.log(h[np.arange(len(y)), y] / h.sum(axis=1)).mean()


@pytest.mark.parametrize(("k", "scale", "seed"), [(3, 2.0, 1), (10, 2.0, 2)])
def test_the_optimum_at_a_large_gamma_is_found(k, scale, seed):
    """Labels drawn from Ψ^9; independent: a dense grid over the definition."""
    rng = np.random.default_rng(seed)
    z = scale * rng.normal(size=(300, k))
    q = np.exp(focal_log_map(z, 9.0))
    y = np.minimum((q.cumsum(axis=1) < rng.random((300, 1))).sum(axis=1), k - 1)
    temperatures = np.geomspace(0.5, 20, 60)
    grid = [definition(z, y, g, t) for g in np.linspace(-0.9, 10, 40) for t in temperatures]
    found = FocalTemperatureScaling().fit(z, y)
    assert found.gamma_ > 3
    assert found.diagnostics_.after <= min(grid) + 1e-9
    direct = definition(z, y, found.gamma_, found.temperature_)
    assert found.diagnostics_.after == pytest.approx(direct, abs=1e-9)


@pytest.mark.parametrize("mask", [1e12, 1e15, 1e20])
def test_classes_masked_by_large_logits_leave_the_optimum(mask):
    rng = np.random.default_rng(0)
    z = 2 * rng.normal(size=(600, 4))
    y = np.argmax(z / 2 + rng.gumbel(size=z.shape), axis=1)
    found = {}
    for size in (1e4, mask):
        only = np.arange(4) == y[:300, None]
        masked = np.concatenate([np.where(only, z[:300], -size), z[300:]])
        fitted = FocalTemperatureScaling().fit(masked, y)
        found[size] = fitted.gamma_, fitted.temperature_, fitted.diagnostics_.after
        assert fitted.diagnostics_.converged
    np.testing.assert_allclose(found[mask], found[1e4], rtol=1e-5)
