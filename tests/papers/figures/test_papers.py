"""The papers' figures hold the numbers of the theory, and the checked values."""

from __future__ import annotations

import doctest

import numpy as np
import pytest

from focalcal import figures as reliability
from focalcal.bins import bin_samples, equal_width_edges
from focalcal.errors import InputError
from focalcal.figures import reliability_panel
from focalcal.maps import focal_loss_value, focal_map
from focalcal_papers import figures
from focalcal_papers.figures import cpe, draw, drawing, fts, geo, ie

pytest.importorskip("matplotlib")


@pytest.mark.parametrize("module", [figures, cpe, drawing, fts, geo, ie, reliability])
def test_examples(module):
    assert doctest.testmod(module).failed == 0


def _curve(panel, label):
    return next(c for c in panel.curves if c.label.startswith(label))


def test_fts_figure1_loss_is_the_proper_loss_of_the_map():
    mapped, loss, proper = fts.figure1()
    for gamma in (1, 3, 5):
        # FL(q) = L*(Ψ(q)): interpolating the drawn L* at the drawn Ψ gives the drawn FL back.
        name = f"γ = {gamma}"
        through = np.interp(_curve(mapped, name).y, _curve(proper, name).x, _curve(proper, name).y)
        inner = (_curve(mapped, name).y > 0.05) & (_curve(mapped, name).y < 0.95)
        np.testing.assert_allclose(through[inner], _curve(loss, name).y[inner], atol=6e-3)


def test_fts_figure2_temperatures_are_the_corrected_ones():
    labels = [panel.curves[1].label for panel in fts.figure2()]
    assert labels == ["T = 0.731", "T = 0.276"]
    for panel in fts.figure2():
        assert np.abs(panel.curves[0].y - panel.curves[1].y).max() < 1.3e-3


def test_fts_figure3_bounds_enclose_the_map():
    for panel in fts.figure3():
        psi = panel.curves[0].y
        for low, high in (panel.curves[1:3], panel.curves[3:5]):
            assert np.all(psi <= low.y + 1e-12)
            assert np.all(psi >= high.y - 1e-12)
    assert [c.label for c in fts.figure3()[1].curves[3:]] == [
        "tightest, T = 0.2033",
        "tightest, T = 0.2178",
    ]


def test_fts_figure4_arrows_are_the_map():
    for panel, gamma in zip(fts.figure4(), (0.5, 2)):
        np.testing.assert_array_equal(panel.end, focal_map(panel.start, gamma))


def test_fts_figure5_errors_stay_below_the_checked_maximum():
    panels = fts.figure5(size=20)
    assert all(panel.values.max() < 0.078 for panel in panels)
    # .81 and .46 are printed, for these γ, without saying which.
    assert [p.title.split("T = ")[1][:3] for p in panels] == ["0.8", "0.4"]


def test_fts_figure6_without_focus_is_the_log_loss():
    panel = fts.figure6(size=10)[0]
    np.testing.assert_allclose(panel.values, -np.log(panel.probabilities[:, 0]), rtol=1e-7)


def test_fts_figure7_lines():
    inverse, errors = fts.figure7()
    lines = [c.label for c in inverse.curves if c.style == "--"]
    slopes = [float(label.split(": ")[1].split("γ")[0]) for label in lines]
    assert slopes[1:] == pytest.approx([0.644, 0.489], abs=0.004)
    assert errors.curves[1].y.max() == pytest.approx(0.078, abs=0.003)
    assert errors.curves[2].y.max() == pytest.approx(0.127, abs=0.003)


def test_fts_figure8_marks_the_best_temperature_of_each_gamma():
    errors = np.array([[0.3, 0.1, 0.2], [0.3, 0.2, 0.1]])
    (panel,) = fts.figure8([0, 1], [1, 2, 3], errors, {"best": (0, 2)}, line=(2, 1))
    assert panel.lines[0].y.tolist() == [2, 3]
    assert panel.lines[1].y.tolist() == [2, 3]
    np.testing.assert_allclose(panel.values, 100 * errors.T)
    draw([panel])


def _rows(offset=0.0):
    part = {
        f"{name}{suffix}": 0.5 + offset
        for name in ("nll", "entropy", "p_true", "confidence")
        for suffix in ("", "_right", "_wrong")
    } | {"error": 0.1, "ece": None}
    rows = [{"epoch": e, "train": part, "test": part, "last_layer_norm": e * 1.0} for e in (1, 2)]
    return [*rows, {"epoch": 3, "loss": 1.0}]


