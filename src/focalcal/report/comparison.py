"""Several models side by side, each before and after the calibrator chosen for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from focalcal.report import answers, page
from focalcal.report.data import ReportData
from focalcal.report.figure import Figure, axis, label
from focalcal.report.sentences import percent


def section(report: ReportData, drawn: list[Figure]) -> str:
    """The comparison as HTML; its figures are added to `drawn`."""
    rows = []
    for m in report.models:
        before, after = m.before.evaluation, m.after.evaluation
        rows.append(
            (
                m.name,
                percent(before["accuracy"].value),
                percent(before["ece"].value),
                f"{before['nll'].value:.4f}",
                m.after.name,
                percent(after["accuracy"].value),
                percent(after["ece"].value),
                f"{after['nll'].value:.4f}",
            )
        )
    now = ("accuracy", "ECE", "NLL")
    header = (
        "model",
        *(f"{x} before" for x in now),
        "calibrator",
        *(f"{x} after" for x in now),
    )
    table = page.table("Each model before, and after the calibrator chosen for it", header, rows)
    made = [
        figure(report, "ece", "ECE, %", 100.0),
        figure(report, "nll", "NLL", 1.0),
    ]
    paired = answers.differences_table(report)
    return page.section("comparison", "Comparison", table, page.pair(made, drawn), paired)


def figure(report: ReportData, metric: str, title: str, scale: float) -> Figure:
    """One metric of every model before and after its own calibrator, with intervals."""
    labels = [label(m.name, i) for i, m in enumerate(report.models)]

    def points(which: str) -> dict[str, Any]:
        found = [getattr(m, which).evaluation[metric] for m in report.models]
        value = np.array([e.value for e in found])
        return {
            "type": "scatter",
            "mode": "markers",
            "name": which,
            "x": scale * value,
            "y": labels,
            "error_x": {
                "type": "data",
                "symmetric": False,
                "array": scale * (np.array([e.high for e in found]) - value),
                "arrayminus": scale * (value - np.array([e.low for e in found])),
                "color": f"@{which}",
            },
            "marker": {"size": 12, "color": f"@{which}"},
            "hovertemplate": "%{y}: %{x:.4g}<extra>" + which + "</extra>",
        }

    names: Sequence[str] = [m.name for m in report.models]
    both = [(m.before.evaluation[metric], m.after.evaluation[metric]) for m in report.models]
    return Figure(
        id=f"fig-compare-{metric}",
        title=title,
        text=" ".join(
            f"{n}: {scale * a.value:.4g} before, {scale * b.value:.4g} after calibration."
            for n, (a, b) in zip(names, both)
        ),
        traces=[points("before"), points("after")],
        layout={
            "xaxis": axis(title, rangemode="tozero"),
            "yaxis": {"type": "category", "automargin": True, "autorange": "reversed"},
            "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom"},
        },
        height=150 + 50 * len(names),
        header=("model", "before", "after"),
        rows=tuple(
            (n, f"{scale * a.value:.4f}", f"{scale * b.value:.4f}")
            for n, (a, b) in zip(names, both)
        ),
    )
