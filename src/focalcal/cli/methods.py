"""`focalcal methods`: the calibrators there are."""

from __future__ import annotations

from typing import Annotated

import typer

from focalcal.cli import _console


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: focalcal methods")(methods)


def methods(
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """List the calibrators with one line each."""
    from focalcal.calibrators import METHODS

    if json:
        _console.print_json(
            [
                {
                    "method": name,
                    "summary": kind.summary,
                    "preserves_accuracy": kind.preserves_accuracy,
                    "settings": list(kind().get_params(deep=False)),
                }
                for name, kind in METHODS.items()
            ]
        )
        return
    from rich.table import Table

    table = Table("method", "what it does", "keeps class", box=None)
    for name, kind in METHODS.items():
        table.add_row(name, kind.summary, "yes" if kind.preserves_accuracy else "")
    _console.out().print(table)
