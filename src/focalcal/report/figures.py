"""Figures of one model, made from its `ModelReport` alone.

Every figure carries the sentence and the table that say the same in words.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from focalcal.bins import Bins
from focalcal.metrics.proportion import share_interval
from focalcal.report import sentences
from focalcal.report.data import ModelReport, View
from focalcal.report.figure import Figure, axis, label
from focalcal.report.sentences import percent

SHOWN_CLASSES = 30
PICKABLE_CLASSES = 100


def reliability(prefix: str, view: View, which: str) -> Figure:
    """Accuracy against confidence with its band, over a histogram of the samples."""
    b = view.evaluation.reliability
    some = b.counts > 0
    name = view.name if which == "after" else "before calibration"
    return Figure(
        id=f"fig-{prefix}-reliability-{which}",
        title=f"Reliability, {'after ' + name if which == 'after' else name}",
        text=sentences.reliability_text(view.evaluation, view.name),
        traces=[
            *_reliability_traces(b, view.accuracy_low, view.accuracy_high, which),
            {
                "type": "bar",
                "x": (b.edges[:-1] + b.edges[1:]) / 2,
                "width": np.diff(b.edges) * 0.92,
                "y": 100 * b.share,
                "customdata": b.counts,
                "yaxis": "y2",
                "marker": {"color": f"@{which}", "opacity": 0.55},
                "hovertemplate": "%{customdata} samples, %{y:.1f} %<extra></extra>",
                "showlegend": False,
            },
        ],
        layout={
            "xaxis": axis("confidence", range=[0, 1.005], tickformat=".0%", anchor="y2"),
            "yaxis": axis("accuracy", range=[0, 1.02], tickformat=".0%", domain=[0.3, 1]),
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
                f"{percent(view.accuracy_low[i])} – {percent(view.accuracy_high[i])}",
            )
            for i in np.flatnonzero(some)
        ),
    )


def _reliability_traces(
    b: Bins, low: np.ndarray, high: np.ndarray, which: str
) -> list[dict[str, Any]]:
    some = b.counts > 0
    x, y = b.mean_confidence[some], b.accuracy[some]
    diagonal = {
        "type": "scatter",
        "mode": "lines",
        "x": [0, 1],
        "y": [0, 1],
        "line": {"color": "@muted", "dash": "dot", "width": 1.5},
        "hoverinfo": "skip",
        "showlegend": False,
    }
    band = {"type": "scatter", "mode": "lines", "x": x, "hoverinfo": "skip"}
    band |= {"line": {"width": 0, "color": f"@{which}"}, "showlegend": False}
    line = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": which,
        "x": x,
        "y": y,
        "customdata": np.stack([b.counts[some], low[some], high[some]], axis=1),
        "line": {"color": f"@{which}", "width": 2.5},
        "marker": {"size": 8, "color": f"@{which}"},
        "hovertemplate": "confidence %{x:.1%}<br>accuracy %{y:.1%}"
        "<br>interval %{customdata[1]:.1%} – %{customdata[2]:.1%}"
        "<br>%{customdata[0]} samples<extra></extra>",
    }
    return [
        diagonal,
        band | {"y": low[some]},
        band | {"y": high[some], "fill": "tonexty", "fillcolor": f"@{which}-band"},
        line,
    ]


def class_errors(prefix: str, model: ModelReport) -> Figure:
    """Class-wise calibration errors before and after, the worst classes first."""
    order = np.argsort(-model.before.class_ece, kind="stable")
    shown = order[:SHOWN_CLASSES][::-1]
    labels = [label(model.class_names[k], k) for k in shown]
    pair = (("before", model.before), ("after", model.after))
    return Figure(
        id=f"fig-{prefix}-class-errors",
        title="Calibration error by class"
        + (f", the {SHOWN_CLASSES} worst of {len(order)}" if len(order) > SHOWN_CLASSES else ""),
        text=sentences.classwise_text(model),
        traces=[
            {
                "type": "scatter",
                "mode": "markers",
                "name": which,
                "x": 100 * view.class_ece[shown],
                "y": labels,
                "marker": {"color": f"@{which}", "size": 11, "symbol": symbol},
                "hovertemplate": "%{y}: %{x:.2f} %<extra>" + which + "</extra>",
            }
            for (which, view), symbol in zip(pair, ("circle-open", "circle"))
        ],
        layout={
            "xaxis": axis("class-wise ECE, %", rangemode="tozero"),
            "yaxis": {"type": "category", "automargin": True},
            "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom"},
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
        traces = []
        for which, view in (("before", model.before), ("after", model.after)):
            b = view.classes
            own = Bins(b.edges, b.counts[k], b.confidence_sums[k], b.correct_sums[k])
            band = share_interval(own.correct_sums, own.counts)
            traces += _reliability_traces(own, *band, which)[0 if which == "before" else 1 :]
        return traces

    choices = tuple((model.class_names[k], of(k)) for k in order)
    return Figure(
        id=f"fig-{prefix}-class-reliability",
        title="Reliability of one class",
        text="Frequency of a class against the probability given to it, before and after; "
        "classes are listed from the largest error before.",
        traces=choices[0][1],
        choices=choices,
        layout={
            "xaxis": axis("probability of the class", range=[0, 1.005], tickformat=".0%"),
            "yaxis": axis("how often it is the class", range=[0, 1.02], tickformat=".0%"),
            "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom"},
        },
        height=400,
        header=(),
        rows=(),
    )


def right_wrong(prefix: str, view: View, which: str) -> Figure:
    """How confidence is spread over right and over wrong predictions."""
    b = view.confidence
    right, wrong = b.correct_sums, b.counts - b.correct_sums
    centre = (b.edges[:-1] + b.edges[1:]) / 2

    def bar(counts: np.ndarray, name: str) -> dict[str, Any]:
        return {
            "type": "bar",
            "name": f"{name} ({counts.sum():.0f})",
            "x": centre,
            "y": 100 * counts / max(counts.sum(), 1),
            "customdata": counts,
            "marker": {"color": f"@{name}"},
            "hovertemplate": "around %{x:.1%}: %{y:.1f} %, %{customdata} samples<extra></extra>",
        }

    return Figure(
        id=f"fig-{prefix}-right-wrong-{which}",
        title=f"Confidence when right and when wrong, {which}",
        text="",
        traces=[bar(right, "right"), bar(wrong, "wrong")],
        layout={
            "barmode": "group",
            "bargap": 0.1,
            "xaxis": axis("confidence", range=[0, 1], tickformat=".0%"),
            "yaxis": axis("share of the group, %"),
            "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom"},
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
    ends = np.array([land.gammas[0], land.gammas[-1]])
    low, high = land.temperatures[0], land.temperatures[-1]
    along = np.linspace(*ends, 40)
    on_line = land.offset + land.slope * along
    seen = (on_line >= low) & (on_line <= high)
    z = 100 * np.maximum(land.errors.T, 1e-6)
    ticks = [t for t in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50) if z.min() * 0.8 <= t <= z.max() * 1.2]
    grid_x = [x for g in land.grid_gammas for x in (g, g, None)]
    points = [
        ("best of the grid", land.grid, "star", 16),
        ("best on the line", land.line, "diamond", 12),
    ]
    if land.lowest_nll is not None:
        points.append(("lowest NLL", land.lowest_nll, "x", 11))
    return Figure(
        id=f"fig-{prefix}-landscape",
        title="Focal temperature scaling: error over γ and T",
        text=sentences.landscape_text(model),
        traces=[
            {
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
            },
            {
                "type": "scatter",
                "mode": "lines",
                "name": "grid",
                "x": grid_x,
                "y": [low, high, None] * len(land.grid_gammas),
                "line": {"color": "rgba(255,255,255,0.55)", "width": 1, "dash": "dot"},
                "hoverinfo": "skip",
            },
            {
                "type": "scatter",
                "mode": "lines",
                "name": f"T = {land.offset:.2f} {land.slope:+.2f}·γ",
                "x": along[seen],
                "y": on_line[seen],
                "line": {"color": "#ffffff", "width": 2},
                "hoverinfo": "skip",
            },
            *(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": name,
                    "x": [at[0]],
                    "y": [at[1]],
                    "marker": {
                        "symbol": symbol,
                        "size": size,
                        "color": "#ff3b6b",
                        "line": {"color": "#ffffff", "width": 1.5},
                    },
                    "hovertemplate": f"{name}: γ %{{x:.3g}}, T %{{y:.3g}}<extra></extra>",
                }
                for name, at, symbol, size in points
            ),
        ],
        layout={
            "xaxis": axis("γ", range=ends, showgrid=False, zeroline=False),
            "yaxis": axis(
                "T (log scale)",
                type="log",
                range=np.log10([low, high]),
                showgrid=False,
                tickvals=[0.1, 0.2, 0.5, 1, 2, 5],
            ),
            "legend": {
                "orientation": "h",
                "y": -0.2,
                "yanchor": "top",
                "bgcolor": "#31355a",
                "font": {"color": "#ffffff"},
            },
        },
        height=500,
        header=("search", "γ", "T"),
        rows=tuple((name, f"{at[0]:.4g}", f"{at[1]:.4g}") for name, at, *_ in points),
    )


def risk_coverage(prefix: str, model: ModelReport) -> Figure:
    """Error among the most confident samples against the share kept."""
    return Figure(
        id=f"fig-{prefix}-risk-coverage",
        title="Risk and coverage",
        text=sentences.risk_coverage_text(model),
        traces=[
            {
                "type": "scatter",
                "mode": "lines",
                "name": which,
                "x": view.curve.coverage,
                "y": 100 * view.curve.risk,
                "customdata": view.curve.threshold,
                "line": {"color": f"@{which}", "width": 2.5},
                "hovertemplate": "keep %{x:.1%} (confidence ≥ %{customdata:.4f}): "
                "error %{y:.2f} %<extra>" + which + "</extra>",
            }
            for which, view in (("before", model.before), ("after", model.after))
        ],
        layout={
            "xaxis": axis("share of samples kept", range=[0, 1.005], tickformat=".0%"),
            "yaxis": axis("error, %", rangemode="tozero"),
            "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom"},
        },
        header=("confidence at least", "kept before", "error before", "kept after", "error after"),
        rows=tuple(
            (
                f"{model.before.stops.threshold[i]:.2f}",
                percent(model.before.stops.coverage[i], 1),
                percent(model.before.stops.risk[i]),
                percent(model.after.stops.coverage[i], 1),
                percent(model.after.stops.risk[i]),
            )
            for i in range(0, len(model.before.stops.threshold), 10)
        ),
    )
