"""Figures of one model, made from its `ModelReport` alone.

Every figure has a text and a table as alternatives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from focalcal.bins import Bins
from focalcal.metrics import METRICS, SlicedEvaluation
from focalcal.metrics.declare import decimal, p_cell, percent
from focalcal.metrics.proportion import share_interval
from focalcal.report import figure as draw
from focalcal.report import sentences
from focalcal.report.data import Landscape, ModelReport, View
from focalcal.report.figure import Figure

SHOWN_CLASSES = 30
PICKABLE_CLASSES = 100
TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50)
"""Ticks of logarithmic scales."""
SYMBOLS = ("star", "diamond", "x")
MARKS = {"symbol": "circle-open", "line": {"width": 2}}, {}
"""Markers of before and after, distinct without colour."""
DIAGONAL = draw.line([0, 1], [0, 1], "", "@muted", line=draw.DOTTED, **draw.SILENT)


def reliability(view: View, which: str) -> Figure:
    """Accuracy against confidence with its band, over a histogram of the samples."""
    b, level = view.evaluation.reliability, view.evaluation.level
    histogram = {
        "type": "bar",
        "x": (b.edges[:-1] + b.edges[1:]) / 2,
        "width": np.diff(b.edges) * 0.92,
        "y": 100 * b.share,
        "customdata": b.counts,
        "yaxis": "y2",
        "marker": {"color": f"@{which}", "opacity": 0.55},
        "hovertemplate": "%{customdata} samples, %{y:.1f} %<extra></extra>",
    }
    low, high, some = view.accuracy_low, view.accuracy_high, b.counts > 0
    return Figure(
        title=f"Reliability, {which}" + (f" {view.method}" if which == "after" else " calibration"),
        text=sentences.reliability_text(view),
        traces=[DIAGONAL, *_reliability_traces(b, which, level), histogram],
        layout={
            "xaxis": draw.percent_axis("confidence", anchor="y2"),
            "yaxis": draw.percent_axis("accuracy", domain=[0.3, 1]),
            "yaxis2": draw.axis("samples, %", domain=[0, 0.2], rangemode="tozero", nticks=3),
            "showlegend": False,
        },
        height=430,
        **draw.table(
            ("confidence", _ranges(b)),
            ("samples", [f"{n:,.0f}" for n in b.counts[some]]),
            ("mean confidence", map(percent, b.mean_confidence[some])),
            ("accuracy", map(percent, b.accuracy[some])),
            ("interval", [f"{percent(a)} – {percent(z)}" for a, z in zip(low[some], high[some])]),
        ),
    )


def _ranges(b: Bins) -> list[str]:
    """The non-empty bins, as "0.93–1.00"."""
    return [f"{b.edges[i]:.2f}–{b.edges[i + 1]:.2f}" for i in np.flatnonzero(b.counts)]


def _reliability_traces(b: Bins, which: str, level: float) -> list[dict[str, Any]]:
    some = b.counts > 0
    x = b.mean_confidence[some]
    low, high = share_interval(b.correct_sums[some], b.counts[some], level)
    curve = draw.line(
        x,
        b.accuracy[some],
        which,
        mode="lines+markers",
        marker={"size": 8, "color": f"@{which}"},
        cliponaxis=False,
        customdata=np.stack([b.counts[some], low, high], axis=1),
        hovertemplate="confidence %{x:.1%}<br>accuracy %{y:.1%}"
        "<br>interval %{customdata[1]:.1%} – %{customdata[2]:.1%}"
        "<br>%{customdata[0]} samples<extra></extra>",
    )
    return [draw.band(x, low, high, f"@{which}"), curve]


def class_errors(model: ModelReport) -> Figure:
    """Class-wise calibration errors before and after, the worst classes first."""
    order = np.argsort(-model.before.class_ece, kind="stable")
    shown, listed = order[:SHOWN_CLASSES][::-1], order[:PICKABLE_CLASSES]
    labels = [draw.label(model.class_names[k], k) for k in shown]
    worst = f", the {SHOWN_CLASSES} worst of {len(order):,}" if len(order) > SHOWN_CLASSES else ""
    hover = "%{y}: %{x:.2f} %"
    return Figure(
        title=f"Calibration error by class{worst}",
        text=sentences.classwise_text(model),
        traces=[
            draw.points(100 * v.class_ece[shown], labels, which, hovertemplate=hover, marker=mark)
            for (which, v), mark in zip(model.views, MARKS)
        ],
        layout=draw.by_name("class-wise ECE, %"),
        height=max(300, 130 + 24 * len(shown)),
        **draw.table(
            ("class", [model.class_names[k] for k in listed]),
            ("test samples", [f"{model.sources[1]['class_counts'][k]}" for k in listed]),
            ("ECE before", map(percent, model.before.class_ece[listed])),
            ("ECE after", map(percent, model.after.class_ece[listed])),
        ),
    )


def class_reliability(model: ModelReport) -> Figure:
    """The reliability of the probability of one class, which the reader picks."""

    def of(k: int) -> list[dict[str, Any]]:
        traces = [DIAGONAL]
        for which, view in model.views:
            b = view.classes
            own = Bins(b.edges, b.counts[k], b.confidence_sums[k], b.correct_sums[k])
            traces += _reliability_traces(own, which, view.evaluation.level)
        return traces

    order = np.argsort(-model.before.class_ece, kind="stable")[:PICKABLE_CLASSES]
    return Figure(
        title="Reliability of one class",
        text="Frequency of a class against the probability given to it, before and after; "
        "classes are sorted by their error before calibration, largest first.",
        choices=tuple((model.class_names[k], of(k)) for k in order),
        layout={
            "xaxis": draw.percent_axis("probability of the class"),
            "yaxis": draw.percent_axis("frequency of the class"),
        },
        height=400,
    )


def right_wrong(view: View, which: str) -> Figure:
    """The distribution of confidence over right and over wrong predictions."""
    b = view.confidence
    groups = {"right": b.correct_sums, "wrong": b.counts - b.correct_sums}
    cells = {name: [f"{n:,.0f}" for n in groups[name][b.counts > 0]] for name in groups}
    return Figure(
        title=f"Confidence when right and when wrong, {which}",
        traces=[
            {
                "type": "bar",
                "name": f"{name} ({counts.sum():,.0f})",
                "x": (b.edges[:-1] + b.edges[1:]) / 2,
                "y": 100 * counts / max(counts.sum(), 1),
                "customdata": counts,
                "marker": {"color": f"@{name}"},
                "hovertemplate": "around %{x:.1%}: %{y:.1f} %, %{customdata} samples"
                "<extra></extra>",
            }
            for name, counts in groups.items()
        ],
        layout={
            "barmode": "group",
            "bargap": 0.1,
            "xaxis": draw.percent_axis("confidence"),
            "yaxis": draw.axis("share of the group, %"),
        },
        **draw.table(("confidence", _ranges(b)), *cells.items()),
    )


def landscape(model: ModelReport) -> Figure:
    """Validation error over (γ, T) with the searched grid, the line and the optima."""
    land = model.landscape
    optima = {"best of the grid": land.grid, "best on the line": land.line}
    if land.lowest_nll is not None:
        optima["lowest NLL"] = land.lowest_nll
    edge = {"line": {"color": "#fff", "width": 1.5}}
    marks = [
        draw.points(
            [gamma],
            [temperature],
            name,
            "#ff3b6b",
            marker={"symbol": symbol, "size": size} | edge,
            hovertemplate=f"{name}: γ %{{x:.3g}}, T %{{y:.3g}}<extra></extra>",
        )
        for (name, (gamma, temperature)), symbol, size in zip(optima.items(), SYMBOLS, (16, 12, 11))
    ]
    bare = {"showgrid": False, "zeroline": False}
    on_dark = {"bgcolor": "#31355a", "font": {"color": "#fff"}}
    ends = np.log10(land.temperatures[[0, -1]])
    return Figure(
        title="Focal temperature scaling: error over γ and T",
        text=sentences.landscape_text(model),
        traces=[_heatmap(land), *_search_lines(land), *marks],
        layout={
            "xaxis": draw.axis("γ", range=land.gammas[[0, -1]], **bare),
            "yaxis": draw.axis("T (log scale)", type="log", range=ends, tickvals=TICKS[:6], **bare),
            "legend": draw.LEGEND | {"y": -0.2, "yanchor": "top"} | on_dark,
        },
        height=500,
        header=("search", "γ", "T"),
        rows=tuple((name, *map(decimal, at)) for name, at in optima.items()),
    )


def _heatmap(land: Landscape) -> dict[str, Any]:
    z = 100 * np.maximum(land.errors.T, 1e-6)
    ticks = [t for t in TICKS if z.min() * 0.8 <= t <= z.max() * 1.2]
    return {
        "type": "heatmap",
        "x": land.gammas,
        "y": land.temperatures,
        "z": np.log10(z),
        "customdata": z,
        "colorscale": "Viridis",
        "colorbar": {
            "title": {"text": "ECE, %", "side": "right"},
            "tickvals": np.log10(ticks),
            "ticktext": [f"{t:g}" for t in ticks],
            "thickness": 12,
        },
        "hovertemplate": "γ %{x:.2f}, T %{y:.2f}: %{customdata:.2f} %<extra></extra>",
    }


def _search_lines(land: Landscape) -> list[dict[str, Any]]:
    """The γ of the grid search, and the visible part of the line of the line search."""
    low, high = land.temperatures[[0, -1]]
    along = np.linspace(land.gammas[0], land.gammas[-1], 40)
    on_line = land.offset + land.slope * along
    seen = (on_line >= low) & (on_line <= high)
    x = [x for gamma in land.grid_gammas for x in (gamma, gamma, None)]
    y = [low, high, None] * len(land.grid_gammas)
    style = {"line": {"width": 1, "dash": "dot"}, "hoverinfo": "skip"}
    return [
        draw.line(x, y, "grid", "rgba(255,255,255,0.55)", **style),
        draw.line(along[seen], on_line[seen], land.equation, "#fff", hoverinfo="skip"),
    ]


def risk_coverage(model: ModelReport) -> Figure:
    """Error among the most confident samples against the share kept."""
    before, after = model.before.stops, model.after.stops
    return Figure(
        title="Risk and coverage",
        text=sentences.risk_coverage_text(model),
        traces=[
            draw.line(
                view.curve.coverage,
                100 * view.curve.risk,
                which,
                customdata=view.curve.threshold,
                hovertemplate="keep %{x:.1%} (confidence ≥ %{customdata:.4f}): error %{y:.2f} %",
            )
            for which, view in model.views
        ],
        layout={
            "xaxis": draw.percent_axis("share of samples kept"),
            "yaxis": draw.axis("error, %", rangemode="tozero"),
        },
        **draw.table(
            ("confidence at least", [f"{t:.2f}" for t in before.threshold[::10]]),
            ("kept before", [percent(x, 1) for x in before.coverage[::10]]),
            ("error before", map(percent, before.risk[::10])),
            ("kept after", [percent(x, 1) for x in after.coverage[::10]]),
            ("error after", map(percent, after.risk[::10])),
        ),
    )


def slices(result: SlicedEvaluation) -> Figure:
    """ECE of each slice beside the ECE expected by chance alone."""
    tested = [s for s in result.slices if s.enough]
    tested.sort(key=lambda s: s.ece - s.expected_ece)
    names = [draw.label(s.name, i) for i, s in enumerate(tested)]
    many = len(tested) > 1
    corrected = f"Intervals and tests are corrected for {len(tested)} slices." if many else ""
    found = draw.points(
        [100 * s.ece for s in tested],
        names,
        "found",
        ["@wrong" if s.p_value <= 1 - result.level else "@after" for s in tested],
        error_x=draw.error_bars([s.metrics["ece"] for s in tested], "@after"),
    )
    expected, tick = [100 * s.expected_ece for s in tested], {"symbol": "line-ns-open", "size": 14}
    return Figure(
        title="ECE by slice, %, after calibration",
        text=" ".join(filter(None, (result.verdict, result.too_few, corrected))),
        traces=[found, draw.points(expected, names, "chance alone", "@before", marker=tick)],
        layout=draw.by_name("ECE, %"),
        height=170 + 26 * len(tested),
        **draw.table(
            ("slice", [s.name for s in result.slices]),
            ("samples", [f"{s.n:,}" for s in result.slices]),
            ("ECE", [percent(s.ece) if s.enough else "too few" for s in result.slices]),
            ("chance alone", [percent(s.expected_ece) for s in result.slices]),
            ("corrected p", [p_cell(s.p_value) if s.enough else "" for s in result.slices]),
        ),
    )


def compared(models: Sequence[ModelReport], metric: str, title: str, scale: float) -> Figure:
    """One metric of every model before and after its own calibrator, with intervals."""
    names = [draw.label(m.name, i) for i, m in enumerate(models)]
    pairs = [(m.before.evaluation[metric], m.after.evaluation[metric]) for m in models]
    found = dict(zip(("before", "after"), zip(*pairs)))
    cells = {which: [METRICS[metric].text(e.value) for e in found[which]] for which in found}
    return Figure(
        id=f"fig-compare-{metric}",
        title=title,
        text=" ".join(
            f"{m.name}: {a} before, {b} after calibration."
            for m, a, b in zip(models, *cells.values())
        ),
        traces=[
            draw.points(
                [scale * e.value for e in estimates],
                names,
                which,
                marker=mark,
                error_x=draw.error_bars(estimates, f"@{which}", scale),
                hovertemplate="%{y}: %{x:.4g}",
            )
            for (which, estimates), mark in zip(found.items(), MARKS)
        ],
        layout=draw.by_name(title, autorange="reversed"),
        height=150 + 50 * len(names),
        **draw.table(("model", [m.name for m in models]), *cells.items()),
    )
