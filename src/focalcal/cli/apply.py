"""`focalcal apply`: calibrated probabilities for a file of predictions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from focalcal.cli import _inputs, app, options, terminal
from focalcal.errors import InputError
from focalcal.files import output_paths

if TYPE_CHECKING:
    from focalcal.calibrators import Calibrator


@app.command(example="focalcal apply cal.json test.parquet -o calibrated.parquet")
def apply(
    calibrator: options.Calibrator,
    file: options.File,
    output: Annotated[Path, "File to write, or folder for several.", "--output", "-o"],
    inputs: _inputs.PartInputs,
    by: Annotated[str | None, "Column that the calibrator was fitted by."] = None,
    floor: options.Floor = None,
    target_prior: Annotated[str | None, "Class shares to correct for: 0.9,0.1 or estimate."] = None,
    train_prior: Annotated[str | None, "Class shares in training; default: in calibration."] = None,
) -> terminal.Result:
    """Write calibrated probabilities.

    All other columns and the order of the rows are kept.
    """
    from focalcal.calibrators import load

    if by is not None and (target_prior or train_prior):
        raise InputError("expected --target-prior without --by, got both")
    if by is not None and inputs.engine:
        raise InputError("expected --by without an engine, got both")
    fitted = load(calibrator)
    if target_prior or train_prior:
        fitted = _corrected(fitted, file, target_prior, train_prior, inputs, floor)
    if inputs.in_parts(file) and by is None:  # slices are read whole
        from focalcal import scale

        keys = {"labels_required": False, "classes": getattr(fitted, "class_names_", None)}
        with (
            inputs.parts(file, **keys) as (source, running),
            terminal.progress("calibrating") as tick,
        ):
            scale.apply(source, fitted, output, running, floor=floor, progress=tick)
        rows = source.n
    else:
        rows = _apply(fitted, calibrator, file, output, by, inputs, floor)
    record = {"file": str(output), "method": fitted.method, "n": rows}
    text = f"{terminal.count(rows, 'row')} calibrated by {fitted.method}, saved to {output}"
    return terminal.Result(record, [text])


def _apply(
    fitted: Calibrator,
    calibrator: Path,
    file: Path,
    output: Path,
    by: str | None,
    inputs: _inputs.Inputs,
    floor: float | None,
) -> int:
    """Calibrate one file after the other; the number of rows."""
    from focalcal.calibrators.by_slice import load_slices, slice_names
    from focalcal.formats import SUFFIXES

    slices = {} if by is None else load_slices(calibrator, by)
    if by is not None and not slices:
        terminal.note(f"no calibrators by {by}; {calibrator.name} is used for all rows")
    step = {"calibrator": {"method": fitted.method, "file": calibrator.name}}
    files, rows = _inputs.files_of(file), 0
    suffixes = SUFFIXES if _inputs.is_several(file) else [output.name.lower()]
    for path, target in zip(files, output_paths(files, output, suffixes)):
        found = inputs.load_for(fitted, path)
        logits = found.predictions.as_logits(floor)
        probs = fitted.predict_proba(logits)
        if by is not None:
            values = slice_names(found.predictions.column(by))
            for value in slices.keys() & set(values):
                probs[values == value] = slices[value].predict_proba(logits[values == value])
        found.save_calibrated(target, probs, step)
        rows += found.predictions.n
    return rows


def _corrected(
    fitted: Calibrator,
    file: Path,
    target_prior: str | None,
    train_prior: str | None,
    inputs: _inputs.Inputs,
    floor: float | None,
) -> Calibrator:
    """The calibrator for other class shares; its class names are kept."""
    from focalcal.calibrators import PriorCorrection

    if target_prior is None:
        raise InputError("expected --target-prior beside --train-prior, got none")
    estimate = target_prior == "estimate"
    target = None if estimate else _shares(target_prior, "--target-prior")
    train = None if train_prior is None else _shares(train_prior, "--train-prior")
    corrected = PriorCorrection(train, target).wrap(fitted)
    if estimate:
        path, *more = _inputs.files_of(file)
        if more:
            raise InputError(f"expected one file to estimate from, got {len(more) + 1}")
        corrected.adapt(inputs.load_for(fitted, path).predictions.as_logits(floor))
    corrected.class_names_ = getattr(fitted, "class_names_", None)
    shares = ", ".join(f"{share:.4g}" for share in corrected.target_prior_)
    terminal.note(f"corrected for class shares {shares}")
    return corrected


def _shares(text: str, option: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"expected {option} as numbers such as 0.9,0.1, got {text!r}") from None
