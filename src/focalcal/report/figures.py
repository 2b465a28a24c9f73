"""Figures of one model, made from its `ModelReport` alone.

Every figure carries the sentence and the table that say the same in words.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from focalcal.bins import Bins
from focalcal.metrics import SlicedEvaluation
from focalcal.metrics.proportion import share_interval
from focalcal.report import sentences
from focalcal.report.data import Landscape, ModelReport, View
from focalcal.report.figure import (
    Figure,
    axis,
    band,
    error_bars,
    label,
    line,
    percent_axis,
    points,
)
from focalcal.report.sentences import percent

SHOWN_CLASSES = 30
PICKABLE_CLASSES = 100


def reliability(prefix: str, view: View, which: str) -> Figure:
    """Accuracy against confidence with its band, over a histogram of the samples."""
    b = view.evaluation.reliability
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
    low, high = view.accuracy_low, view.accuracy_high
    return Figure(
        id=f"fig-{prefix}-reliability-{which}",
        title=f"Reliability, {which}" + (f" {view.method}" if which == "after" else " calibration"),
        text=sentences.reliability_text(view),
        traces=[_diagonal(), *_reliability_traces(b, low, high, which), histogram],
        layout={
            "xaxis": percent_axis("confidence", anchor="y2"),
            "yaxis": percent_axis("accuracy", domain=[0.3, 1]),
            "yaxis2": axis("samples, %", domain=[0, 0.2], rangemode="tozero", nticks=3),
            "showlegend": False,
        },
        height=430,
        header=("confidence", "samples", "mean confidence", "accuracy", "interval"),
        rows=tuple(
            (
                f"{b.edges[i]:.3f}–{b.edges[i + 1]:.3f}",
                f"{b.counts[i]:.0f}",
                percent(b.mean_confidence[i]),
                percent(b.accuracy[i]),
                f"{percent(low[i])} – {percent(high[i])}",
            )
            for i in np.flatnonzero(b.counts)
        ),
    )


def _diagonal() -> dict[str, Any]:
    dotted = {"dash": "dot", "width": 1.5}
    return line([0, 1], [0, 1], "", "@muted", line=dotted, hoverinfo="skip", showlegend=False)


def _reliability_traces(
    b: Bins, low: np.ndarray, high: np.ndarray, which: str
) -> list[dict[str, Any]]:
    some = b.counts > 0
    x, low, high = b.mean_confidence[some], low[some], high[some]
    curve = line(
        x,
        b.accuracy[some],
        which,
        f"@{which}",
        mode="lines+markers",
        marker={"size": 8, "color": f"@{which}"},
        customdata=np.stack([b.counts[some], low, high], axis=1),
        hovertemplate="confidence %{x:.1%}<br>accuracy %{y:.1%}"
        "<br>interval %{customdata[1]:.1%} – %{customdata[2]:.1%}"
        "<br>%{customdata[0]} samples<extra></extra>",
    )
    return [band(x, low, high, f"@{which}"), curve]


def class_errors(prefix: str, model: ModelReport) -> Figure:
    """Class-wise calibration errors before and after, the worst classes first."""
    order = np.argsort(-model.before.class_ece, kind="stable")
    shown = order[:SHOWN_CLASSES][::-1]
    labels = [label(model.class_names[k], k) for k in shown]
    worst = f", the {SHOWN_CLASSES} worst of {len(order)}" if len(order) > SHOWN_CLASSES else ""
    return Figure(
        id=f"fig-{prefix}-class-errors",
        title=f"Calibration error by class{worst}",
        text=sentences.classwise_text(model),
        traces=[
            points(
                100 * view.class_ece[shown],
                labels,
                which,
                f"@{which}",
                marker={"symbol": symbol},
                hovertemplate="%{y}: %{x:.2f} %<extra>" + which + "</extra>",
            )
            for which, view, symbol in (
                ("before", model.before, "circle-open"),
                ("after", model.after, "circle"),
            )
        ],
        layout={
            "xaxis": axis("class-wise ECE, %", rangemode="tozero"),
            "yaxis": {"type": "category"},
        },
        height=max(300, 130 + 24 * len(shown)),
        header=("class", "test samples", "ECE before", "ECE after"),
        rows=tuple(
            (
                model.class_names[k],
                f"{model.sources[1].class_counts[k]}",
                percent(model.before.class_ece[k]),
                percent(model.after.class_ece[k]),
            )
            for k in order[:PICKABLE_CLASSES]
        ),
    )


def class_reliability(prefix: str, model: ModelReport) -> Figure:
    """The reliability of one class's own probability, for the class that is picked."""
    order = np.argsort(-model.before.class_ece, kind="stable")[:PICKABLE_CLASSES]

    def of(k: int) -> list[dict[str, Any]]:
        traces = [_diagonal()]
        for which, view in (("before", model.before), ("after", model.after)):
            b = view.classes
            own = Bins(b.edges, b.counts[k], b.confidence_sums[k], b.correct_sums[k])
            interval = share_interval(own.correct_sums, own.counts)
            traces += _reliability_traces(own, *interval, which)
        return traces

    choices = tuple((model.class_names[k], of(k)) for k in order)
    return Figure(
        id=f"fig-{prefix}-class-reliability",
        title="Reliability of one class",
        text="Frequency of a class against the probability given to it, before and after; "
        "classes are sorted by their error before calibration, largest first.",
        traces=choices[0][1],
        choices=choices,
        layout={
            "xaxis": percent_axis("probability of the class"),
            "yaxis": percent_axis("frequency of the class"),
        },
        height=400,
    )


