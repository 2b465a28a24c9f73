"""`focalcal show`: what a calibrator file holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from focalcal.cli import terminal
from focalcal.cli.fit import describe


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: focalcal show cal.json")(show)


def show(
    calibrator: Annotated[Path, typer.Argument(help="Calibrator file from `focalcal fit`.")],
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Show a calibrator: its method, its numbers, what it was fitted on, its warnings."""
    from focalcal.calibrators import load
    from focalcal.calibrators.persistence import to_dict

    fitted = load(calibrator)
    if json:
        terminal.print_json(to_dict(fitted))
        return
    console = terminal.out()
    for line in describe(fitted):
        console.print(line, markup=False)
    settings = {k: v for k, v in fitted.get_params(deep=False).items() if v is not None}
    shown = ", ".join(f"{name} = {value}" for name, value in settings.items())
    console.print(f"  settings: {shown}", markup=False)
    decision = getattr(fitted, "decision_", None)
    if decision:
        console.print(f"  decides alone from confidence {decision['threshold']:.6g}", markup=False)
