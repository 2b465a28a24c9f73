"""`focalcal show`: what a calibrator file holds."""

from __future__ import annotations

import typer

from focalcal.cli import options, terminal
from focalcal.cli.fit import describe


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: focalcal show cal.json")(show)


def show(calibrator: options.Calibrator, json: options.Json = False) -> None:
    """Show a calibrator: its method, its numbers, what it was fitted on, its warnings."""
    from focalcal.calibrators import load
    from focalcal.calibrators.persistence import to_dict

    fitted = load(calibrator)
    if json:
        terminal.print_json(to_dict(fitted))
        return
    settings = {k: v for k, v in fitted.get_params(deep=False).items() if v is not None}
    shown = ", ".join(f"{name} = {value}" for name, value in settings.items())
    terminal.show(*describe(fitted), f"  settings: {shown}")
    decision = getattr(fitted, "decision_", None)
    if decision:
        terminal.show(f"  decides alone from confidence {decision['threshold']:.6g}")