def right_wrong(prefix: str, view: View, which: str) -> Figure:
    """How confidence is spread over right and over wrong predictions."""
    b = view.confidence
    right, wrong = b.correct_sums, b.counts - b.correct_sums
    traces = [
        {
            "type": "bar",
            "name": f"{name} ({counts.sum():.0f})",
            "x": (b.edges[:-1] + b.edges[1:]) / 2,
            "y": 100 * counts / max(counts.sum(), 1),
            "customdata": counts,
            "marker": {"color": f"@{name}"},
            "hovertemplate": "around %{x:.1%}: %{y:.1f} %, %{customdata} samples<extra></extra>",
        }
        for name, counts in (("right", right), ("wrong", wrong))
    ]
    return Figure(
        id=f"fig-{prefix}-right-wrong-{which}",
        title=f"Confidence when right and when wrong, {which}",
        text="",
        traces=traces,
        layout={
            "barmode": "group",
            "bargap": 0.1,
            "xaxis": percent_axis("confidence"),
            "yaxis": axis("share of the group, %"),
        },
        header=("confidence", "right", "wrong"),
        rows=tuple(
            (f"{b.edges[i]:.2f}–{b.edges[i + 1]:.2f}", f"{right[i]:.0f}", f"{wrong[i]:.0f}")
            for i in np.flatnonzero(b.counts)
        ),
    )


def landscape(prefix: str, model: ModelReport) -> Figure:
    """Validation error over (γ, T) with the searched grid, the line and the optima."""
    land = model.landscape
    low, high = land.temperatures[0], land.temperatures[-1]
    optima = [
        ("best of the grid", land.grid, "star", 16),
        ("best on the line", land.line, "diamond", 12),
        ("lowest NLL", land.lowest_nll, "x", 11),
    ]
    optima = [row for row in optima if row[1] is not None]
    marks = [
        points(
            [at[0]],
            [at[1]],
            name,
            "#ff3b6b",
            marker={"symbol": symbol, "size": size, "line": {"color": "#fff", "width": 1.5}},
            hovertemplate=f"{name}: γ %{{x:.3g}}, T %{{y:.3g}}<extra></extra>",
        )
        for name, at, symbol, size in optima
    ]
    ticks = [0.1, 0.2, 0.5, 1, 2, 5]
    log_scale = {"type": "log", "range": np.log10([low, high]), "tickvals": ticks}
    return Figure(
        id=f"fig-{prefix}-landscape",
        title="Focal temperature scaling: error over γ and T",
        text=sentences.landscape_text(model),
        traces=[_heatmap(land), *_search_lines(land), *marks],
        layout={
            "xaxis": axis("γ", range=land.gammas[[0, -1]], showgrid=False, zeroline=False),
            "yaxis": axis("T (log scale)", showgrid=False, **log_scale),
            "legend": {
                "orientation": "h",
                "y": -0.2,
                "yanchor": "top",
                "bgcolor": "#31355a",
                "font": {"color": "#fff"},
            },
        },
        height=500,
        header=("search", "γ", "T"),
        rows=tuple((name, f"{at[0]:.4g}", f"{at[1]:.4g}") for name, at, *_ in optima),
    )


