"""`focalcal evaluate`: how trustworthy are these predictions?"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from focalcal.cli import _inputs, _scale, _slices, app, options, terminal
from focalcal.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from focalcal.bins import Bins
    from focalcal.calibrators import Improvement
    from focalcal.metrics import Evaluation, Metric
    from focalcal.predictions import Predictions


@app.command(example="focalcal evaluate test.csv --probs-prefix p_")
def evaluate(
    file: options.File,
    inputs: _inputs.Inputs,
    bins: options.Bins = 15,
    resamples: Annotated[
        int | None, typer.Option(help="Bootstrap resamples behind the intervals.", min=2)
    ] = None,
    seed: options.Seed = 0,
    by: options.By = None,
    recalibrate: Annotated[
        str | None,
        typer.Option(help="Split the losses into what this method removes and what stays."),
    ] = None,
    engine: _scale.EngineOption = None,
    scheduler: _scale.SchedulerOption = None,
    json: options.Json = False,
) -> None:
    """Measure accuracy and calibration, with intervals and a reliability sketch.

    Several parquet files, or an engine, are read in parts: exact values or bounds, no intervals.
    """
    in_parts = _scale.wanted(file, engine, scheduler)
    if recalibrate and (by or in_parts):
        raise InputError(
            "expected --recalibrate with one file in memory, got --by, an engine or several files; "
            "evaluate once with --recalibrate and once without"
        )
    if in_parts:
        settings = {"bins": bins, "json": json, "by": by, "inputs": inputs}
        _scale.evaluate_files(file, engine, scheduler, **settings)
        return
    from focalcal import metrics
    from focalcal.metrics.summary import plain

    predictions = inputs.predictions(file)
    if by:
        with terminal.working("resampling every slice"):
            sliced = metrics.evaluate_by(
                predictions, by=by, bins=bins, resamples=resamples or 1000, seed=seed
            )
        _slices.show(sliced, file.name, json=json)
        return
    with terminal.progress("resampling") as tick:
        result = metrics.evaluate(
            predictions, bins=bins, resamples=resamples, seed=seed, progress=tick
        )
    split = _split(predictions, recalibrate) if recalibrate else {}
    if json:
        parts = {name: dataclasses.asdict(part) for name, part in split.items()}
        more = {"recalibrated": {"method": recalibrate, **plain(parts)}} if split else {}
        terminal.print_json({**result.to_dict(), **more})
        return
    show(result, title=file.name)
    for name, part in split.items():
        terminal.out().print(
            f"{metrics.METRICS[name].title} {part.value:.4f} = {part.removed:.4f} "
            f"± {part.standard_error:.4f} that {recalibrate} removes + {part.stays:.4f} that stays"
        )


def _split(predictions: Predictions, method: str) -> dict[str, Improvement]:
    from focalcal import calibrators
    from focalcal.calibrators.improvement import counted_once

    if predictions.task == "multilabel":
        raise InputError("expected one label per sample with --recalibrate, got a multi-label file")
    calibrator = calibrators.make(method)
    with terminal.working("cross-fitting"):
        logits = predictions.as_logits(zeros=True)
        found = calibrators.improvement(logits, predictions.labels, calibrator)
    # Logarithms of one column of probabilities are two columns.
    twice = predictions.one_column and predictions.logits is None
    return counted_once(found) if twice else found


def show(result: Evaluation, title: str) -> None:
    """Print an evaluation for a person."""
    tables = [metrics_table(result, title)]
    if result.labels:
        tables.append(labels_table(result))
    terminal.show(*tables, reliability_sketch(result.reliability), verdict(result))


def verdict(result: Evaluation) -> str:
    """One sentence: over- or under-confident, by how much, and whether chance explains it."""
    from focalcal.metrics import METRICS

    percent, gap = METRICS["ece"].text, result["confidence_gap"].value
    direction = "over-confident" if gap > 0 else "under-confident"
    test = result.test
    chance = (
        f"chance alone would give an ECE of about {percent(test.expected_ece)}, "
        f"{terminal.p_text(test.p_value)}"
    )
    if test.p_value >= 0.05:
        return f"No sign of miscalibration: ECE {percent(test.ece)}; {chance}."
    return (
        f"Not calibrated: {direction} by {abs(gap) * 100:.2f} points, "
        f"ECE {percent(test.ece)}; {chance}."
    )


def metrics_table(result: Evaluation, title: str) -> Table:
    from rich.table import Table

    kind = "labels (means over them)" if result.labels else "classes"
    table = Table(title=f"{title}: {result.n:,} samples, {result.n_classes} {kind}")
    table.add_column("metric")
    table.add_column("value", justify="right")
    table.add_column(f"{result.level * 100:g} % interval", justify="right")
    for metric, estimate in shown(result.metrics):
        value = estimate.value
        interval = f"{metric.text(estimate.low)} … {metric.text(estimate.high)}"
        has_one = math.isfinite(estimate.low)
        table.add_row(metric.title, metric.text(value), interval if has_one else "")
    return table


def labels_table(result: Evaluation) -> Table:
    """A row per label of a multi-label task."""
    from rich.table import Table

    columns = ("accuracy", "nll", "ece")
    table = Table("label", "accuracy", "NLL", "ECE", "confidence − accuracy", "by chance?")
    by_name = dict(shown(result.metrics))
    for name, part in result.labels.items():
        cells = [m.text(part[m.name].value) for m in by_name if m.name in columns]
        gap = f"{100 * part['confidence_gap'].value:+.2f} points"
        table.add_row(name, *cells, gap, terminal.p_text(part.test.p_value))
    return table


def shown(values: dict[str, Any]) -> list[tuple[Metric, Any]]:
    """The declared metrics that a terminal shows, with their values."""
    from focalcal.metrics import METRICS

    return [(m, values[name]) for name, m in METRICS.items() if m.show and name in values]


def reliability_sketch(bins: Bins, width: int = 40) -> str:
    """Accuracy per confidence bin as bars of text; `│` marks the mean confidence.

    A bar that ends before its mark is an over-confident bin.
    """
    lines = ["confidence        n  accuracy (bar) against confidence (│)"]
    filled = [i for i in range(len(bins)) if bins.counts[i] > 0]
    for i in range(filled[0], filled[-1] + 1):
        label = f"{bins.edges[i]:.2f}–{bins.edges[i + 1]:.2f} {bins.counts[i]:>8.0f}  "
        if bins.counts[i] == 0:
            lines.append(label)
            continue
        bar = list(("█" * round(bins.accuracy[i] * width)).ljust(width + 1))
        bar[round(bins.mean_confidence[i] * width)] = "│"
        lines.append(label + "".join(bar) + f" {bins.gap[i] * 100:+6.1f}")
    return "\n".join(lines)
