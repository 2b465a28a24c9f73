"""`focalcal fit`: learn a calibrator from predictions with known labels."""

from __future__ import annotations

import dataclasses
import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from focalcal.cli import _inputs, app, options, terminal
from focalcal.errors import FitWarning, InputError, InputWarning
from focalcal.files import check_suffix

if TYPE_CHECKING:
    from focalcal.calibrators import Calibrator
    from focalcal.predictions import Predictions


@app.command(example="focalcal fit val.csv --method auto -o cal.json")
def fit(
    file: Annotated[Path, "Calibration set: a file or a quoted pattern."],
    output: options.Output,
    inputs: _inputs.PartInputs,
    method: Annotated[str, "See `focalcal methods`."] = "temperature",
    objective: Annotated[str | None, "nll, ece or adaptive_ece."] = None,
    search: Annotated[str | None, "grid, line or gradient."] = None,
    gamma: Annotated[float | None, "Training γ, for method focal."] = None,
    setting: Annotated[list[str] | None, "Any setting, as name=JSON.", "--set"] = None,
    by: Annotated[str | None, "One temperature per slice of this column."] = None,
    floor: options.Floor = None,
) -> terminal.Result:
    """Fit a calibrator and save it as a small JSON file."""
    from focalcal.calibrators import make

    check_suffix(output, (".json",))
    given = {"objective": objective, "search": search, "gamma": gamma}
    params: dict[str, Any] = {k: v for k, v in given.items() if v is not None}
    params |= dict(_parse(item) for item in setting or [])
    if by is not None and (method != "temperature" or params or inputs.engine):
        raise InputError("expected --by with the temperature method, no settings and no engine")
    # They are in the diagnostics, printed below; `quietly` restores the filters.
    warnings.simplefilter("ignore", FitWarning)
    if inputs.in_parts(file) and by is None:  # slices are read whole
        from focalcal import scale

        with (
            inputs.parts(file) as (source, running),
            terminal.progress(f"fitting {method}") as tick,
        ):
            found = scale.fit(source, method, running, floor=floor, progress=tick, **params)
        names = source.partitions[0].keys.classes
        return _saved(found.calibrator, names, output, passes=found.passes)
    if by is not None:
        return _fit_by(inputs.predictions(file), by, floor, output)
    warnings.filterwarnings("ignore", ".* their rows sum to 1", InputWarning)  # is there too
    predictions = inputs.predictions(file)
    calibrator = make(method, **{"task": predictions.task} | params)
    with terminal.working(f"fitting {method}"):
        calibrator.fit(predictions.as_logits(floor), predictions.labels)
    return _saved(calibrator, predictions.class_names, output)


def _saved(
    calibrator: Calibrator, names: tuple[str, ...] | None, output: Path, **more: int
) -> terminal.Result:
    from focalcal.calibrators import by_slice
    from focalcal.calibrators.persistence import to_dict

    calibrator.class_names_ = names
    calibrator.save(output)
    if older := by_slice.beside(output):
        warnings.warn(
            f"calibrators of slices from an earlier fit with --by are beside {output}, such as "
            f"{older[0].name}; `focalcal apply --by` would still use them: remove them",
            InputWarning,
            stacklevel=2,
        )
    document = to_dict(calibrator)
    kept = ("method", "params", "class_names", "diagnostics")
    record = {"file": str(output), **{k: document[k] for k in kept if k in document}}
    if calibrator.method == "auto" and calibrator.task == "auto":
        record["chosen"] = calibrator.formula_
        record["candidates"] = [dataclasses.asdict(row) for row in calibrator.table_]
    parts = [*describe(calibrator), f"  saved to {output}"]
    parts += [f"  {terminal.count(n, 'pass', 'passes')} over the files" for n in more.values()]
    return terminal.Result(record | more, parts)


def _fit_by(
    predictions: Predictions, by: str, floor: float | None, output: Path
) -> terminal.Result:
    from focalcal.calibrators import by_slice
    from focalcal.metrics.declare import decimal

    if predictions.task == "multilabel":
        raise InputError("expected one label per sample with --by, got a multi-label file")
    logits, column = predictions.as_logits(floor), predictions.column(by)
    with terminal.working(f"fitting by {by}"):
        found = by_slice.fit_by(logits, predictions.labels, column)
    for calibrator in (found.common, *found.slices.values()):
        calibrator.class_names_ = predictions.class_names
    files = by_slice.save_slices(found, output, by)
    temperatures = {name: c.temperature_ for name, c in found.slices.items()}
    record = {"files": list(map(str, files)), "common": found.common.temperature_}
    record |= {"slices": temperatures, "gain": found.gain, "standard_error": found.error}
    gain = f"held-out NLL changes by {decimal(-found.gain, '+z.5f')} ± {found.error:.5f}"
    helps, one = f"A temperature for each {by} helps", f"One calibrator for all values of {by}"
    parts: list[Any] = [
        f"{helps}: {gain}." if temperatures else f"{one}: with several, {gain}, within the noise.",
        *(f"  {by}={name}: T = {t:.4g}" for name, t in temperatures.items()),
        f"  {'all others' if temperatures else 'all'}: T = {found.common.temperature_:.4g}",
        f"  saved to {output}",
        *_warnings(found.common),
    ]
    record |= {"warnings": list(found.common.diagnostics_.warnings)}
    return terminal.Result(record, parts)


def _parse(item: str) -> tuple[str, Any]:
    name, equals, value = item.partition("=")
    if not (name and equals):
        raise InputError(f"expected --set name=value, got {item!r}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value  # a bare word is a string


def describe(calibrator: Calibrator) -> list[Any]:
    """A fitted calibrator in a few lines: its parameters, the gain, warnings."""
    from focalcal.metrics.declare import decimal

    d = calibrator.diagnostics_
    values = ", ".join(
        f"{name.rstrip('_')} = {decimal(getattr(calibrator, name), '.6g')}"
        for name in calibrator.state
        if isinstance(getattr(calibrator, name, None), float)
    )
    lines = [f"{calibrator.method}{f': {values}' if values else ''}"]
    if calibrator.method == "auto" and calibrator.task == "auto":
        lines[0] = f"auto: {calibrator.formula_}, chosen from"
        lines += [f"  {line}" for line in calibrator.table_text().splitlines()]
    before, after = decimal(d.before, ".6g"), decimal(d.after, ".6g")
    lines.append(f"  {d.objective}: {before} → {after} on {d.n:,} calibration samples")
    names = getattr(calibrator, "class_names_", None)
    if names:
        shown = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
        kinds = ("label",) if calibrator.task == "multilabel" else ("class", "classes")
        lines.append(f"  {terminal.count(len(names), *kinds)}: {shown}")
    return lines + _warnings(calibrator)


def _warnings(calibrator: Calibrator) -> list[Any]:
    found = calibrator.diagnostics_.warnings
    return [terminal.Text(f"  warning: {text}", "yellow") for text in found]
