"""`focalcal fit`: learn a calibrator from predictions with known labels."""

from __future__ import annotations

import json as _json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from focalcal.cli import _console, _scale
from focalcal.errors import FitWarning, InputError

if TYPE_CHECKING:
    from focalcal.calibrators import Calibrator


def register(app: typer.Typer) -> None:
    app.command()(fit)


def fit(
    file: Annotated[
        Path, typer.Argument(help="Calibration set: .npz, .parquet or .csv; or 'p/*.parquet'.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Calibrator file to write.")],
    method: Annotated[str, typer.Option(help="See `focalcal methods`.")] = "temperature",
    objective: Annotated[str | None, typer.Option(help="nll, ece or adaptive_ece.")] = None,
    search: Annotated[str | None, typer.Option(help="grid, line or gradient.")] = None,
    gamma: Annotated[float | None, typer.Option(help="Training γ, for method focal.")] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any setting of the method as name=value (value as JSON)."),
    ] = None,
    task: Annotated[str, typer.Option(help="auto or multilabel.")] = "auto",
    logits_key: _console.LogitsKey = None,
    probs_key: _console.ProbsKey = None,
    labels_key: _console.LabelsKey = None,
    floor: _console.Floor = None,
    engine: _scale.EngineOption = None,
    scheduler: _scale.SchedulerOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Fit a calibrator and save it as a small JSON file."""
    from focalcal.calibrators import make
    from focalcal.predictions import Predictions

    given = {"objective": objective, "search": search, "gamma": gamma}
    params: dict[str, Any] = {k: v for k, v in given.items() if v is not None}
    params |= dict(_parse(item) for item in setting or [])
    keys = {"logits_key": logits_key, "probs_key": probs_key, "labels_key": labels_key}
    if _scale.wanted(file, engine, scheduler):
        params["task"] = task
        settings = {"method": method, "floor": floor, "params": params}
        found = _scale.fit(file, engine, scheduler, **settings, **keys)
        found.calibrator.save(output)
        if json:
            _console.print_json({**_record(found.calibrator, output), "passes": found.passes})
        else:
            _show(found.calibrator, output)
            _console.out().print(f"  {found.passes} passes over the files")
        return
    predictions = Predictions.load(file, task=task, **keys)
    calibrator = make(method, task=predictions.task, **params)
    logits = predictions.as_logits(floor)
    with _console.working(f"fitting {method}"), warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # they are in the diagnostics, printed below
        calibrator.fit(logits, predictions.labels)
    calibrator.save(output)
    if json:
        _console.print_json(_record(calibrator, output))
    else:
        _show(calibrator, output)


def _parse(item: str) -> tuple[str, Any]:
    name, equals, value = item.partition("=")
    if not (name and equals):
        raise InputError(f"expected --set name=value, got {item!r}")
    try:
        return name, _json.loads(value)
    except ValueError:
        return name, value  # a bare word is a text


def _record(calibrator: Calibrator, output: Path) -> dict[str, Any]:
    from focalcal.calibrators.persistence import to_dict

    document = to_dict(calibrator)
    return {"file": str(output), **{k: document[k] for k in ("method", "params", "diagnostics")}}


def _show(calibrator: Calibrator, output: Path) -> None:
    from rich.markup import escape

    d = calibrator.diagnostics_
    console = _console.out()
    values = ", ".join(
        f"{name.rstrip('_')} = {getattr(calibrator, name):.6g}"
        for name in calibrator.state
        if isinstance(getattr(calibrator, name, None), float)
    )
    console.print(f"{type(calibrator).__name__}{f': {values}' if values else ''}")
    console.print(f"  {d.objective}: {d.before:.6g} → {d.after:.6g} on {d.n} calibration samples")
    for text in d.warnings:
        console.print(f"  warning: {escape(text)}", style="yellow")
    console.print(f"  saved to {escape(str(output))}")
