"""`ReportData` as one HTML page that opens offline; `assets/report.html` is its layout."""

from __future__ import annotations

import base64
import json
from typing import Any

from focalcal.report import comparison, page
from focalcal.report import figures as F
from focalcal.report import rows as _rows
from focalcal.report.data import ModelReport, ReportData
from focalcal.report.figure import Figure
from focalcal.report.sentences import accuracy_change, choices, headline, percent, right_wrong_text

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

WRONG_HEADER = (
    "row of the test file",
    "predicted",
    "true",
    "confidence before",
    "confidence after",
    "p(true class) after",
)


def render(report: ReportData) -> str:
    """The whole page as text."""
    several = len(report.models) > 1
    shown = [_model(model, f"m{i}") for i, model in enumerate(report.models)]
    compared: list[Figure] = []
    if several:
        links = [("comparison", "Comparison"), *((m["id"], m["model"].name) for m in shown)]
        compared = [
            comparison.figure(report.models, "ece", "ECE, %", 100.0),
            comparison.figure(report.models, "nll", "NLL", 1.0),
        ]
    else:
        links = [(f"m0-{at}", title) for at, title in SECTIONS.items()]
    body = page.fill(
        "report.html",
        report=report,
        shown=shown,
        several=several,
        compared=compared,
        comparison=comparison,
        sections=SECTIONS,
        titles=["calibrator", "validation NLL", *map(_rows.title, _rows.columns()), "fit, s"],
        rows=_rows,
        level=f"{100 * report.level:g} %",
        wrong_header=WRONG_HEADER,
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


def _model(model: ModelReport, prefix: str) -> dict[str, Any]:
    """What the template shows of one model."""
    views = (("before", model.before), ("after", model.after))
    figures = {f"reliability-{which}": F.reliability(prefix, view, which) for which, view in views}
    figures |= {f"right-wrong-{which}": F.right_wrong(prefix, view, which) for which, view in views}
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
        "headline": headline([model]),
        "cards": _cards(model),
        "methods": sorted(model.methods, key=lambda r: r.evaluation["nll"].value),
        "best": {m.name: _rows.best(model, m) for m in _rows.columns()},
        "right_wrong": right_wrong_text(model),
        "stops": _stops(model),
        "wrong": [
            (
                w.row,
                w.predicted,
                w.true,
                percent(w.confidence_before),
                percent(w.confidence_after),
                f"{w.true_class_probability:.2g}",
            )
            for w in model.wrong
        ],
        "sources": [
            (s.role, s.file, f"{s.n:,}", f"{min(s.class_counts)} – {max(s.class_counts)}", s.sha256)
            for s in model.sources
        ],
        "choices": choices(model),
        "document": document,
        "payload": base64.b64encode(document.encode()).decode(),
        "embedded": len(document) <= MAX_EMBEDDED,
    }


def _cards(model: ModelReport) -> list[tuple[str, str]]:
    before, after = model.before.evaluation, model.after.evaluation
    ece = after["ece"]
    return [
        (
            f"{percent(before['ece'].value)} → {percent(ece.value)}",
            f"ECE; {percent(ece.low)} to {percent(ece.high)} afterwards",
        ),
        (f"{before['nll'].value:.4f} → {after['nll'].value:.4f}", "log-loss (NLL)"),
        (percent(after["accuracy"].value), accuracy_change(before, after)),
        (model.chosen, "chosen on the validation set alone"),
        (f"{model.sources[0].n:,} + {model.sources[1].n:,}", "validation and test samples"),
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
