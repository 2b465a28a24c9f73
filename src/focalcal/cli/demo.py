"""`focalcal demo`: the package applied to the predictions included in it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from focalcal.cli import app, terminal
from focalcal.cli.report import write_report


@app.command(example="focalcal demo -o demo.html")
def demo(
    output: Annotated[Path, "File to write: .html, .md or .json.", "--output", "-o"] = Path(
        "focalcal-demo/report.html"
    ),
    train: Annotated[bool, "Train two networks now (about a minute; needs torch)."] = False,
) -> terminal.Result:
    """Evaluate, calibrate and report real predictions of two networks."""
    from focalcal import report as reports
    from focalcal.report import demo as demos

    reports.check_format(output)
    if train:
        with terminal.progress("training") as tick:
            models = demos.trained_models(output.parent / "runs", progress=tick)
    else:
        models = demos.embedded_models()
    return write_report(models, demos.settings(), output)
