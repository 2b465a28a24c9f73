"""`ReportData` as one HTML page that opens offline, and as Markdown.

`assets/report.html` and `assets/report.md` are the layouts; here is what they share.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

from focalcal.metrics import METRICS, Estimate, Evaluation, Metric
from focalcal.report import figures as F
from focalcal.report import page, sentences
from focalcal.report.data import MethodResult, ModelDifference, ModelReport, ReportData
from focalcal.report.figure import Figure
from focalcal.report.sentences import percent

MAX_EMBEDDED = 400_000
"""Characters of a calibrator's JSON that the page carries; a larger one is saved by a command."""
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


def html(report: ReportData) -> str:
    """The whole page as text."""
    several = len(report.models) > 1
    shown = [_model(model, f"m{i}") for i, model in enumerate(report.models)]
    compared: list[Figure] = []
    if several:
        links = [("comparison", "Comparison"), *((m["id"], m["model"].name) for m in shown)]
        compared = [
            F.compared(report.models, "ece", "ECE, %", 100.0),
            F.compared(report.models, "nll", "NLL", 1.0),
        ]
    else:
        links = [(f"m0-{at}", title) for at, title in SECTIONS.items()]
    body = page.fill(
        "report.html",
        **_shared(report),
        shown=shown,
        several=several,
        compared=compared,
        comparison=comparison_table(report.models),
        difference_rows=difference_rows,
        percent=percent,
        accuracy_change=sentences.accuracy_change,
        sections=SECTIONS,
        parameters=parameters,
        flat=_flat,
    )
    return page.frame(
        title=f"Calibration report: {report.title}",
        lead=report.headline,
        links=[*links, ("about", "How to read this")],
        body=body,
        figures=[*compared, *(f for m in shown for f in m["figures"].values())],
        foot=f"Written by focalcal {report.provenance['focalcal']} on "
        f"{report.provenance['date']}, in {report.seconds:.1f} s of computing.",
    )


def markdown(report: ReportData) -> str:
    """The verdict and the tables, for a pull request or a terminal."""
    return page.fill("report.md", **_shared(report), sentences=sentences)


def _shared(report: ReportData) -> dict[str, Any]:
    return {
        "report": report,
        "columns": columns(),
        "interval": interval,
        "level": f"{100 * report.level:g} %",
        "by_nll": lambda model: sorted(model.methods, key=lambda r: r.evaluation["nll"].value),
        "split_table": split_table,
        "wrong_table": wrong_table,
    }


def _model(model: ModelReport, prefix: str) -> dict[str, Any]:
    """What the page shows of one model."""
    figures = {
        f"{name}-{which}": draw(prefix, view, which)
        for name, draw in (("reliability", F.reliability), ("right-wrong", F.right_wrong))
        for which, view in model.views
    }
    figures |= {
        "class-errors": F.class_errors(prefix, model),
        "class-reliability": F.class_reliability(prefix, model),
        "landscape": F.landscape(prefix, model),
        "risk": F.risk_coverage(prefix, model),
    }
    if model.slices is not None:
        figures["slices"] = F.slices(prefix, model.slices)
    document = json.dumps(model.calibrator, indent=1, allow_nan=False, ensure_ascii=False)
    return {
        "id": prefix,
        "model": model,
        "figures": figures,
        "headline": sentences.headline([model]),
        "best": {m.name: best(model, m) for m in columns()},
        "right_wrong": sentences.right_wrong_text(model),
        "stops": _stops(model),
        "sources": [
            (s.role, s.file, f"{s.n:,}", f"{min(s.class_counts)} – {max(s.class_counts)}", s.sha256)
            for s in model.sources
        ],
        "choices": sentences.choices(model),
        "document": document,
        "payload": base64.b64encode(document.encode()).decode(),
        "embedded": len(document) <= MAX_EMBEDDED,
    }


