"""`focalcal apply`: calibrated probabilities for a file of predictions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from focalcal.cli import _inputs, app, options, terminal
from focalcal.errors import InputError
from focalcal.files import output_paths

if TYPE_CHECKING:
    from focalcal.calibrators import Calibrator
    from focalcal.loading import Loaded


@app.command(example="focalcal apply cal.json test.parquet -o calibrated.parquet")
def apply(
    calibrator: options.Calibrator,
    file: options.File,
    output: Annotated[Path, "File to write, or folder for several.", "--output", "-o"],
    inputs: _inputs.PartInputs,
    by: Annotated[str | None, "Column that the calibrator was fitted by."] = None,
    floor: options.Floor = None,
    target_prior: Annotated[str | None, "Class shares to correct for: 0.9,0.1 or estimate."] = None,
    train_prior: Annotated[
        str | None, "Class shares in training; default: those in calibration."
    ] = None,
) -> terminal.Result:
    """Write calibrated probabilities.

    All other columns and the order of the rows are kept.
    """
    from focalcal.calibrators import load
    from focalcal.calibrators.by_slice import load_slices
    from focalcal.formats import SUFFIXES
    from focalcal.metrics.sample import slice_names

    if by is not None and (target_prior or train_prior):
        raise InputError("expected --target-prior without --by, got both")
    if by is not None and inputs.engine:
        raise InputError("expected --by without an engine, got both")
    fitted, rows = load(calibrator), 0
    names = getattr(fitted, "class_names_", None)
    slices = {} if by is None else load_slices(calibrator, by)
    if by is not None and not slices:
        terminal.note(f"no calibrators by {by}; {calibrator.name} is used for all rows")

    def read(path: Path) -> tuple[Loaded, Any]:
        found = inputs.load(path, names, labels_required=False, task=fitted.task)
        return found, found.predictions.as_logits(floor)

    if target_prior or train_prior:
        fitted = _corrected(fitted, target_prior, train_prior, lambda: read(_only(file))[1])
    step = {"calibrator": {"method": fitted.method, "file": calibrator.name}}
    if inputs.in_parts(file) and by is None:  # slices are read whole
        from focalcal import scale

        with (
            inputs.parts(file, labels_required=False, classes=names) as (source, running),
            terminal.progress("calibrating") as tick,
        ):
            settings = {"floor": floor, "provenance": step, "progress": tick}
            scale.apply(source, fitted, output, running, **settings)
        rows = source.n
    else:
        files = _inputs.files_of(file)
        suffixes = SUFFIXES if _inputs.is_several(file) else [output.name.lower()]
        targets = dict(zip(files, output_paths(files, output, suffixes)))
        for path, (found, logits) in _inputs.with_rows(files, read):
            probs = fitted.predict_proba(logits)
            values = None if by is None else slice_names(found.predictions.column(by))
            for value in slices.keys() & set(values if slices else ()):
                own = values == value
                probs[own] = slices[value].predict_proba(logits[own])
            found.save_calibrated(targets[path], probs, step)
            rows += found.predictions.n
    record = {"file": str(output), "method": fitted.method, "n": rows}
    text = f"{terminal.count(rows, 'row')} calibrated by {fitted.method}, saved to {output}"
    return terminal.Result(record, [text])


def _corrected(
    fitted: Calibrator, target: str | None, train: str | None, logits: Callable[[], Any]
) -> Calibrator:
    """The calibrator for other class shares; its class names are kept."""
    from focalcal.calibrators import PriorCorrection

    if target is None:
        raise InputError("expected --target-prior with --train-prior, got none")
    estimate = target == "estimate"
    wanted = None if estimate else _shares(target, "--target-prior")
    given = None if train is None else _shares(train, "--train-prior")
    corrected = PriorCorrection(given, wanted).wrap(fitted)
    if estimate:
        corrected.adapt(logits())
    shares = ", ".join(f"{share:.4g}" for share in corrected.target_prior_)
    terminal.note(f"corrected for class shares {shares}")
    return corrected


def _only(file: Path) -> Path:
    path, *more = _inputs.files_of(file)
    if more:
        raise InputError(f"expected one file to estimate from, got {len(more) + 1}")
    return path


def _shares(text: str, option: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"expected {option} as numbers such as 0.9,0.1, got {text!r}") from None
