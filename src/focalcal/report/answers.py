"""What people ask next: is it better, for whom is it wrong, when may it decide alone?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup

from focalcal import decisions, metrics
from focalcal._arrays import to_numpy
from focalcal.metrics import METRICS, SlicedEvaluation
from focalcal.predictions import Predictions
from focalcal.report import page
from focalcal.report.data import ModelDifference, ModelReport, ReportData
from focalcal.report.figure import Figure, axis, label
from focalcal.report.sentences import percent

if TYPE_CHECKING:
    from focalcal.report.compute import Model, Settings

TARGETS = (0.9, 0.95, 0.98, 0.99, 0.995)
"""Accuracies that the page offers for what is decided alone."""


def differences(
    models: Sequence[Model],
    done: Sequence[ModelReport],
    outputs: Sequence[np.ndarray],
    settings: Settings,
) -> tuple[ModelDifference, ...]:
    """Each model after calibration against the one of lowest NLL, on the same samples."""
    best = min(range(len(done)), key=lambda i: done[i].after.evaluation["nll"].value)
    labels = [to_numpy(model.test.labels) for model in models]
    options = {"bins": settings.bins, "resamples": settings.resamples, "level": settings.level}
    return tuple(
        ModelDifference(
            first=done[i].name,
            second=done[best].name,
            comparison=metrics.compare(
                labels[i], outputs[i], outputs[best], seed=settings.seed, **options
            ),
        )
        for i in range(len(done))
        if i != best and np.array_equal(labels[i], labels[best])
    )


def thresholds(
    labels: np.ndarray, probs: np.ndarray, level: float
) -> tuple[decisions.Threshold, ...]:
    """From which confidence to decide alone, for each of `TARGETS`."""
    confidence, wrong = probs.max(axis=1), probs.argmax(axis=1) != labels
    return tuple(
        decisions.choose(confidence, wrong, "target_accuracy", value, level) for value in TARGETS
    )


def slices(
    test: Predictions, labels: np.ndarray, probs: np.ndarray, settings: Settings
) -> SlicedEvaluation | None:
    """The test set by the columns that were asked for."""
    if not settings.by:
        return None
    return metrics.evaluate_by(
        labels,
        probs,
        by={name: test.column(name) for name in settings.by},
        bins=settings.bins,
        resamples=settings.resamples,
        level=settings.level,
        seed=settings.seed,
    )


def differences_table(report: ReportData) -> Markup:
    """Paired differences as HTML, one table for each pair."""
    shown = [m for m in METRICS.values() if m.show == "report"]
    parts = []
    for d in report.differences:
        rows = []
        for m in shown:
            found = d.comparison[m.name]
            told = found.p_value <= 1 - d.comparison.level
            best = {"first": d.first, "second": d.second}.get(found.better, "differ")
            e = found.difference
            interval = f"{m.text(e.low)} to {m.text(e.high)}" if e.low == e.low else "–"
            word = f"{best} (p = {found.p_value:.2g})" if told else "cannot be told apart"
            values = (m.text(found.first), m.text(found.second), m.text(e.value), interval)
            rows.append((m.title, *values, word))
        caption = f"{d.second} − {d.first}, paired on {d.comparison.n:,} test samples"
        header = ("metric", d.first, d.second, "difference", "interval", "better")
        parts.append(page.table(caption, header, rows))
    return Markup("").join(parts)


def choices(model: ModelReport) -> list[tuple[str, int, str]]:
    """For "choose for me": a goal, the nearest stop of the slider, and what holds there."""
    found = []
    for t in model.thresholds:
        goal = f"accuracy of at least {100 * t.value:g} %"
        if not t.found:
            found.append((goal, 100, f"Guarantee {t.guarantee}."))
            continue
        words = (
            f"Decide alone from confidence {t.threshold:.4g}: {percent(t.decided.value, 1)} of the "
            f"samples, {percent(t.error.value)} of them wrong. Guarantee: {t.guarantee}."
        )
        found.append((goal, round(100 * t.threshold), words))
    return found


def slices_figure(prefix: str, result: SlicedEvaluation) -> Figure:
    """ECE of each slice beside what chance alone would give."""
    tested = [s for s in result.slices if s.enough]
    tested.sort(key=lambda s: s.ece - s.expected_ece)
    names = [label(s.name, i) for i, s in enumerate(tested)]
    intervals = [s.metrics["ece"] for s in tested]
    found = {
        "type": "scatter",
        "mode": "markers",
        "name": "found",
        "x": [100 * s.ece for s in tested],
        "y": names,
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [100 * (e.high - e.value) for e in intervals],
            "arrayminus": [100 * (e.value - e.low) for e in intervals],
            "color": "@after",
        },
        "marker": {
            "size": 11,
            "color": ["@wrong" if s.p_value <= 1 - result.level else "@after" for s in tested],
        },
    }
    chance = {
        "type": "scatter",
        "mode": "markers",
        "name": "chance alone",
        "x": [100 * s.expected_ece for s in tested],
        "y": names,
        "marker": {"symbol": "line-ns-open", "size": 14, "color": "@before"},
    }
    worst = result.worst
    text = "No slice can be told from a calibrated one."
    if worst is not None:
        text = (
            f"Worst: {worst.name}, ECE {percent(worst.ece)} where chance alone gives "
            f"{percent(worst.expected_ece)}."
        )
    few = [f"{s.name} ({s.n})" for s in result.slices if not s.enough]
    text += f" Too few samples: {', '.join(few)}." if few else ""
    return Figure(
        id=f"fig-{prefix}-slices",
        title="ECE by slice, %, after calibration",
        text=f"{text} Intervals and tests are corrected for {len(tested)} slices.",
        traces=[found, chance],
        layout={
            "xaxis": axis("ECE, %", rangemode="tozero"),
            "yaxis": {"type": "category", "automargin": True},
            "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom"},
        },
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
