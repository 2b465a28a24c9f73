"""`ReportData` as one HTML page that opens offline, and as Markdown.

`assets/report.html` and `assets/report.md` are the layouts; this module has what they share.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any

from focalcal.metrics import METRICS, Estimate, Metric
from focalcal.metrics.declare import decimal, p_text, percent
from focalcal.report import figures as F
from focalcal.report import page, sentences
from focalcal.report.data import MethodResult, ModelDifference, ModelReport, ReportData
from focalcal.report.figure import Figure

SECTIONS = {
    "methods": "Calibrators",
    "reliability": "Reliability",
    "classes": "Classes",
    "right-wrong": "Right and wrong",
    "landscape": "γ and T",
    "risk": "Risk and coverage",
    "slices": "Slices",
    "wrong": "Most confident errors",
    "deploy": "Deploy",
    "data": "Data",
}
Table = tuple[Sequence[str], list[Sequence[Any]]]
"""Header and rows."""


def html(report: ReportData) -> str:
    """The whole page as text."""
    several = len(report.models) > 1
    shown = [_model(model, f"m{i}") for i, model in enumerate(report.models)]
    compared: list[Figure] = []
    links = [(f"m0-{at}", title) for at, title in SECTIONS.items()]
    if several:
        links = [("comparison", "Comparison"), *((m["id"], m["model"].name) for m in shown)]
        compared = [
            F.compared(report.models, "ece", "ECE, %", 100.0),
            F.compared(report.models, "nll", "NLL", 1.0),
        ]
    return page.frame(
        title=f"Calibration report: {report.title}",
        lead=report.headline,
        links=[*links, ("about", "How to read this")],
        body=_fill("report.html", report, shown=shown, several=several, compared=compared),
        figures=[*compared, *(f for m in shown for f in m["figures"].values())],
        foot=f"Written by focalcal {report.provenance['focalcal']} on "
        f"{report.provenance['date']}, in {report.seconds:.1f} s of computing.",
    )


def markdown(report: ReportData) -> str:
    """The verdict and the tables, for a pull request or a terminal."""
    return _fill("report.md", report)


def _fill(name: str, report: ReportData, **values: Any) -> str:
    tables = (comparison_table, difference_table, source_table, split_table, wrong_table)
    texts = (best, decimal, flat, interval, parameters, percent, stops)
    return page.fill(
        name,
        report=report,
        columns=columns(),
        level=f"{100 * report.level:g} %",
        sections=SECTIONS,
        sentences=sentences,
        **{function.__name__: function for function in (*tables, *texts)},
        **values,
    )


def _model(model: ModelReport, prefix: str) -> dict[str, Any]:
    """What the page shows of one model."""
    drawn = {f"reliability-{which}": F.reliability(view, which) for which, view in model.views}
    drawn |= {f"right-wrong-{which}": F.right_wrong(view, which) for which, view in model.views}
    drawn |= {
        "class-errors": F.class_errors(model),
        "class-reliability": F.class_reliability(model),
        "landscape": F.landscape(model),
        "risk-coverage": F.risk_coverage(model),
    }
    if model.slices is not None and model.slices.tested:
        drawn["slices"] = F.slices(model.slices)
    figures = {
        name: dataclasses.replace(figure, id=f"fig-{prefix}-{name}")
        for name, figure in drawn.items()
    }
    document = json.dumps(model.calibrator, indent=1, allow_nan=False, ensure_ascii=False)
    return {
        "id": prefix,
        "model": model,
        "figures": figures,
        "document": document,
        "payload": base64.b64encode(document.encode()).decode(),
    }


def columns() -> list[Metric]:
    """The declared metrics that a report shows, in the order of declaration."""
    return [m for m in METRICS.values() if m.show == "report"]


def interval(m: Metric, e: Estimate) -> str:
    """The interval of an estimate, empty if it has none."""
    return "" if e.low != e.low else f"{m.number(e.low)} – {m.number(e.high)}"


def best(model: ModelReport, m: Metric) -> float | None:
    """The best value of a column; None if neither direction is better or no value is finite."""
    values = [r.evaluation[m.name].value for r in model.methods]
    values = [v for v in values if math.isfinite(v)]
    if not m.better or not values:
        return None
    return (min if m.better == "lower" else max)(values)


def parameters(result: MethodResult) -> str:
    """The fitted numbers that the page explains, as in "γ = 0.5, T = 1.2"."""
    letters, found = {"gamma": "γ", "temperature": "T"}, result.parameters
    return ", ".join(f"{t} = {decimal(found[k])}" for k, t in letters.items() if k in found)


def comparison_table(models: Sequence[ModelReport]) -> Table:
    """Each model before and after its chosen calibrator."""
    shown = {"accuracy": "accuracy", "ece": "ECE", "nll": "NLL"}
    before, after = ([f"{title} {at}" for title in shown.values()] for at in ("before", "after"))
    rows: list[Sequence[Any]] = []
    for m in models:
        first, then = ([sentences.shown(v.evaluation, x) for x in shown] for _, v in m.views)
        rows.append((m.name, *first, m.chosen, *then))
    return ("model", *before, "calibrator", *after), rows


def difference_table(d: ModelDifference) -> Table:
    """Metric, both values, their difference with its interval, and which is better."""
    rows: list[Sequence[Any]] = []
    for m in columns():
        found = d.comparison[m.name]
        e = found.difference
        word = "not tested" if math.isnan(found.p_value) else "cannot be told apart"
        if found.p_value <= 1 - d.comparison.level:
            winner = {"first": d.first, "second": d.second}.get(found.better, "differ")
            word = f"{winner} ({p_text(found.p_value)})"
        values = map(m.number, (found.first, found.second, e.value))
        rows.append((m.heading, *values, interval(m, e) or "–", word))
    return ("metric", d.first, d.second, "difference", "interval", "better"), rows


def source_table(model: ModelReport) -> Table:
    """The files, and how many samples they hold."""
    rows: list[Sequence[Any]] = []
    for s in model.sources:
        least, most = min(s["class_counts"]), max(s["class_counts"])
        per_class = f"{least:,}" if least == most else f"{least:,} – {most:,}"
        rows.append((s["role"], s["file"], f"{s['n']:,}", per_class, s["sha256"] or "–"))
    return ("set", "file", "samples", "samples per class", "SHA-256"), rows


def split_table(model: ModelReport) -> Table:
    """Each proper loss, and its parts by the chosen calibrator."""
    rows: list[Sequence[Any]] = []
    for name, part in model.split.items():
        m = METRICS[name]
        removed = f"{m.number(part.removed)} ± {m.number(part.standard_error)}"
        rows.append((m.heading, m.number(part.value), removed, m.number(part.stays)))
    return ("test loss", "before", "removed by calibration", "remains"), rows


def wrong_table(model: ModelReport) -> Table:
    """The most confident errors."""
    header = ("row of the test file, from 0", "predicted", "true")
    header += ("confidence before", "confidence after", "p(true class) after")
    return header, [
        (
            *(w[key] for key in ("row", "predicted", "true")),
            *(percent(w[key]) for key in ("confidence_before", "confidence_after")),
            f"{w['true_class_probability']:.2g}",
        )
        for w in model.wrong
    ]


def stops(model: ModelReport) -> list[str]:
    """The text of the slider at each threshold."""
    before, after = model.before.stops, model.after.stops
    return [
        f"confidence ≥ {t:.2f}: before, {percent(before.coverage[i], 1)} kept with error "
        f"{percent(before.risk[i])}; after, {percent(after.coverage[i], 1)} kept with error "
        f"{percent(after.risk[i])}"
        for i, t in enumerate(after.threshold)
    ]


def flat(record: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """The entries of nested records, as ("a.b", value)."""
    out: list[tuple[str, Any]] = []
    for key, value in record.items():
        nested = isinstance(value, dict)
        out += flat(value, f"{prefix}{key}.") if nested else [(f"{prefix}{key}", value)]
    return out
