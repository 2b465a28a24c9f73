"""`focalcal evaluate`: how trustworthy are these predictions?"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

from rich.table import Table

from focalcal.cli import _inputs, app, options, terminal
from focalcal.errors import InputError

if TYPE_CHECKING:
    from focalcal.bins import Bins
    from focalcal.calibrators import Improvement
    from focalcal.metrics import Evaluation, Metric, SlicedEvaluation
    from focalcal.predictions import Predictions


@app.command(example="focalcal evaluate test.csv --probs-prefix p_")
def evaluate(
    file: options.File,
    inputs: _inputs.PartInputs,
    bins: options.Bins = 15,
    resamples: options.Resamples = None,
    seed: options.Seed = 0,
    by: options.By = None,
    recalibrate: Annotated[str | None, "Show how much of the losses this method removes."] = None,
    event: Annotated[bool, "One column: the confidence that the answer is right."] = False,
) -> terminal.Result:
    """Measure accuracy and calibration, with intervals.

    Several parquet files, or any file with an engine, are read in parts: the values are exact or
    have bounds, but no intervals. With --event, labels are 1 if the answer was right, otherwise 0.
    """
    in_parts = inputs.in_parts(file)
    if recalibrate and (by or in_parts):
        raise InputError(
            "expected --recalibrate with one file in memory, got --by, an engine or several files; "
            "evaluate once with --recalibrate and once without"
        )
    if event and (by or in_parts or recalibrate):
        raise InputError(
            "expected --event with one file in memory, got --by, an engine, several files or "
            "--recalibrate; leave them out"
        )
    if in_parts:
        with inputs.parts(file, extra=by or ()) as (source, running):
            return _in_parts(source, running, bins, by, file.name)
    from focalcal import metrics

    predictions, settings = inputs.predictions(file), {"bins": bins, "seed": seed}
    if by:
        with terminal.working("resampling every slice"):
            n = resamples or 1000
            sliced = metrics.evaluate_by(predictions, by=by, resamples=n, **settings)
        return _of_slices(sliced, file.name)
    if event:
        probs = predictions.probabilities()
        probs = probs[:, 1] if predictions.one_column else probs
        given = {"y_true": predictions.labels, "confidence": probs}
    else:
        given = {"y_true": predictions}
    with terminal.progress("resampling") as tick:
        result = metrics.evaluate(**given, resamples=resamples, progress=tick, **settings)
    record, parts = result.to_dict(), list(_parts(result, file.name))
    if recalibrate:
        split = _split(predictions, recalibrate)
        record["recalibrated"] = {"method": recalibrate}
        record["recalibrated"] |= {name: dataclasses.asdict(part) for name, part in split.items()}
        parts += [
            f"{metrics.METRICS[name].title}: {part.value:.4f}, of which {recalibrate} removes "
            f"{part.removed:.4f} ± {part.standard_error:.4f}; {part.stays:.4f} remains."
            for name, part in split.items()
        ]
    return terminal.Result(record, parts)


def _in_parts(source: Any, engine: Any, bins: int, by: Any, title: str) -> terminal.Result:
    """Measure in one pass: values, with error bounds for those that are not exact."""
    from focalcal import scale
    from focalcal.metrics.slicing import of_statistics

    with terminal.progress("reading") as tick:
        if by:
            found = scale.statistics_by(source, engine, bins=bins, progress=tick)
            return _of_slices(of_statistics(found), title)
        result = scale.statistics(source, engine, bins=bins, progress=tick).compute()
    values = {
        name: {"value": m.value, "error_bound": m.error_bound} for name, m in result.metrics.items()
    }
    rows = [
        (m.title, m.text(s.value), m.text(s.error_bound) if s.error_bound else "exact")
        for m, s in shown(result.metrics)
    ]
    n, k, files, passes = result.n, result.n_classes, len(source.paths), engine.passes
    record = {"n": n, "n_classes": k, "files": files, "passes": passes, "metrics": values}
    record["reliability"] = dataclasses.asdict(result.reliability)
    title = f"{title}: {n:,} samples, {k} classes, {terminal.count(files, 'file')}"
    table = terminal.table(("metric", "value", "within ±"), rows, title)
    sketch, read = reliability_sketch(result.reliability), terminal.count(passes, "pass", "passes")
    return terminal.Result(record, [table, sketch, f"{read} over the files."])


def _of_slices(result: SlicedEvaluation, title: str) -> terminal.Result:
    """The worst slice first, then a line per slice."""
    from focalcal.metrics import METRICS
    from focalcal.metrics.declare import p_cell

    # As many as fit into 80 columns, in order of declaration; JSON has them all.
    metrics = [m for m in METRICS.values() if m.show == "report"][:2]
    rows = []
    for s in sorted(result.slices, key=lambda s: (not s.enough, s.expected_ece - s.ece)):
        cells = [m.text(s.metrics[m.name].value) if s.enough else "–" for m in metrics]
        ece = (f"{100 * s.ece:.2f}", f"{100 * s.expected_ece:.2f}") if s.enough else ("too few", "")
        rows.append((s.name, f"{s.n:,}", *cells, *ece, p_cell(s.p_value)))
    header = ("slice", "n", *(m.title for m in metrics), "ECE, %", "chance, %", "p")
    parts = [
        terminal.Text(result.verdict, "bold"),
        terminal.table(header, rows, title),
        f"p: test of calibration, corrected for {result.tested} slices (Holm); chance: ECE of a "
        "calibrated slice of that size.",
        *filter(None, [result.too_few]),
    ]
    return terminal.Result({"verdict": result.verdict, **result.to_dict()}, parts)


def _split(predictions: Predictions, method: str) -> dict[str, Improvement]:
    from focalcal import calibrators
    from focalcal.calibrators.improvement import counted_once

    if predictions.task == "multilabel":
        raise InputError("expected one label per sample with --recalibrate, got a multi-label file")
    calibrator = calibrators.make(method)
    with terminal.working("cross-fitting"):
        logits = predictions.as_logits()
        found = calibrators.improvement(logits, predictions.labels, calibrator)
    # A single column of probabilities becomes two columns of logarithms.
    twice = predictions.one_column and predictions.logits is None
    return counted_once(found) if twice else found


def _parts(result: Evaluation, title: str) -> Iterator[Any]:
    """What the terminal shows."""
    kind = "labels (means over them)" if result.labels else "classes"
    rows = []
    for m, e in shown(result.metrics):
        interval = f"{m.number(e.low)} – {m.text(e.high)}" if math.isfinite(e.low) else ""
        rows.append((m.title, m.text(e.value), interval))
    header = ("metric", "value", f"{result.level * 100:g} % interval")
    what = f"{result.n_classes} {kind}" if result.n_classes > 1 else "forecasts of an event"
    title = f"{title}: {terminal.count(result.n, 'sample')}, {what}"
    yield terminal.table(header, rows, title)
    if result.labels:
        yield _labels_table(result)
    yield reliability_sketch(result.reliability)
    yield verdict(result)
    if result.miscalibrated:
        yield "To correct it: focalcal fit on other labelled samples, then focalcal apply."


def verdict(result: Evaluation) -> str:
    """One sentence: over- or under-confident, by how much, and whether chance explains it."""
    from focalcal.metrics.declare import p_text, percent

    test, found = result.test, result.direction
    if result.miscalibrated:
        found = f"Not calibrated: {found[0].lower()}{found[1:]}"
    return (
        f"{found}; ECE {percent(test.ece)}, by chance alone about {percent(test.expected_ece)}, "
        f"{p_text(test.p_value)}."
    )


def _labels_table(result: Evaluation) -> Table:
    """A row per label of a multi-label task."""
    from focalcal.metrics import METRICS
    from focalcal.metrics.declare import p_cell

    columns = [METRICS[name] for name in ("accuracy", "nll", "ece", "confidence_gap")]
    rows = [
        (name, *(m.number(part[m.name].value) for m in columns), p_cell(part.test.p_value))
        for name, part in result.labels.items()
    ]
    return terminal.table(("label", *(m.heading for m in columns), "p"), rows)


def shown(values: dict[str, Any]) -> list[tuple[Metric, Any]]:
    """The declared metrics that a terminal shows, with their values."""
    from focalcal.metrics import METRICS

    return [(m, values[name]) for name, m in METRICS.items() if m.show and name in values]


def reliability_sketch(bins: Bins, width: int | None = None) -> str:
    """Accuracy per confidence bin as bars of text; `│` marks the mean confidence.

    A bar that ends before its mark is an over-confident bin. width: of a bar; None fits the
    terminal.
    """
    from focalcal.metrics.declare import decimal

    width = width or max(8, min(40, terminal.out().width - 28))
    lines = ["confidence        n  accuracy (bar), mean confidence (│), difference in points"]
    filled = [i for i in range(len(bins)) if bins.counts[i] > 0]
    for i in range(filled[0], filled[-1] + 1):
        label = f"{bins.edges[i]:.2f}–{bins.edges[i + 1]:.2f} {bins.counts[i]:>8,.0f}  "
        if bins.counts[i] == 0:
            lines.append(label)
            continue
        bar = list(("█" * round(bins.accuracy[i] * width)).ljust(width + 1))
        bar[round(bins.mean_confidence[i] * width)] = "│"
        lines.append(label + "".join(bar) + f" {decimal(bins.gap[i] * 100, '+z.1f'):>6}")
    return "\n".join(lines)
