"""`ReportData` as Markdown: the verdict and the tables, for a pull request or a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from focalcal.report import rows as _rows
from focalcal.report.data import ModelReport, ReportData
from focalcal.report.sentences import (
    classwise_text,
    landscape_text,
    percent,
    reliability_text,
    right_wrong_text,
    risk_coverage_text,
)


def render(report: ReportData) -> str:
    """The whole document as text."""
    parts = [f"# Calibration report: {_text(report.title)}", f"**{_text(report.verdict)}**"]
    for model in report.models:
        parts += _model(report, model)
    parts.append(
        f"Written by focalcal {report.provenance['focalcal']} on {report.provenance['date']}."
    )
    return "\n\n".join(parts) + "\n"


def _model(report: ReportData, model: ModelReport) -> list[str]:
    header = ("calibrator", *map(_rows.title, _rows.columns()), "validation NLL")
    rows = []
    for r in sorted(model.methods, key=lambda r: r.evaluation["nll"].value):
        cells = [f"**{r.method}** (chosen)" if r.method == model.chosen else r.method]
        for m in _rows.columns():
            e = r.evaluation[m.name]
            value, interval = _rows.value(m, e), _rows.interval(m, e)
            cells.append(f"{value} ({interval})" if interval else value)
        cells.append("–" if r.validation_nll is None else f"{r.validation_nll:.4f}")
        rows.append(cells)
    wrong = [
        (
            str(w.row),
            _text(w.predicted),
            _text(w.true),
            percent(w.confidence_before),
            percent(w.confidence_after),
        )
        for w in model.wrong
    ]
    sizes = ", ".join(f"{s.n:,} {s.role} samples ({_text(s.file)})" for s in model.sources)
    parts = [
        f"## {_text(model.name)}",
        _text(model.verdict),
        *(f"**Warning: {_text(text)}.**" for text in model.warnings),
        f"{sizes}; {model.n_classes} classes; {100 * report.level:g} % intervals.",
        _table(header, rows),
        f"- {_text(reliability_text(model.before))}",
        f"- {_text(reliability_text(model.after))}",
        f"- {_text(classwise_text(model))}",
        f"- {_text(right_wrong_text(model))}",
        f"- {_text(risk_coverage_text(model))}",
        f"- {_text(landscape_text(model))}",
    ]
    if wrong:
        parts += [
            "### Most confident errors",
            _table(("row", "predicted", "true", "confidence before", "after"), wrong),
        ]
    return parts


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _text(text: str) -> str:
    """Text that Markdown shows as it is: no HTML, no table cells, no new line."""
    for old, new in (("&", "&amp;"), ("<", "&lt;"), ("|", "\\|"), ("\n", " "), ("\r", " ")):
        text = text.replace(old, new)
    return text