def columns() -> list[Metric]:
    """The declared metrics that a report shows, in the order of declaration."""
    return [m for m in METRICS.values() if m.show == "report"]


def interval(m: Metric, e: Estimate) -> str:
    """The interval of an estimate, empty if it has none."""
    return "" if e.low != e.low else f"{m.number(e.low)} – {m.number(e.high)}"


def best(model: ModelReport, m: Metric) -> float | None:
    """The best value of a column, None where the column has no better end."""
    values = [r.evaluation[m.name].value for r in model.methods]
    values = [v for v in values if v == v]
    if not m.better or not values:
        return None
    return (min if m.better == "lower" else max)(values)


def parameters(result: MethodResult) -> str:
    """Fitted numbers in a line, as in "γ = 0.5, T = 1.2"."""
    letters = {"temperature": "T", "gamma": "γ"}
    return ", ".join(f"{letters.get(k, k)} = {v:.4g}" for k, v in result.parameters.items())


def comparison_table(models: Sequence[ModelReport]) -> tuple[Sequence[str], list[Sequence[str]]]:
    """Header and rows: each model before and after the calibrator chosen for it."""
    names = ("accuracy", "ECE", "NLL")
    header = (
        "model",
        *(f"{x} before" for x in names),
        "calibrator",
        *(f"{x} after" for x in names),
    )

    def cells(e: Evaluation) -> tuple[str, ...]:
        return (percent(e["accuracy"].value), percent(e["ece"].value), f"{e['nll'].value:.4f}")

    return header, [
        (m.name, *cells(m.before.evaluation), m.chosen, *cells(m.after.evaluation)) for m in models
    ]


def difference_rows(d: ModelDifference) -> list[tuple[str, ...]]:
    """Metric, both values, their difference with its interval, and which is better."""
    out = []
    for m in columns():
        found = d.comparison[m.name]
        e = found.difference
        word = "cannot be told apart"
        if found.p_value <= 1 - d.comparison.level:
            winner = {"first": d.first, "second": d.second}.get(found.better, "differ")
            word = f"{winner} (p = {found.p_value:.2g})"
        values = map(m.number, (found.first, found.second, e.value))
        out.append((m.heading, *values, interval(m, e) or "–", word))
    return out


def split_table(model: ModelReport) -> tuple[Sequence[str], list[Sequence[str]]]:
    """Header and rows: each proper loss, and its parts by the chosen calibrator."""
    rows: list[Sequence[str]] = []
    for name, part in model.split.items():
        m = METRICS[name]
        removed = f"{m.number(part.removed)} ± {m.number(part.standard_error)}"
        rows.append((m.heading, m.number(part.value), removed, m.number(part.stays)))
    return ("test loss", "before", "removed by calibration", "stays"), rows


def wrong_table(model: ModelReport) -> tuple[Sequence[str], list[Sequence[Any]]]:
    """Header and rows: the most confident errors."""
    header = ("row of the test file", "predicted", "true")
    header += ("confidence before", "confidence after", "p(true class) after")
    return header, [
        (
            w.row,
            w.predicted,
            w.true,
            percent(w.confidence_before),
            percent(w.confidence_after),
            f"{w.true_class_probability:.2g}",
        )
        for w in model.wrong
    ]


def _stops(model: ModelReport) -> list[str]:
    """What the slider says at each threshold."""
    before, after = model.before.stops, model.after.stops
    return [
        f"confidence ≥ {t:.2f}: before, {percent(before.coverage[i], 1)} kept with error "
        f"{percent(before.risk[i])}; after, {percent(after.coverage[i], 1)} kept with error "
        f"{percent(after.risk[i])}"
        for i, t in enumerate(after.threshold)
    ]


def _flat(record: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    out: list[tuple[str, Any]] = []
    for key, value in record.items():
        nested = isinstance(value, dict)
        out += _flat(value, f"{prefix}{key}.") if nested else [(f"{prefix}{key}", value)]
    return out
