"""Options of the commands: `Annotated[type, help, *names]`, and those that several share.

A parameter without a default is an argument unless it has names; all others are options.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

METAVARS = {bool: "", int: "N", float: "X", Path: "FILE"}
"""Placeholders in the help for option values by type; "NAME" for all other types."""
Json = Annotated[bool, "Print JSON instead of text."]
Quiet = Annotated[bool, "Print errors (and JSON) only.", "--quiet", "-q"]
File = Annotated[Path, "Predictions: a file or a quoted pattern."]
Calibrator = Annotated[Path, "Calibrator file from `focalcal fit`."]
ApplyFirst = Annotated[Path | None, "Calibrator file to apply first."]
Output = Annotated[Path, "File to write.", "--output", "-o"]
Bins = Annotated[int, "Number of bins."]
Resamples = Annotated[int | None, "Number of bootstrap resamples."]
Seed = Annotated[
    int,
    typer.Option(min=0, metavar="N", help="Random seed of the bootstrap and the folds."),
]
Floor = Annotated[float | None, "Smallest probability, if some are zero."]
By = Annotated[list[str] | None, "Column to slice by; may be repeated."]
Level = Annotated[float, "Coverage of the intervals."]


def declared(parameter: inspect.Parameter, panel: str | None = None) -> inspect.Parameter:
    """The parameter as Typer expects it; one already declared for Typer is unchanged."""
    kind, help, *names = get_args(parameter.annotation) or (None, None)
    info: Any = help
    if isinstance(help, str):
        if parameter.default is parameter.empty and not names:
            info = typer.Argument(help=help)
        else:
            names = names or [f"--{parameter.name.replace('_', '-')}"]
            metavar = next((METAVARS[t] for t in (kind, *get_args(kind)) if t in METAVARS), "NAME")
            info = typer.Option(*names, help=help, metavar=metavar, rich_help_panel=panel)
    return parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=Annotated[kind, info])
