"""What `--engine` does for evaluate, fit and apply: the same commands over many parquet files."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from focalcal.cli import _inputs, _slices, terminal
from focalcal.errors import FitWarning, InputError

if TYPE_CHECKING:
    from focalcal.metrics.streaming import StreamedEvaluation
    from focalcal.scale import Engine, ScaledFit, Source

EngineOption = Annotated[
    str | None,
    typer.Option(
        "--engine",
        help="Read parquet files in parts: stream (this machine's threads) or dask.",
    ),
]
SchedulerOption = Annotated[
    str | None,
    typer.Option("--scheduler", help="Address of a Dask scheduler, e.g. tcp://host:8786."),
]


def wanted(file: Path, engine: str | None, scheduler: str | None) -> bool:
    """Whether predictions are read in parts: an engine, or several parquet files were given."""
    from focalcal.formats import is_dataset_folder

    if scheduler is not None and engine is None:
        raise InputError(f"expected --engine dask with the scheduler {scheduler}")
    folder = file.is_dir() and not is_dataset_folder(file) and not _holds_answers(file)
    several = _inputs.is_pattern(file) and _inputs.files_of(file)[0].suffix == ".parquet"
    return engine is not None or folder or several


def _holds_answers(folder: Path) -> bool:
    """Whether these are files of language models (--format), not parts of a table."""
    endings = {path.suffix for path in folder.rglob("*")}
    return ".parquet" not in endings and bool(endings & {".jsonl", ".json", ".eval"})


@contextlib.contextmanager
def opened(
    file: Path, engine: str | None, scheduler: str | None, **keys: Any
) -> Iterator[tuple[Source, Engine]]:
    """The files and the engine; bad files are reported before a cluster is started."""
    from focalcal.scale import Source, open_engine

    source = Source.open(str(file), **keys)
    with open_engine(engine or "stream", scheduler) as running:
        yield source, running


def evaluate_files(
    file: Path,
    engine: str | None,
    scheduler: str | None,
    *,
    bins: int,
    json: bool,
    inputs: _inputs.Inputs,
    by: list[str] | None = None,
) -> None:
    """Measure in one pass and print values with the bounds of those that are not exact."""
    from focalcal import scale
    from focalcal.metrics.slicing import of_statistics

    with (
        opened(file, engine, scheduler, extra=by or (), **_keys(inputs)) as (source, running),
        terminal.progress("reading") as tick,
    ):
        if by:
            found = scale.statistics_by(source, running, bins=bins, progress=tick)
        else:
            result = scale.statistics(source, running, bins=bins, progress=tick).compute()
        passes, files = running.passes, len(source.paths)
    if by:
        _slices.show(of_statistics(found), file.name, json=json)
    elif json:
        terminal.print_json(_record(result, passes, files))
    else:
        _show(result, file.name, passes, files)


def fit(
    file: Path,
    engine: str | None,
    scheduler: str | None,
    *,
    method: str,
    floor: float | None,
    params: dict[str, Any],
    inputs: _inputs.Inputs,
) -> ScaledFit:
    """Fit on merged sums; warnings are left in the diagnostics."""
    from focalcal import scale

    with (
        opened(file, engine, scheduler, **_keys(inputs)) as (source, running),
        terminal.progress(f"fitting {method}") as tick,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", FitWarning)
        found = scale.fit(source, method, running, floor=floor, progress=tick, **params)
        names = source.partitions[0].columns.class_names
        if names:
            found.calibrator.class_names_ = names
        return found


def apply(
    file: Path,
    engine: str | None,
    scheduler: str | None,
    *,
    fitted: Any,
    output: Path,
    floor: float | None,
    inputs: _inputs.Inputs,
) -> int:
    """Write one calibrated file per file; the number of rows."""
    from focalcal import scale

    with (
        opened(file, engine, scheduler, **_keys(inputs, False)) as (
            source,
            running,
        ),
        terminal.progress("calibrating") as tick,
    ):
        scale.apply(source, fitted, output, running, floor=floor, progress=tick)
        return source.n


def _keys(
    inputs: _inputs.Inputs, labels_required: bool = True, classes: Any = None
) -> dict[str, Any]:
    keys = {f"{name}_key": inputs.given[name] for name in ("logits", "probs", "labels")}
    keys |= {name: inputs.given[name] for name in ("logits_prefix", "probs_prefix")}
    classes = inputs.classes or classes
    return {**keys, "classes": classes, "labels_required": labels_required}


def _record(result: StreamedEvaluation, passes: int, files: int) -> dict[str, Any]:
    bins = result.reliability
    return {
        "n": result.n,
        "n_classes": result.n_classes,
        "files": files,
        "passes": passes,
        "metrics": {
            name: {
                "value": s.value if math.isfinite(s.value) else None,
                "error_bound": s.error_bound,
            }
            for name, s in result.metrics.items()
        },
        "reliability": {
            "edges": bins.edges.tolist(),
            "counts": bins.counts.tolist(),
            "confidence_sums": bins.confidence_sums.tolist(),
            "correct_sums": bins.correct_sums.tolist(),
        },
    }


def _show(result: StreamedEvaluation, title: str, passes: int, files: int) -> None:
    from rich.table import Table

    from focalcal.cli.evaluate import reliability_sketch, shown

    table = Table(title=f"{title}: {result.n:,} samples, {result.n_classes} classes, {files} files")
    table.add_column("metric")
    table.add_column("value", justify="right")
    table.add_column("within ±", justify="right")
    for metric, found in shown(result.metrics):
        bound = metric.text(found.error_bound) if found.error_bound else "exact"
        table.add_row(metric.title, metric.text(found.value), bound)
    terminal.show(table, reliability_sketch(result.reliability), f"{passes} pass over the files.")
