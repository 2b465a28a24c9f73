"""`focalcal export`: a calibrator as an ONNX graph."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from focalcal.cli import terminal
from focalcal.errors import InputError


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: focalcal export cal.json -o cal.onnx")(export)


def export(
    calibrator: Annotated[Path, typer.Argument(help="Calibrator file from `focalcal fit`.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write: .onnx.")],
    dtype: Annotated[str, typer.Option(help="Input and output: float32 or float64.")] = "float32",
    compute: Annotated[str, typer.Option(help="Arithmetic: float64 or float32.")] = "float64",
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Write a calibrator as ONNX: logits (N, K) in, probabilities (N, K) out."""
    from focalcal.calibrators import load

    if output.suffix != ".onnx":
        raise InputError(f"expected an output ending in .onnx, got {output.name!r}")
    fitted = load(calibrator)
    with terminal.working(f"exporting {fitted.method}"):
        fitted.to_onnx(output, dtype=dtype, compute=compute)
    if json:
        terminal.print_json({"file": str(output), "method": fitted.method, "dtype": dtype})
        return
    terminal.out().print(f"{fitted.method} as ONNX, saved to {output}", markup=False)
