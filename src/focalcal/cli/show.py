"""`focalcal show`: the contents of a calibrator file."""

from __future__ import annotations

from focalcal.cli import app, options, terminal
from focalcal.cli.fit import describe


@app.command(example="focalcal show cal.json")
def show(calibrator: options.Calibrator) -> terminal.Result:
    """Show what a calibrator file contains."""
    from focalcal.calibrators import load
    from focalcal.calibrators.persistence import to_dict

    fitted = load(calibrator)
    settings = {k: v for k, v in fitted.get_params(deep=False).items() if v is not None}
    shown = ", ".join(f"{name} = {value}" for name, value in settings.items())
    lines = [*describe(fitted), f"  settings: {shown}"]
    decision = getattr(fitted, "decision_", None)
    if decision:
        lines.append(f"  decides alone from confidence {decision['threshold']!r}")
    return terminal.Result(to_dict(fitted), lines)
