"""`focalcal export`: a calibrator as an ONNX graph."""

from __future__ import annotations

from typing import Annotated

from focalcal.cli import app, options, terminal
from focalcal.files import check_suffix


@app.command(example="focalcal export cal.json -o cal.onnx")
def export(
    calibrator: options.Calibrator,
    output: options.Output,
    dtype: Annotated[str, "Type of inputs and outputs: float16, float32 or float64."] = "float32",
    compute: Annotated[str, "Type of the arithmetic: float64 or float32."] = "float64",
) -> terminal.Result:
    """Write a calibrator as an ONNX graph.

    The graph maps logits (N, K) to probabilities (N, K).
    """
    from focalcal.calibrators import load

    check_suffix(output, (".onnx",))
    fitted = load(calibrator)
    with terminal.working(f"exporting {fitted.method}"):
        fitted.to_onnx(output, dtype=dtype, compute=compute)
    record = {"file": str(output), "method": fitted.method, "dtype": dtype}
    return terminal.Result(record, [f"{fitted.method} as ONNX, saved to {output}"])
