"""Options and arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors (and JSON) only.")]
File = Annotated[Path, typer.Argument(help="Predictions: a file or a quoted pattern.")]
Calibrator = Annotated[Path, typer.Argument(help="Calibrator file from `focalcal fit`.")]
ApplyFirst = Annotated[Path | None, typer.Option(help="Calibrator file to apply first.")]
Output = Annotated[Path, typer.Option("--output", "-o", help="File to write.")]
Bins = Annotated[int, typer.Option(help="Number of bins.", min=1)]
Resamples = Annotated[
    int | None, typer.Option(help="Bootstrap resamples behind the intervals.", min=2)
]
Seed = Annotated[int, typer.Option(help="Seed of the bootstrap and the folds.")]
Floor = Annotated[float | None, typer.Option(help="Smallest probability, for files with zeros.")]
By = Annotated[list[str] | None, typer.Option(help="Column to slice by; may be repeated.")]
Level = Annotated[float, typer.Option(help="Coverage of the intervals.")]
Engine = Annotated[
    str | None,
    typer.Option(help="Read parquet files in parts: stream (this machine's threads) or dask."),
]
Scheduler = Annotated[
    str | None, typer.Option(help="Address of a Dask scheduler, e.g. tcp://host:8786.")
]
