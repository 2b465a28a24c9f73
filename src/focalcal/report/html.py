"""`ReportData` as one HTML page that opens offline."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

from focalcal.report import answers, comparison, page
from focalcal.report import figures as F
from focalcal.report import rows as _rows
from focalcal.report.data import ModelReport, ReportData
from focalcal.report.figure import Figure
from focalcal.report.rows import best, parameters
from focalcal.report.sentences import accuracy_change, headline, percent, right_wrong_text

MAX_EMBEDDED = 400_000
"""Characters of a calibrator's JSON that the page carries; a larger one is saved by a command."""


def render(report: ReportData) -> str:
    """The whole page as text."""
    drawn: list[Figure] = []
    parts, links = [], []
    several = len(report.models) > 1
    if several:
        parts.append(comparison.section(report, drawn))
        links.append(("comparison", "Comparison"))
    for i, model in enumerate(report.models):
        parts.append(_model(report, model, f"m{i}", several, drawn))
        if several:
            links.append((f"m{i}", model.name))
        else:
            links += [(f"m{i}-{at}", name) for at, name, _ in _SECTIONS]
    parts.append(_method_notes(report))
    links.append(("about", "How to read this"))
    foot = (
        f"Written by focalcal {report.provenance['focalcal']} on {report.provenance['date']}, "
        f"in {report.seconds:.1f} s of computing."
    )
    return page.frame(
        title=f"Calibration report: {report.title}",
        lead=report.headline,
        links=links,
        body="".join(parts),
        figures=drawn,
        foot=foot,
    )


def _model(
    report: ReportData, model: ModelReport, prefix: str, several: bool, drawn: list[Figure]
) -> str:
    head = [page.piece("verdict", headline([model]))] if several else []
    head += [page.piece("warning", f"Warning: {text}.") for text in model.warnings]
    level = 3 if several else 2
    content = [*head, _cards(model)]
    for at, title, make in _SECTIONS:
        content.append(
            page.section(f"{prefix}-{at}", title, make(report, model, prefix, drawn), level=level)
        )
    if not several:
        return "".join(content)
    return page.section(prefix, model.name, *content)


def _cards(model: ModelReport) -> str:
    before, after = model.before.evaluation, model.after.evaluation
    cards = (
        (
            f"{percent(before['ece'].value)} → {percent(after['ece'].value)}",
            f"ECE; {percent(after['ece'].low)} to {percent(after['ece'].high)} afterwards",
        ),
        (f"{before['nll'].value:.4f} → {after['nll'].value:.4f}", "log-loss (NLL)"),
        (percent(after["accuracy"].value), accuracy_change(before, after)),
        (model.after.name, "chosen on the validation set alone"),
        (f"{model.sources[0].n:,} + {model.sources[1].n:,}", "validation and test samples"),
    )
    before_capitals = r"(?<=[a-z])(?=[A-Z])"
    return page.piece("cards", [(re.split(before_capitals, b), words) for b, words in cards])


def _methods(report: ReportData, model: ModelReport, prefix: str, drawn: list[Figure]) -> str:
    columns = _rows.columns()
    tops = {m.name: best(model, m) for m in columns}
    body = []
    for r in sorted(model.methods, key=lambda r: r.evaluation["nll"].value):
        score = "–" if r.validation_nll is None else f"{r.validation_nll:.4f}"
        cells = [(_number(r.validation_nll), score, "", False)]
        for m in columns:
            e = r.evaluation[m.name]
            cells.append(
                (_number(e.value), _rows.value(m, e), _rows.interval(m, e), e.value == tops[m.name])
            )
        cells.append((_number(r.seconds), f"{r.seconds:.2f}", "", False))
        body.append((r, parameters(r) or r.method, r.method == model.chosen, cells))
    caption = (
        f"Test-set metrics of {len(model.methods)} calibrators fitted on the validation set, with "
        f"{100 * report.level:g} % intervals ({report.resamples} resamples); a heading "
        "sorts its column."
    )
    titles = ["calibrator", "validation NLL", *map(_rows.title, columns), "fit, s"]
    made = page.piece("methods", f"{prefix}-table", caption, titles, body)
    table = page.scroll(made, f"Calibrators, {model.name}")
    notes = [(r.name, note) for r in model.methods for note in r.notes]
    if notes:
        table += page.piece("notes", "Notes of the fits", notes)
    return table


def _number(x: float | None) -> str:
    return "" if x is None or x != x else repr(float(x))


def _reliability(report: ReportData, model: ModelReport, prefix: str, drawn: list[Figure]) -> str:
    made = [
        F.reliability(prefix, view, which)
        for which, view in (("before", model.before), ("after", model.after))
    ]
    words = (
        f"Points on the dotted line are calibrated; below it confidence exceeds accuracy. Bands "
        f"are {100 * report.level:g} % intervals of the accuracy in each bin."
    )
    return page.paragraph(words) + page.pair(made, drawn)


def _classes(report: ReportData, model: ModelReport, prefix: str, drawn: list[Figure]) -> str:
    made = [F.class_errors(prefix, model), F.class_reliability(prefix, model)]
    return page.pair(made, drawn, label="Class")


def _right_wrong(report: ReportData, model: ModelReport, prefix: str, drawn: list[Figure]) -> str:
    made = [
        F.right_wrong(prefix, view, which)
        for which, view in (("before", model.before), ("after", model.after))
    ]
    return page.paragraph(right_wrong_text(model)) + page.pair(made, drawn)


