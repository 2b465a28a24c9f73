"""Fits to data too many to hold: from a sample of them, and sums over all.

A calibrator that can be fitted so has a `_fit_sums`, which takes `SampledData` where `_fit` takes
`FitData` and returns fields for `Diagnostics`, "before" and "n_per_class" among them. Every search
starts from the optimum of the sample, so the passes over everything only polish it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from focalcal import kernels
from focalcal.calibrators._newton import (
    Moments,
    Optimum,
    fit_inverse_temperature,
    in_range,
    moment_sums,
    moments_of,
    search,
)
from focalcal.calibrators.base import Calibrator, FitData
from focalcal.errors import InputError


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
    calibrator._diagnose(n=data.size, **calibrator._fit_sums(data))
    return calibrator


def sums_temperature(data: SampledData) -> tuple[Optimum, dict[str, Any]]:
    """The best β = 1/T, and "before", the NLL at β = 1, and "n_per_class" for `Diagnostics`."""
    start = fit_inverse_temperature(data.logits, data.labels, None)
    # The ends of the range are recognised from the origin, not from a start on a sample.
    begin = start.beta if start.kind == "inner" else 0.0
    first: dict[str, Any] = {}
    quick = kernels.fast(data.size * data.n_classes)

    def fit(double: bool) -> Optimum:
        def at(beta: float) -> Moments:
            settings = {"beta": beta, "quick": quick, "double": double}
            if first:
                return moments_of(data.total(moment_sums, weights=None, **settings))
            sums = data.total(first_sums, **settings)
            first["before"] = float(sums[5] / sums[4])
            first["n_per_class"] = tuple(sums[6:].astype(int).tolist())
            return moments_of(sums[:5])

        return search(at, begin)

    return in_range(fit, float(np.abs(data.logits).max())), first


def first_sums(logits: np.ndarray, labels: np.ndarray, **settings: Any) -> np.ndarray:
    """`moment_sums`, and what only one pass needs to find: NLL at β = 1 and class counts."""
    sums = moment_sums(logits, labels, None, plain=True, **settings)
    return np.concatenate([sums, np.bincount(labels, minlength=logits.shape[1])])
