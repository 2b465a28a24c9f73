"""`focalcal monitor`: is the model still calibrated, week after week?"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from focalcal.cli import _inputs, app, options, terminal
from focalcal.errors import FileFormatError, InputError
from focalcal.files import check_suffix, natural, write_text
from focalcal.formats.classes import MissingLabel

if TYPE_CHECKING:
    from focalcal.metrics.monitoring import Batch, Monitor
    from focalcal.predictions import Predictions

ALARM = 3
"""Exit code while an alarm is active, so that cron can act on it."""
SHOWN = 26
"""The most batches shown in the terminal; JSON and the page have all."""


@app.command(
    example="focalcal monitor reference.npz 'weeks/*.npz' --state monitor.json -o monitor.html"
)
def monitor(
    reference: Annotated[Path, "Labelled predictions to compare with, or a saved state (.json)."],
    inputs: _inputs.Inputs,
    new: Annotated[
        list[str] | None,
        typer.Argument(help="Files or patterns, one batch each, in order.", show_default=False),
    ] = None,
    by: Annotated[str | None, "Column that divides new files into batches."] = None,
    state: Annotated[Path | None, "File to save the state in, for later runs."] = None,
    output: Annotated[Path | None, "Page to write (.html).", "--output", "-o"] = None,
    level: Annotated[float | None, "1 − probability of any false alarm; default: 0.95."] = None,
    tolerance: Annotated[
        float | None, "Allowed gap of accuracy and confidence; default: 0."
    ] = None,
    calibrator: options.ApplyFirst = None,
    floor: options.Floor = None,
) -> terminal.Result:
    """Test each new batch for miscalibration and drift.

    The tests remain valid if you check after every batch: the probability of any false alarm is at
    most 1 − level. Batches without labels are only tested for drift of the confidences. The exit
    code is 3 while an alarm is active.
    """
    from focalcal.calibrators import load
    from focalcal.metrics.monitoring import Monitor

    for path, suffixes in ((state, (".json",)), (output, (".html", ".htm"))):
        if path is not None:
            check_suffix(path, suffixes)
    fitted = None if calibrator is None else load(calibrator)

    settings = {"level": level, "tolerance": tolerance}
    settings = {name: value for name, value in settings.items() if value is not None}
    if reference.suffix.lower() == ".json":
        running = _resumed(reference, settings)
    else:
        given, probs = inputs.calibrated(reference, fitted, floor)
        running = Monitor(given.labels, probs, **settings)
        running.class_names = given.class_names

    def read(path: Path) -> Iterator[tuple[Predictions, Any]]:
        """Rows with labels, then those whose labels are not known yet."""
        calibrated = partial(inputs.calibrated, path, fitted, floor, classes=running.class_names)
        try:
            yield calibrated()
        except MissingLabel as error:
            known = ~error.missing
            terminal.note(
                f"{path.name}: {known.sum():,} of {terminal.count(len(known), 'row')} have labels"
            )
            if known.any():
                yield calibrated(rows=known)
            yield calibrated(rows=~known, labels_required=False)
        except FileFormatError:  # no column of labels
            yield calibrated(labels_required=False)

    paths = [path for text in new or [] for path in _inputs.files_of(Path(text))]
    _update(running, paths, by, read)
    if state is not None:
        _refuse_to_lose_batches(state, running)
        write_text(state, running.to_json())
    if output is not None:
        from focalcal.report.monitor import render

        write_text(output, render(running))
    names = ("verdict", "alarms", "level", "threshold", "reference")
    record = {name: getattr(running, name) for name in names}
    record["batches"] = [dataclasses.asdict(r) for r in running.results]
    return terminal.Result(record, _parts(running, output), ALARM if running.alarms else 0)


def _resumed(state: Path, settings: dict[str, float]) -> Monitor:
    """The monitor of a saved state, with the settings that it was started with."""
    from focalcal.metrics.monitoring import Monitor

    if not state.is_file():
        raise FileFormatError(f"no file at {state}; the first run starts from the reference")
    running = Monitor.from_json(state.read_text(encoding="utf-8"))
    for name, value in settings.items():
        if value != getattr(running, name):
            raise InputError(
                f"expected the {name} of {state}, {getattr(running, name):g}, got {value:g}; "
                "leave it out, or start from the reference"
            )
    return running


def _refuse_to_lose_batches(state: Path, running: Monitor) -> None:
    """Do not overwrite an earlier state that has a batch which the new one lacks."""
    from focalcal.metrics.monitoring import Monitor

    if not state.is_file():
        return
    known = {r.name for r in running.results}
    old = Monitor.from_json(state.read_text(encoding="utf-8")).results
    lost = [r.name for r in old if r.name not in known]
    if lost:
        raise InputError(
            f"expected all batches of {state} among the files, got no {lost[0]}; to continue from "
            "that state give it in place of the reference, or save to another file"
        )


def _update(running: Monitor, paths: list[Path], by: str | None, read: Callable) -> None:
    """Add the batches whose names are not known yet."""
    known = {r.name: r for r in running.results}
    for name, batch in _batches(running, paths, by, read):
        if name not in known:
            known[name] = running.update(name, batch)
            continue
        old, n = known[name], batch.seen.total
        mean = batch.seen.confidence_sums.sum() / n
        if n != old.n or not math.isclose(mean, old.expected_accuracy.value, abs_tol=1e-6):
            raise InputError(
                f"expected batches with different names, got two named {name}: {old.n} samples "
                f"of mean confidence {old.expected_accuracy.value:.6g}, and {n:g} of {mean:.6g}; "
                "rename one, or start from the reference if one was extended"
            )


def _batches(
    running: Monitor, paths: list[Path], by: str | None, read: Callable
) -> Iterator[tuple[str, Batch]]:
    """Each file, or the rows of all files that share a value of the column `by`."""
    from focalcal.metrics.sample import slice_name, slices

    joined: dict[str, Batch] = {}
    with terminal.progress("batches") as tick:
        found = _inputs.with_rows(paths, lambda path: list(read(path)))
        for i, (path, parts) in enumerate(found):
            for given, probs in parts:
                groups = slices(given.column(by)) if by else [(path.name, slice(None))]
                for value, rows in groups:
                    name = slice_name(value)
                    labels = None if given.labels is None else given.labels[rows]
                    part = running.summarise(probs[rows], labels)
                    joined[name] = joined[name] + part if name in joined else part
            if by is None:
                yield path.name, joined.pop(path.name)
            tick((i + 1) / len(paths))
    for name in sorted(joined, key=natural):
        yield name, joined[name]


def _parts(running: Monitor, output: Path | None) -> Iterator[Any]:
    """What the terminal shows."""
    from focalcal.metrics.monitoring import ADVICE

    yield terminal.Text(running.verdict, "bold")
    if running.results:
        yield _table(running)
    yield (
        f"p-values of {len(running.tests)} tests, valid at any time; ! marks an alarm, p ≤ "
        f"{running.threshold:.3g}: the probability of any false alarm is at most "
        f"{100 * (1 - running.level):g} %."
    )
    cautious = [r for r in running.results if not r.trusted]
    if cautious:
        first, last = cautious[0].name, cautious[-1].caution
        yield f"Do not rely on the expected accuracy from {first} on: {last}."
    if running.alarms:
        yield ADVICE
    if output is not None:
        yield f"Written to {output}"


def _table(running: Monitor) -> Table:
    from focalcal.metrics.declare import p_cell
    from focalcal.metrics.monitoring import TESTS

    rows = []
    for r in running.results[-SHOWN:]:
        e = r.expected_accuracy
        accuracy = "–" if r.accuracy is None else f"{100 * r.accuracy.value:.1f}"
        expected = f"{100 * e.low:.1f} – {100 * e.high:.1f}"
        p_values = [r.p_values[test] for test in TESTS]
        tests = ["! " * (p <= running.threshold) + p_cell(p) for p in p_values]
        rows.append((r.name, f"{r.n:,}", accuracy, expected, *tests))
    n = len(running.results)
    title = f"the last {SHOWN} of {n} batches" if n > SHOWN else None
    return terminal.table(("batch", "n", "acc., %", "expected", *TESTS), rows, title)