def _landscape(report: ReportData, model: ModelReport, prefix: str, drawn: list[Figure]) -> str:
    words = (
        "Focal temperature scaling maps logits z to Ψ^γ(softmax(z/T)). Many pairs of γ and T do "
        "nearly equally well: they lie along a line."
    )
    made = F.landscape(prefix, model)
    drawn.append(made)
    content = page.paragraph(words) + page.figure(made)
    return page.piece("details", "Equal-mass ECE over γ and T", content)


def _risk(report: ReportData, model: ModelReport, prefix: str, drawn: list[Figure]) -> str:
    made = F.risk_coverage(prefix, model)
    drawn.append(made)
    before, after = model.before.stops, model.after.stops
    lines = [
        f"confidence ≥ {t:.2f}: before, {percent(before.coverage[i], 1)} kept with error "
        f"{percent(before.risk[i])}; after, {percent(after.coverage[i], 1)} kept with error "
        f"{percent(after.risk[i])}"
        for i, t in enumerate(after.threshold)
    ]
    control = page.slider(
        f"{prefix}-threshold",
        "Keep predictions of at least",
        lines,
        90,
        choices=answers.choices(model),
    )
    return page.figure(made) + control


def _slices(report: ReportData, model: ModelReport, prefix: str, drawn: list[Figure]) -> str:
    if model.slices is None:
        return page.paragraph("Not asked for: name columns of the test file with --by.")
    made = answers.slices_figure(prefix, model.slices)
    drawn.append(made)
    return page.figure(made)


def _wrong(report: ReportData, model: ModelReport, prefix: str, drawn: list[Figure]) -> str:
    if not model.wrong:
        return page.paragraph("No prediction of the test set is wrong.")
    rows = [
        (
            f"{w.row}",
            w.predicted,
            w.true,
            percent(w.confidence_before),
            percent(w.confidence_after),
            f"{w.true_class_probability:.2g}",
        )
        for w in model.wrong
    ]
    header = (
        "row of the test file",
        "predicted",
        "true",
        "confidence before",
        "confidence after",
        "p(true class) after",
    )
    return page.table(
        "Wrong predictions of greatest confidence after calibration: worth a look for label errors",
        header,
        rows,
    )


def _deploy(report: ReportData, model: ModelReport, prefix: str, drawn: list[Figure]) -> str:
    document = json.dumps(model.calibrator, indent=1, allow_nan=False, ensure_ascii=False)
    file = f"{model.chosen}.json"
    snippet = (
        "from focalcal.calibrators import load\n\n"
        f'calibrator = load("{file}")\n'
        "probabilities = calibrator.predict_proba(logits)  # NumPy or torch, (N, "
        f"{model.n_classes})\n\n"
        "module = calibrator.to_torch()           # a torch.nn.Module, logits to probabilities\n"
        'calibrator.to_onnx("calibrator.onnx")    # or an ONNX graph'
    )
    if len(document) <= MAX_EMBEDDED:
        payload = base64.b64encode(document.encode()).decode()
        get = page.piece("download", file, "application/json", payload)
        if len(document) <= 20_000:
            get += page.piece("details", f"Show {file}", page.code(document))
    else:
        get = page.paragraph("The fitted calibrator is too large for this page; write it with:")
        get += page.code(f"focalcal fit {model.sources[0].file} --method {model.chosen} -o {file}")
    words = f"{model.after.name} ({model[model.chosen].summary}), fitted on the validation set."
    return page.paragraph(words) + get + page.code(snippet)


def _data(report: ReportData, model: ModelReport, prefix: str, drawn: list[Figure]) -> str:
    rows = [
        (
            s.role,
            s.file,
            f"{s.n:,}",
            f"{min(s.class_counts)} – {max(s.class_counts)}",
            s.sha256 or "",
        )
        for s in model.sources
    ]
    out = page.table(
        f"Predictions over {model.n_classes} classes",
        ("set", "file", "samples", "samples per class", "SHA-256"),
        rows,
    )
    for s in model.sources:
        if s.provenance:
            out += page.piece("heading", f"Provenance of the {s.role} predictions")
            out += page.definitions(_flat(s.provenance))
    out += page.piece("heading", "Provenance of this report")
    return out + page.definitions(_flat(report.provenance))


def _flat(record: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    out: list[tuple[str, Any]] = []
    for key, value in record.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            out += _flat(value, f"{name}.")
        else:
            out.append((name, value))
    return out


_SECTIONS = (
    ("methods", "Calibrators", _methods),
    ("reliability", "Reliability", _reliability),
    ("classes", "Classes", _classes),
    ("right-wrong", "Right and wrong", _right_wrong),
    ("landscape", "γ and T", _landscape),
    ("risk", "Risk and coverage", _risk),
    ("slices", "Slices", _slices),
    ("wrong", "Most confident errors", _wrong),
    ("deploy", "Deploy", _deploy),
    ("data", "Data", _data),
)


def _method_notes(report: ReportData) -> str:
    folds = report.models[0].folds
    words = (
        f"Calibrators are fitted on the validation set. The one marked chosen is the simplest "
        f"whose NLL there, in {folds}-fold cross-validation, is within one standard error of the "
        f"lowest; the test set has no part in the choice and only gives the evidence.",
        f"ECE is the mean gap between confidence and accuracy over {report.bins} bins of the top "
        f"probability. It is biased upwards: even a calibrated model shows some. Intervals of "
        f"errors reach 0 where a test by consistency resampling does not reject “calibrated”.",
        "NLL and Brier are proper scores: they fall only when probabilities get better, so they "
        "decide where ECE and they disagree.",
    )
    return page.section("about", "How to read this", *map(page.paragraph, words))