def _heatmap(land: Landscape) -> dict[str, Any]:
    z = 100 * np.maximum(land.errors.T, 1e-6)
    ticks = [t for t in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50) if z.min() * 0.8 <= t <= z.max() * 1.2]
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
    """The γ of the grid search, and the line of the line search where it is in the picture."""
    low, high = land.temperatures[0], land.temperatures[-1]
    along = np.linspace(land.gammas[0], land.gammas[-1], 40)
    on_line = land.offset + land.slope * along
    seen = (on_line >= low) & (on_line <= high)
    return [
        line(
            [x for gamma in land.grid_gammas for x in (gamma, gamma, None)],
            [low, high, None] * len(land.grid_gammas),
            "grid",
            "rgba(255,255,255,0.55)",
            line={"width": 1, "dash": "dot"},
            hoverinfo="skip",
        ),
        line(
            along[seen],
            on_line[seen],
            f"T = {land.offset:.2f} {land.slope:+.2f}·γ",
            "#fff",
            hoverinfo="skip",
        ),
    ]


def risk_coverage(prefix: str, model: ModelReport) -> Figure:
    """Error among the most confident samples against the share kept."""
    before, after = model.before.stops, model.after.stops
    return Figure(
        id=f"fig-{prefix}-risk-coverage",
        title="Risk and coverage",
        text=sentences.risk_coverage_text(model),
        traces=[
            line(
                view.curve.coverage,
                100 * view.curve.risk,
                which,
                f"@{which}",
                customdata=view.curve.threshold,
                hovertemplate="keep %{x:.1%} (confidence ≥ %{customdata:.4f}): "
                "error %{y:.2f} %<extra>" + which + "</extra>",
            )
            for which, view in (("before", model.before), ("after", model.after))
        ],
        layout={
            "xaxis": percent_axis("share of samples kept"),
            "yaxis": axis("error, %", rangemode="tozero"),
        },
        header=("confidence at least", "kept before", "error before", "kept after", "error after"),
        rows=tuple(
            (
                f"{before.threshold[i]:.2f}",
                percent(before.coverage[i], 1),
                percent(before.risk[i]),
                percent(after.coverage[i], 1),
                percent(after.risk[i]),
            )
            for i in range(0, len(before.threshold), 10)
        ),
    )


def slices(prefix: str, result: SlicedEvaluation) -> Figure:
    """ECE of each slice beside what chance alone would give."""
    tested = [s for s in result.slices if s.enough]
    tested.sort(key=lambda s: s.ece - s.expected_ece)
    names = [label(s.name, i) for i, s in enumerate(tested)]
    significant = [s.p_value <= 1 - result.level for s in tested]
    found = points(
        [100 * s.ece for s in tested],
        names,
        "found",
        ["@wrong" if wrong else "@after" for wrong in significant],
        error_x=error_bars([s.metrics["ece"] for s in tested], "@after"),
    )
    chance = points(
        [100 * s.expected_ece for s in tested],
        names,
        "chance alone",
        "@before",
        marker={"symbol": "line-ns-open", "size": 14},
    )
    return Figure(
        id=f"fig-{prefix}-slices",
        title="ECE by slice, %, after calibration",
        text=sentences.slices_text(result),
        traces=[found, chance],
        layout={"xaxis": axis("ECE, %", rangemode="tozero"), "yaxis": {"type": "category"}},
        height=170 + 26 * len(tested),
        header=("slice", "samples", "ECE", "chance alone", "corrected p"),
        rows=tuple(
            (
                s.name,
                f"{s.n:,}",
                percent(s.ece) if s.enough else "too few",
                percent(s.expected_ece),
                f"{s.p_value:.2g}" if s.enough else "",
            )
            for s in result.slices
        ),
    )
