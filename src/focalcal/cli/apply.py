"""`focalcal apply`: calibrated probabilities for a file of predictions."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from focalcal.cli import _console, _scale

if TYPE_CHECKING:
    from focalcal.calibrators import Calibrator


def register(app: typer.Typer) -> None:
    app.command()(apply)


def apply(
    calibrator: Annotated[Path, typer.Argument(help="Calibrator file from `focalcal fit`.")],
    file: Annotated[
        Path, typer.Argument(help="Predictions: .npz, .parquet or .csv; or 'p/*.parquet'.")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="File to write, or folder for several.")
    ],
    logits_key: _console.LogitsKey = None,
    probs_key: _console.ProbsKey = None,
    labels_key: _console.LabelsKey = None,
    floor: _console.Floor = None,
    engine: _scale.EngineOption = None,
    scheduler: _scale.SchedulerOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Write calibrated probabilities, with the labels if there are any, in the same row order."""
    from focalcal.calibrators import load
    from focalcal.predictions import Predictions

    fitted = load(calibrator)
    keys = {"logits_key": logits_key, "probs_key": probs_key, "labels_key": labels_key}
    if _scale.wanted(file, engine, scheduler):
        settings = {"fitted": fitted, "output": output, "floor": floor}
        _report(_scale.apply(file, engine, scheduler, **settings, **keys), fitted, output, json)
        return
    given = Predictions.load(
        file,
        **keys,
        labels_required=False,
        task=fitted.task,
    )
    step = {"method": fitted.method, "file": calibrator.name}
    dataclasses.replace(
        given,
        logits=None,
        probs=fitted.predict_proba(given.as_logits(floor)),
        provenance={**given.provenance, "calibrator": step},
    ).save(output)
    _report(given.n, fitted, output, json)


def _report(n: int, fitted: Calibrator, output: Path, json: bool) -> None:
    if json:
        _console.print_json({"file": str(output), "method": fitted.method, "n": n})
        return
    _console.out().print(f"{n} rows calibrated by {fitted.method}, saved to {output}")
