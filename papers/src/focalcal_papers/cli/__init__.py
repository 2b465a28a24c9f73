"""Commands that this package adds to `focalcal`; each module has `register(app)`."""

from pathlib import Path
from typing import Annotated

import typer

COMMANDS = ("train", "predict", "curvature", "reproduce", "theory")

# Options that several commands share.
Data = Annotated[Path | None, typer.Option(help="Folder of the data set.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 ...")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Split = Annotated[str, typer.Option(help="train, calibration or test.")]
