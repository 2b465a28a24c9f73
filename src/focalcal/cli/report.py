"""`focalcal report`: one page that shows how trustworthy the confidences are, and what helps."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from focalcal.cli import _inputs, terminal
from focalcal.errors import InputError

if TYPE_CHECKING:
    from focalcal.report import Model, Settings


EPILOG = "Example: focalcal report --val val.csv --test test.csv -o report.html. " + _inputs.LAYOUTS


def register(app: typer.Typer) -> None:
    app.command(epilog=EPILOG)(report)


def report(
    inputs: _inputs.Inputs,
    models: Annotated[
        list[str] | None,
        typer.Argument(
            help="NAME=FOLDER for each model to compare; a folder holds val.npz and test.npz, or "
            "is a run of focalcal train.",
            show_default=False,
        ),
    ] = None,
    val: Annotated[
        Path | None, typer.Option(help="Validation predictions: calibrators are fitted on these.")
    ] = None,
    test: Annotated[
        Path | None, typer.Option(help="Test predictions: everything is measured on these.")
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="File to write: .html, .md or .json.")
    ] = Path("report.html"),
    format: Annotated[
        str | None,
        typer.Option(
            "--output-format", help="html, md or json; by default from the file's ending."
        ),
    ] = None,
    methods: Annotated[
        str | None, typer.Option(help="Calibrators to fit, separated by commas; default: all.")
    ] = None,
    bins: Annotated[int, typer.Option(help="Number of bins.", min=1)] = 15,
    resamples: Annotated[
        int, typer.Option(help="Bootstrap resamples behind the intervals.", min=2)
    ] = 200,
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap and the folds.")] = 0,
    by: Annotated[
        list[str] | None, typer.Option(help="Column of the test file to slice by.")
    ] = None,
    floor: Annotated[
        float | None, typer.Option(help="Raise probabilities of 0 to this, such as 1e-12.")
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the model, with --val and --test.")] = "model",
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Fit the calibrators on validation, measure them on test, write one offline page."""
    from focalcal import report as reports

    reports.check_format(output, format)
    if models and (val or test):
        raise InputError("expected either NAME=FOLDER models or --val and --test, got both")
    if models:
        files = [
            (text_name, *reports.files_in(text_name, folder))
            for text_name, folder in map(_named, models)
        ]
    elif val and test:
        files = [(name, val, test)]
    elif test:
        raise InputError(
            "expected --val FILE, predictions with labels for other samples than those of --test: "
            "calibrators are fitted on them; to measure one file alone use focalcal evaluate"
        )
    elif val:
        raise InputError("expected --test FILE, on which what was fitted on --val is measured")
    else:
        raise InputError(
            "expected --val FILE and --test FILE, or models as NAME=FOLDER, got neither"
        )
    found = [_load(inputs, *each) for each in files]
    settings = reports.Settings(
        methods=_listed(methods),
        bins=bins,
        resamples=resamples,
        seed=seed,
        floor=floor,
        by=tuple(by or ()),
    )
    write_report(found, settings, output, format, as_json=json)


def _load(inputs: _inputs.Inputs, name: str, val: Path, test: Path) -> Model:
    from focalcal.report import Model

    first = inputs.predictions(val)
    second = inputs.predictions(test, classes=first.class_names)
    return Model(name, first, second, (Path(val), Path(test)))


def write_report(
    models: list[Model],
    settings: Settings,
    output: Path,
    format: str | None = None,
    *,
    as_json: bool = False,
) -> None:
    """Compute and write a report, and print its verdict and its path."""
    from focalcal import report as reports

    with terminal.progress("report") as progress:
        data = reports.report(models, settings, progress=progress)
    path = reports.write(data, output, format)
    if as_json:
        terminal.print_json(
            {
                "path": str(path),
                "verdict": data.verdict,
                "warnings": [text for m in data.models for text in m.warnings],
                "models": [
                    {"name": m.name, "chosen": m.chosen, "verdict": m.verdict} for m in data.models
                ],
                "seconds": data.seconds,
            }
        )
        return
    console = terminal.out()
    for text in dict.fromkeys(text for m in data.models for text in m.warnings):
        console.print(f"warning: {text}", style="yellow", markup=False)
    for text in dict.fromkeys([data.verdict, *(f"{m.name}: {m.verdict}" for m in data.models)]):
        if len(data.models) > 1 or text == data.verdict:
            console.print(text, style="bold" if text == data.verdict else None, markup=False)
    size = path.stat().st_size / 1e6
    console.print(
        f"{path} ({size:.1f} MB, computed in {data.seconds:.1f} s)", markup=False, soft_wrap=True
    )


def _named(text: str) -> tuple[str, str]:
    name, sign, folder = text.partition("=")
    if not sign:
        return Path(text).name, text
    if not name or not folder:
        raise InputError(f"expected NAME=FOLDER, got {text!r}")
    return name, folder


def _listed(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    return tuple(part.strip() for part in text.split(",") if part.strip())