def test_ie_traces():
    panels = ie.figure1(_rows())
    assert [p.title for p in panels][:2] == ["train: NLL", "test: NLL"]
    assert panels[0].curves[2].x.tolist() == [1, 2]
    panels = ie.figure3({"ce": _rows(), "fl-3": _rows(0.2)})
    assert len(panels) == 8
    assert np.isnan(panels[1].curves[0].y).all()
    assert panels[4].title == "NLL, wrong"
    assert panels[4].curves[1].y.tolist() == [0.7, 0.7]
    assert panels[7].curves[0].y.tolist() == [1, 2]
    draw(panels)


def test_ie_figure4a_crosses_one_at_the_threshold():
    factor, star = ie.figure4a()
    curve = _curve(factor, "γ = 5")
    crossing = curve.x[np.flatnonzero(curve.y > 1)[-1]]
    assert crossing == pytest.approx(0.1968, abs=0.003)
    line = star.curves[0]
    assert np.interp(0.2, line.x, line.y) == pytest.approx(4.851, abs=0.01)
    assert line.y[-1] == 0


def test_ie_figure4_histograms_count_every_sample(rng):
    norms = {10: {"ce": rng.exponential(size=100), "fl-3": rng.exponential(size=50)}}
    (panel,) = ie.figure4(norms)
    assert all(s.sum() == pytest.approx(1) for s in panel.shares.values())


def test_ie_figure6_focal_weights_stay_smaller():
    norm, logit, wrong = ie.figure6()
    for panel in (norm, logit, wrong):
        assert panel.curves[1].y[-1] < panel.curves[0].y[-1]


def test_ie_figure7_minimisers():
    (panel,) = ie.figure7()
    at = np.argmin(np.abs(panel.curves[1].x - 0.9))
    assert panel.curves[1].y[at] == pytest.approx(0.7744, abs=2e-3)
    np.testing.assert_allclose(panel.curves[0].y, panel.curves[0].x, atol=1e-9)


def test_ie_reliability_and_confidence(rng):
    confidence = rng.uniform(0.5, 1, 200)
    b = bin_samples(confidence, rng.random(200) < confidence, equal_width_edges(15))
    (panel,) = ie.figure8({"before": {"ce": b}})
    assert panel.shares["ce"].sum() == pytest.approx(1)
    draw([panel])


def test_geo_figure1_checked_curvature():
    loss, slope, bend = geo.figure1(gammas=(0, 3))
    np.testing.assert_allclose(loss.curves[1].y, focal_loss_value(loss.curves[1].x, 3))
    at = np.argmin(np.abs(bend.curves[0].x - 0.27))
    assert [c.y[at] for c in bend.curves] == pytest.approx([0.197, 0.570], abs=2e-3)
    assert slope.curves[1].y[-1] < 1e-3


def test_geo_curvature_panels():
    points = [geo.CurvaturePoint(g, 10.0 / (g + 1), 9, 11, 2, 0.01 * g) for g in (3, 0, 1, 5, 10)]
    trace, top = geo.figure2({"a": points})
    assert trace.curves[0].x.tolist() == [0, 1, 3, 5, 10]
    assert top.curves[0].y.tolist() == [2] * 5
    (panel,) = geo.figure3({"a": points})
    assert "R²" in panel.curves[-1].label
    errors, _ = geo.figure4({"lr 0.1": points})
    assert errors.curves[0].y.tolist() == [0, 1, 3, 5, 10]
    draw([trace, top, panel, errors])


def test_cubic_fit_finds_a_cubic():
    x = np.exp(np.linspace(-2, 3, 9))
    y = 1 + 2 * np.log(x) - 0.5 * np.log(x) ** 3
    fit = geo.cubic_fit(x, y)
    np.testing.assert_allclose(fit.coefficients, [-0.5, 0, 2, 1], atol=1e-9)
    assert fit.r_squared == 1
    with pytest.raises(InputError, match="positive traces"):
        geo.cubic_fit([0.0, 1.0], [1, 2])


def test_cpe():
    rows = cpe.minimiser_table().rows
    assert [row[3] for row in rows] == pytest.approx([0.9] * 4, abs=1e-8)
    under, over = cpe.confidence_of_minimiser()
    gamma3 = over.curves[1]
    assert np.interp(0.05, gamma3.x, gamma3.y) == pytest.approx(0.0622, abs=5e-4)
    inner = under.curves[0].x > 0.55
    assert np.all(under.curves[1].y[inner] < under.curves[1].x[inner])
    b = bin_samples([0.9], [1], equal_width_edges(15))
    draw([cpe.minimiser_table(), under, over, reliability_panel(b, "as it is")])
