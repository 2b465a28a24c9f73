"""Several models side by side, each before and after the calibrator chosen for it."""

from __future__ import annotations

from collections.abc import Sequence

from focalcal.metrics import Evaluation
from focalcal.report import rows as _rows
from focalcal.report.data import ModelDifference, ModelReport
from focalcal.report.figure import Figure, axis, error_bars, label, points
from focalcal.report.sentences import percent

_NOW = ("accuracy", "ECE", "NLL")
HEADER = ("model", *(f"{x} before" for x in _NOW), "calibrator", *(f"{x} after" for x in _NOW))


def rows(models: Sequence[ModelReport]) -> list[tuple[str, ...]]:
    """The cells of each model under `HEADER`."""

    def cells(e: Evaluation) -> tuple[str, ...]:
        return (percent(e["accuracy"].value), percent(e["ece"].value), f"{e['nll'].value:.4f}")

    return [
        (m.name, *cells(m.before.evaluation), m.chosen, *cells(m.after.evaluation)) for m in models
    ]


def difference_rows(d: ModelDifference) -> list[tuple[str, ...]]:
    """Metric, both values, their difference with its interval, and which is better."""
    out = []
    for m in _rows.columns():
        found = d.comparison[m.name]
        e = found.difference
        interval = _rows.interval(m, e) or "–"
        word = "cannot be told apart"
        if found.p_value <= 1 - d.comparison.level:
            best = {"first": d.first, "second": d.second}.get(found.better, "differ")
            word = f"{best} (p = {found.p_value:.2g})"
        values = (_rows.number(m, x) for x in (found.first, found.second, e.value))
        out.append((_rows.title(m), *values, interval, word))
    return out


def figure(models: Sequence[ModelReport], metric: str, title: str, scale: float) -> Figure:
    """One metric of every model before and after its own calibrator, with intervals."""
    names = [label(m.name, i) for i, m in enumerate(models)]
    before = [m.before.evaluation[metric] for m in models]
    after = [m.after.evaluation[metric] for m in models]
    cells = [
        (m.name, f"{scale * a.value:.4g}", f"{scale * b.value:.4g}")
        for m, a, b in zip(models, before, after)
    ]
    return Figure(
        id=f"fig-compare-{metric}",
        title=title,
        text=" ".join(f"{n}: {a} before, {b} after calibration." for n, a, b in cells),
        traces=[
            points(
                [scale * e.value for e in found],
                names,
                which,
                f"@{which}",
                error_x=error_bars(found, f"@{which}", scale),
                hovertemplate="%{y}: %{x:.4g}<extra>" + which + "</extra>",
            )
            for which, found in (("before", before), ("after", after))
        ],
        layout={
            "xaxis": axis(title, rangemode="tozero"),
            "yaxis": {"type": "category", "autorange": "reversed"},
        },
        height=150 + 50 * len(names),
        header=("model", "before", "after"),
        rows=tuple(cells),
    )
