"""Calibrators fitted to predictions of any number: merged sums, few passes.

Every search starts from the optimum of a sample, so the passes over everything only polish it.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from focalcal import calibrators
from focalcal._arrays import two_columns
from focalcal.calibrators._newton import (
    Moments,
    Optimum,
    fit_inverse_temperature,
    moment_sums,
    moments_of,
    search,
)
from focalcal.calibrators.base import Calibrator, Diagnostics
from focalcal.calibrators.temperature import degenerate_notes
from focalcal.errors import FitWarning, InputError
from focalcal.scale import _affine, _focal, _grids
from focalcal.scale.engines import Engine, Progress, StreamEngine
from focalcal.scale.source import Partition, Source

METHODS = ("temperature", "focal-temperature", "structured-vector", "structured-matrix")
"""The methods whose fit is a sum over samples; the others are fitted in memory, to a sample."""
SAMPLE_ROWS = 2**17


@dataclasses.dataclass(frozen=True)
class ScaledFit:
    """A fitted calibrator and how often the predictions were read for it (the sample aside)."""

    calibrator: Calibrator
    passes: int
    n: int


@dataclasses.dataclass(frozen=True)
class StreamedData:
    """What every fit works on: the source, who reads it, a sample of it, and a floor for zeros."""

    source: Source
    engine: Engine
    logits: np.ndarray
    labels: np.ndarray
    floor: float | None
    progress: Progress | None

    def total(self, function: Callable[..., np.ndarray], **settings: Any) -> np.ndarray:
        """Sums over all samples of `function(logits, labels, **settings)`, in one pass."""
        work = partial(partition_sums, function=function, floor=self.floor, settings=settings)
        return self.engine.map_reduce(work, self.source.partitions, add, self.progress)


def fit(
    source: Source,
    method: str = "temperature",
    engine: Engine | None = None,
    *,
    floor: float | None = None,
    sample_rows: int = SAMPLE_ROWS,
    progress: Progress | None = None,
    **params: Any,
) -> ScaledFit:
    """Fit a calibrator (see METHODS; `params` as in memory) to all predictions of a source.

    floor: for probabilities of exactly zero, as in `Predictions.as_logits`.
    sample_rows: size of the sample that the search starts from; the result does not depend on it.

    The temperature is that of a fit in memory to 1e-9. Focal temperature and structured scaling
    reach the same NLL to 1e-9. Searches by ECE find the same grid point; by equal-mass ECE, one
    whose error is within the bound of `_grids` of the best.
    """
    if method not in METHODS:
        raise InputError(
            f"expected a method of {', '.join(METHODS)}; got {method!r}, which is fitted in memory:"
            " leave out the engine and give one file, for example a sample of the predictions"
        )
    engine = engine or StreamEngine()
    calibrator = calibrators.make(method, **params)
    calibrator._check_params()
    if calibrator.task != "auto":
        raise InputError(f"expected task 'auto' for a fit at scale, got {calibrator.task!r}")
    sample = source.sample(sample_rows)
    logits = two_columns(sample.as_logits(floor))
    data = StreamedData(source, engine, logits, sample.labels, floor, progress)
    started = engine.passes
    calibrator.n_classes_ = source.n_classes
    by_nll = getattr(calibrator, "objective", "nll") == "nll"
    by_gradient = getattr(calibrator, "search", None) in (None, "gradient")
    if by_nll and by_gradient:
        outcome = _fit_nll(data, calibrator)
    else:
        outcome = _grids.fit_grid(data, calibrator)
    calibrator.diagnostics_ = _diagnostics(source.n, outcome)
    for message in calibrator.diagnostics_.warnings:
        warnings.warn(f"{type(calibrator).__name__}: {message}", FitWarning, stacklevel=2)
    return ScaledFit(calibrator, engine.passes - started, source.n)


def _fit_nll(data: StreamedData, calibrator: Calibrator) -> dict[str, Any]:
    plain, first = fit_temperature(data)
    temperature = 1.0 / plain.beta if plain.beta > 0 else math.inf
    outcome = {
        "objective": "nll",
        "before": first["before"],
        "after": plain.loss,
        "iterations": plain.iterations,
        "converged": plain.converged,
        "at_edge": plain.kind in ("chance", "separable"),
        "n_per_class": first["n_per_class"],
        "warnings": tuple(degenerate_notes(plain.kind, temperature)),
    }
    calibrator.temperature_ = temperature
    if calibrator.method == "focal-temperature":
        calibrator.gamma_ = 0.0
        if plain.kind == "inner":
            outcome |= _focal.fit_focal(data, calibrator)
    elif calibrator.method != "temperature":
        outcome |= _affine.fit_structured(data, calibrator, outcome["warnings"])
    return outcome


def fit_temperature(data: StreamedData) -> tuple[Optimum, dict[str, Any]]:
    """The best β = 1/T by merged Newton steps; and the NLL at β = 1 and the class counts."""
    start = fit_inverse_temperature(data.logits, data.labels, None)
    first: dict[str, Any] = {}
    unit = float(np.abs(data.logits).max())
    # As in memory: squares of logits outside these decades leave the range of float32.
    unit = 1.0 if unit == 0 or 1e-9 < unit < 1e9 else unit

    def at(beta: float) -> Moments:
        if first:
            return moments_of(data.total(sums_at, beta=beta, unit=unit))
        sums = data.total(first_sums, beta=beta, unit=unit)
        first["before"] = float(sums[5] / sums[4])
        first["n_per_class"] = tuple(sums[6:].astype(int).tolist())
        return moments_of(sums[:5])

    # The ends of the range are recognised from the origin, not from a start on a sample.
    begin = start.beta * unit if start.kind == "inner" else 0.0
    try:
        best = search(at, begin)
    except OverflowError as error:
        raise InputError(
            "expected logits whose squares fit their precision, got larger ones than in the "
            "sample; divide all logits by a constant"
        ) from error
    best = dataclasses.replace(best, beta=best.beta / unit)
    if best.kind == "separable" and best.beta < 1:  # as in memory: never warmer than the logits
        best = dataclasses.replace(best, beta=1.0, loss=first["before"])
    return best, first


def sums_at(logits: np.ndarray, labels: np.ndarray, beta: float, unit: float) -> np.ndarray:
    return moment_sums(logits if unit == 1 else logits / unit, labels, None, beta)


def first_sums(logits: np.ndarray, labels: np.ndarray, beta: float, unit: float) -> np.ndarray:
    """`sums_at`, and what only one pass needs to find out: NLL at β = 1 and class counts."""
    counts = np.bincount(labels, minlength=logits.shape[1])
    if unit == 1:
        return np.concatenate([moment_sums(logits, labels, None, beta, plain=True), counts])
    with np.errstate(over="ignore"):
        plain = moment_sums(logits, labels, None, 1.0)[0]
    return np.concatenate([sums_at(logits, labels, beta, unit), [plain], counts])


def partition_sums(
    partition: Partition,
    function: Callable[..., np.ndarray],
    floor: float | None,
    settings: dict[str, Any],
) -> np.ndarray:
    """Sums of one row group."""
    total: Any = 0.0
    for batch in partition.batches():
        total = total + function(two_columns(batch.as_logits(floor)), batch.labels, **settings)
    return total


def add(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a + b


def _diagnostics(n: int, outcome: dict[str, Any]) -> Diagnostics:
    notes = list(outcome["warnings"])
    counts = outcome["n_per_class"]
    missing = sum(c == 0 for c in counts)
    if missing:
        notes.append(
            f"no calibration sample of {missing} of {len(counts)} classes; "
            "what is fitted says nothing about them"
        )
    return Diagnostics(n=n, **{**outcome, "warnings": tuple(notes)})
