"""`focalcal report`: one page that shows how reliable the confidences are, and what helps."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from focalcal.cli import _inputs, app, options, terminal
from focalcal.errors import InputError

if TYPE_CHECKING:
    from focalcal.report import Model, Settings


@app.command(example="focalcal report --val val.csv --test test.csv -o report.html")
def report(
    inputs: _inputs.Inputs,
    models: Annotated[
        list[str] | None,
        typer.Argument(
            help="Models to compare, as NAME=FOLDER; a folder holds val.npz and test.npz, or is "
            "a run of focalcal train.",
            show_default=False,
        ),
    ] = None,
    val: Annotated[Path | None, "Validation predictions, to fit the calibrators on."] = None,
    test: Annotated[Path | None, "Test predictions, to measure everything on."] = None,
    output: Annotated[Path, "File to write: .html, .md or .json.", "--output", "-o"] = Path(
        "report.html"
    ),
    format: Annotated[str | None, "html, md or json.", "--output-format"] = None,
    methods: Annotated[str | None, "Calibrators a,b,c to fit; default: all."] = None,
    bins: options.Bins = 15,
    resamples: options.Resamples = 200,
    seed: options.Seed = 0,
    by: options.By = None,
    floor: options.Floor = None,
    name: Annotated[str, "Name of the model, with --val and --test."] = "model",
) -> terminal.Result:
    """Compare calibrators and models on one offline page.

    Calibrators are fitted and chosen on the validation predictions and measured on the test
    predictions.
    """
    from focalcal import report as reports

    reports.check_format(output, format)
    if models and (val or test):
        raise InputError("expected either NAME=FOLDER models or --val and --test, got both")
    if models:
        named = map(_named, models)
        files = [(each, *reports.files_in(each, folder)) for each, folder in named]
    elif val and test:
        files = [(name, val, test)]
    else:
        raise InputError(_missing(val, test))
    found = [reports.load_model(*each, read=inputs.predictions) for each in files]
    chosen = None if methods is None else tuple(_inputs.listed(methods))
    settings = reports.Settings(chosen, bins, resamples, seed=seed, floor=floor, by=tuple(by or ()))
    return write_report(found, settings, output, format)


def _missing(val: Path | None, test: Path | None) -> str:
    if test:
        return (
            "expected --val FILE, labelled predictions for samples other than those of --test: "
            "calibrators are fitted on them; to measure a single file use focalcal evaluate"
        )
    if val:
        return "expected --test FILE, on which the calibrators fitted on --val are measured"
    return "expected --val FILE and --test FILE, or models as NAME=FOLDER, got neither"


def write_report(
    models: list[Model], settings: Settings, output: Path, format: str | None = None
) -> terminal.Result:
    """Compute and write a report; returns its verdict and path."""
    from focalcal import report as reports

    with terminal.progress("report") as progress:
        data = reports.report(models, settings, progress=progress)
    path = reports.write(data, output, format)
    warnings = [text for m in data.models for text in m.warnings]
    chosen = [{"name": m.name, "chosen": m.chosen, "verdict": m.verdict} for m in data.models]
    record = {"path": str(path), "verdict": data.verdict, "warnings": warnings, "models": chosen}
    size = path.stat().st_size / 1e3
    size_text = f"{size / 1e3:.1f} MB" if size >= 1e3 else f"{size:.0f} kB"
    written = f"{path} ({size_text}, computed in {data.seconds:.1f} s)"
    parts = [
        *(terminal.Text(f"warning: {text}", "yellow") for text in dict.fromkeys(warnings)),
        terminal.Text(data.verdict, "bold"),
        *(f"{m.name}: {m.verdict}" for m in data.models if len(data.models) > 1),
        terminal.Text(written, no_wrap=True),
    ]
    return terminal.Result(record | {"seconds": data.seconds}, parts)


def _named(text: str) -> tuple[str, str]:
    name, sign, folder = text.partition("=")
    if not sign:
        return Path(text).name, text
    if not name or not folder:
        raise InputError(f"expected NAME=FOLDER, got {text!r}")
    return name, folder
