"""Every kind of panel puts its own numbers on the axes."""

from __future__ import annotations

import io

import numpy as np
import pytest

from focalcal.bins import bin_samples, equal_width_edges
from focalcal.errors import InputError
from focalcal.figures import classwise_reliability_panel, reliability_panel
from focalcal.metrics import reliability
from focalcal_papers.figures import (
    Arrows,
    Bars,
    Curve,
    Curves,
    HeatMap,
    Simplex,
    Table,
    draw,
    plot,
    save,
)
from focalcal_papers.figures.drawing import corners
from focalcal_papers.figures.fts import simplex_grid

matplotlib = pytest.importorskip("matplotlib")
X = np.linspace(0.1, 0.9, 5)


@pytest.fixture
def ax():
    from matplotlib.figure import Figure

    return Figure().subplots()


def test_lines_carry_the_data(ax):
    panel = Curves("t", "x", "y", (Curve("a", X, X**2, X - 0.1, X + 0.1), Curve("b", X, X)), True)
    assert plot(panel, ax) is ax
    drawn = {line.get_label(): line for line in ax.get_lines()}
    np.testing.assert_array_equal(drawn["a"].get_ydata(), X**2)
    np.testing.assert_array_equal(drawn["b"].get_xdata(), X)
    assert (ax.get_title(), ax.get_xlabel(), ax.get_ylabel()) == ("t", "x", "y")
    assert len(ax.collections) == 1  # one band


def test_points_have_error_bars(ax):
    plot(Curves("", "", "", (Curve("a", X, X, X - 0.1, X + 0.2, style="o"),)), ax)
    ends = np.array([segment[:, 1] for segment in ax.collections[0].get_segments()])
    np.testing.assert_allclose(ends, np.stack([X - 0.1, X + 0.2], axis=1))


def test_reliability_draws_the_metrics_bins(ax, rng):
    confidence = rng.uniform(0.3, 1, 500)
    correct = rng.random(500) < confidence
    b = reliability(correct.astype(int), confidence)
    panel = reliability_panel(b, "r")
    plot(panel, ax)
    (line,) = (li for li in ax.get_lines() if li.get_marker() == "o")
    some = b.counts > 0
    np.testing.assert_array_equal(line.get_xdata(), b.mean_confidence[some])
    np.testing.assert_array_equal(line.get_ydata(), b.accuracy[some])
    stairs = ax.patches[0].get_data()
    np.testing.assert_allclose(stairs.values, 0.25 * b.share / b.share.max())
    assert np.all(panel.low[some] <= b.accuracy[some])
    assert np.all(b.accuracy[some] <= panel.high[some])


def test_interval_covers_the_true_accuracy_as_often_as_it_says():
    # Independent oracle: coverage summed over the binomial distribution, meant over accuracies.
    from scipy.stats import binom

    counts = np.arange(41)
    bins = [bin_samples(np.full(40, 0.9), np.arange(40) < n, equal_width_edges(1)) for n in counts]
    panels = [reliability_panel(b) for b in bins]
    low, high = (np.array([getattr(p, end)[0] for p in panels]) for end in ("low", "high"))
    coverage = [
        binom.pmf(counts, 40, p)[(low <= p) & (p <= high)].sum() for p in np.linspace(0.5, 0.95, 90)
    ]
    assert min(coverage) >= 0.95  # exact: never less than it says
    assert np.mean(coverage) < 0.98


def test_classwise_has_a_line_per_class(ax, rng):
    probs = rng.dirichlet(np.ones(3), 300)
    labels = (probs.cumsum(1) < rng.random((300, 1))).sum(1)
    panel = classwise_reliability_panel(labels, probs, names=np.array(["a", "b", "c"]))
    plot(panel, ax)
    lines = {line.get_label(): line for line in ax.get_lines()}
    # The frequency of class b by hand, in the bin of its largest probabilities.
    high = probs[:, 1] > 14 / 15
    expected = (labels[high] == 1).mean() if high.any() else panel.bins.accuracy[1][-2]
    assert lines["b"].get_ydata()[-1] == pytest.approx(expected)


def test_many_classes_share_one_colour(ax, rng):
    probs = rng.dirichlet(np.ones(20), 100)
    plot(classwise_reliability_panel(rng.integers(20, size=100), probs), ax)
    assert ax.get_legend() is None


def test_heat_map_marks_its_points(ax):
    values = np.arange(6.0).reshape(2, 3)
    panel = HeatMap("", "γ", "T", np.arange(3.0), np.arange(2.0), values, "ECE", {"best": (1, 0)})
    plot(panel, ax)
    np.testing.assert_array_equal(ax.collections[0].get_array().reshape(2, 3), values)
    assert ax.get_lines()[0].get_xydata().tolist() == [[1, 0]]


def test_bars_simplex_arrows_and_table(ax):
    shares = np.array([0.25, 0.75])
    plot(Bars("", "x", np.array([0, 0.5, 1]), {"a": shares}), ax)
    np.testing.assert_array_equal(ax.patches[0].get_data().values, shares)
    p = simplex_grid(4)
    figure = draw(
        [
            Simplex("", p, p[:, 0], "v"),
            Simplex("", p, p[:, 0], "v", (0.3, 0.6)),
            Arrows("", p, p[:, [1, 0, 2]]),
            Table("t", ("a", "b"), ((1, 0.123456),)),
        ]
    )
    table = figure.axes[3].tables[0]
    assert table[1, 1].get_text().get_text() == "0.1235"
    arrows = figure.axes[2].collections[0]
    np.testing.assert_allclose(arrows.U, corners(p[:, [1, 0, 2]])[0] - corners(p)[0])


@pytest.mark.parametrize("suffix", [".pdf", ".png", ".svg"])
def test_saving(tmp_path, suffix):
    figure = draw([Curves("γ", "x", "y", (Curve("a", X, X),))])
    path = save(figure, tmp_path / f"f{suffix}")
    start = path.read_bytes()[:5]
    assert start in (b"%PDF-", b"\x89PNG\r", b"<?xml")
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_style_is_left_alone():
    before = dict(matplotlib.rcParams)
    draw([Curves("", "x", "y", (Curve("a", X, X),))])
    assert dict(matplotlib.rcParams) == before


def test_errors(tmp_path, rng):
    with pytest.raises(InputError, match=r"\.pdf"):
        save(draw([Curves("", "", "", (Curve("a", X, X),))]), tmp_path / "f.gif")
    with pytest.raises(InputError, match="at least one panel"):
        draw([])
    with pytest.raises(InputError, match="expected a panel"):
        plot("no panel", None)
    with pytest.raises(InputError, match="level"):
        reliability_panel(reliability([1], [0.5]), level=2)
    with pytest.raises(InputError, match="3 class names"):
        classwise_reliability_panel([0], [[0.2, 0.3, 0.5]], names=("a",))


def test_a_legend_of_many_curves_stands_beside_them():
    """26 entries once covered the axes; and no two lines look alike."""
    x = np.linspace(0, 1, 5)
    curves = tuple(Curve(f"network {i}", x, i * x) for i in range(26))
    figure = draw([Curves("many", "x", "y", curves)])
    figure.savefig(io.BytesIO(), format="png")
    (ax,) = figure.axes
    legend, inside = ax.get_legend().get_window_extent(), ax.get_window_extent()
    assert legend.x0 >= inside.x1
    assert legend.x1 <= figure.bbox.x1 + 1
    assert inside.width > 200
    looks = {(line.get_color(), line.get_linestyle()) for line in ax.get_lines()}
    assert len(looks) == 26
