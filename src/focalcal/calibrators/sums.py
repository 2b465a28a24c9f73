"""Fits to data too many to hold: from a sample of them, and sums over all.

A calibrator that can be fitted so has a `_fit_sums`, which takes `SampledData` where `_fit` takes
`FitData` and returns fields for `Diagnostics`, "before" and "n_per_class" among them. Every search
starts from the optimum of the sample, so the passes over everything only polish it.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from focalcal import kernels
from focalcal.calibrators._newton import (
    Moments,
    Optimum,
    fit_inverse_temperature,
    moment_sums,
    moments_of,
    search,
)
from focalcal.calibrators.base import Calibrator, Diagnostics, FitData
from focalcal.errors import FitWarning, InputError


@dataclasses.dataclass(frozen=True)
class SampledData(FitData):
    """A sample of the data, and the way to sums over all of them.

    size: how many samples there are in all; total: `total(function, **settings)` is the sum of
    `function(logits, labels, **settings)`, an array, over all of them, in one pass.
    """

    size: int
    total: Callable[..., np.ndarray]


def takes_sums(kind: type[Calibrator]) -> bool:
    """Whether calibrators of this class can be fitted so."""
    return kind._fit_sums is not None


def fit_sums(calibrator: Calibrator, data: SampledData) -> Calibrator:
    """Fit a calibrator that has a `_fit_sums`; returns it."""
    calibrator._check_params()
    if calibrator.task != "auto":
        raise InputError(f"expected task 'auto' for a fit at scale, got {calibrator.task!r}")
    calibrator.n_classes_ = data.n_classes
    outcome = {"objective": "nll", **calibrator._fit_sums(data)}
    counts = outcome["n_per_class"]
    missing = sum(c == 0 for c in counts)
    if missing:
        outcome["warnings"] += (
            f"no calibration sample of {missing} of {len(counts)} classes; "
            "what is fitted says nothing about them",
        )
    calibrator.diagnostics_ = Diagnostics(n=data.size, **outcome)
    for message in calibrator.diagnostics_.warnings:
        warnings.warn(f"{type(calibrator).__name__}: {message}", FitWarning, stacklevel=3)
    return calibrator


def sums_temperature(data: SampledData) -> tuple[Optimum, dict[str, Any]]:
    """The best β = 1/T, and "before", the NLL at β = 1, and "n_per_class" for `Diagnostics`."""
    start = fit_inverse_temperature(data.logits, data.labels, None)
    first: dict[str, Any] = {}
    unit = float(np.abs(data.logits).max())
    # As in memory: squares of logits outside these decades leave the range of float32.
    unit = 1.0 if unit == 0 or 1e-9 < unit < 1e9 else unit
    settings = {"unit": unit, "quick": kernels.fast(data.size * data.n_classes)}

    def at(beta: float) -> Moments:
        if first:
            return moments_of(data.total(sums_at, beta=beta, **settings))
        sums = data.total(first_sums, beta=beta, **settings)
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


def sums_at(
    logits: np.ndarray, labels: np.ndarray, beta: float, unit: float, quick: bool
) -> np.ndarray:
    z = logits if unit == 1 else logits / unit
    return moment_sums(z, labels, None, beta, quick=quick)


def first_sums(
    logits: np.ndarray, labels: np.ndarray, beta: float, unit: float, quick: bool
) -> np.ndarray:
    """`sums_at`, and what only one pass needs to find out: NLL at β = 1 and class counts."""
    counts = np.bincount(labels, minlength=logits.shape[1])
    if unit == 1:
        sums = moment_sums(logits, labels, None, beta, plain=True, quick=quick)
        return np.concatenate([sums, counts])
    with np.errstate(over="ignore"):
        plain = moment_sums(logits, labels, None, 1.0, quick=False)[0]
    return np.concatenate([sums_at(logits, labels, beta, unit, quick), [plain], counts])
