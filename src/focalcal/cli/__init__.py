"""The command line: parses, calls, prints. One module per command; heavy imports inside them."""

from __future__ import annotations

import importlib
import sys
from typing import Annotated

import typer

from focalcal import __version__
from focalcal.errors import FocalcalError

COMMANDS = ("evaluate", "train", "predict", "curvature", "fit", "apply", "methods")
"""Command modules of this package, in the order of `--help`; each has `register(app)`."""

app = typer.Typer(
    name="focalcal",
    help="Classifier confidences you can trust: measure, calibrate, train, explain, show.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"focalcal {__version__}")
        raise typer.Exit()


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    pass


for _name in COMMANDS:
    importlib.import_module(f"focalcal.cli.{_name}").register(app)


def main() -> None:
    """Run the command line; expected failures become one line on stderr and exit code 2."""
    try:
        app()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)
    except (FocalcalError, OSError) as error:
        sys.stderr.write(f"focalcal: error: {error}\n")
        sys.exit(2)
