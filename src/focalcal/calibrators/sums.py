"""Fits to data that do not fit in memory: from a sample, and sums over all samples.

The `_fit` of a calibrator with `takes_sums` also accepts `SampledData`. Every search starts from
the optimum of the sample, so that few passes over all samples are needed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache, partial
from itertools import product
from typing import Any

import numpy as np
from scipy.special import expit

from focalcal import bins as _bins
from focalcal import kernels
from focalcal._checks import checking
from focalcal.bins import Bins
from focalcal.calibrators._floor import fit_floor, floored, has_zeros
from focalcal.calibrators._newton import Optimum, fit_inverse_temperature, moment_sums
from focalcal.calibrators.base import Calibrator, FitData
from focalcal.calibrators.grid import Best, Point, point_log_odds
from focalcal.errors import InputError
from focalcal.ordered import Ordered, fine_edges

POINTS_PER_PASS = 500
_EVERY = 8  # one in this many edges of the fine histogram is kept
_ODDS = 2**21  # log-odds held at a time


@dataclasses.dataclass(frozen=True)
class SampledData(FitData):
    """A sample of the data, with access to sums over all of them.

    size: the total number of samples; total: `total(function, **settings)` is the sum of
    `function(logits, labels, **settings)`, an array, over all of them, in one pass.
    """

    size: int
    total: Callable[..., np.ndarray]

    @property
    def large(self) -> bool:
        """Whether sums use compiled loops."""
        return kernels.fast(self.size * self.n_classes)


def fit_sums(calibrator: Calibrator, data: SampledData) -> Calibrator:
    """Fit a calibrator that has `takes_sums`; returns it.

    A floor is learnt if the sample has logits of −∞; without one, such logits are an error.
    """
    with checking(calibrator):
        calibrator._check_params()
    if calibrator.task != "auto":
        raise InputError(f"expected task 'auto' for a fit at scale, got {calibrator.task!r}")
    calibrator.n_classes_ = data.n_classes
    if has_zeros(data.logits):
        sample = data.logits, data.labels, None
        calibrator.floor_ = fit_floor(*sample, lambda *part: calibrator._floor_loss(FitData(*part)))
    floor = calibrator.floor_
    known: dict[str, Any] = {}

    def total(function: Callable[..., np.ndarray], **settings: Any) -> np.ndarray:
        settings |= {"then": function, "floor": floor}
        if known:
            return data.total(sums_above, first=False, **settings)
        sums = data.total(sums_above, first=True, quick_first=data.large, **settings)
        loss, n, *counts = sums[: 2 + data.n_classes].tolist()
        known.update(before=loss / n, n_per_class=tuple(map(int, counts)))
        return sums[2 + data.n_classes :]

    above = dataclasses.replace(data, logits=_above(data.logits, floor), total=total)
    outcome = calibrator._fit(above)
    calibrator._diagnose(n=data.size, **{"warnings": (), **known, **outcome})
    return calibrator


def sums_above(
    logits: np.ndarray,
    labels: np.ndarray,
    then: Callable[..., np.ndarray],
    *,
    floor: float,
    first: bool,
    quick_first: bool = False,
    **settings: Any,
) -> np.ndarray:
    """The sums of a function of the logits above a floor.

    first: prepend the NLL of the softmax, the number of samples and that of each class.
    """
    sums = then(_above(logits, floor), labels, **settings)
    if not first:
        return sums
    # Compiled loops replace −∞ with the lowest finite number.
    own = moment_sums(logits, labels, None, 1.0, quick=quick_first and floor == 0)[[0, 4]]
    return np.concatenate([own, np.bincount(labels, minlength=logits.shape[1]), sums])


def _above(logits: np.ndarray, floor: float) -> np.ndarray:
    """The logits above a floor, in float64; unchanged if it is 0."""
    if floor > 0:
        return floored(logits.astype(np.float64), floor)
    if has_zeros(logits):
        raise InputError(
            "expected no probabilities of 0, as in the sample that the fit starts from, got some; "
            "give a floor such as 1e-12"
        )
    return logits


def best_temperature(data: FitData) -> Optimum:
    """The β = 1/T of lowest NLL."""
    total = None
    if isinstance(data, SampledData):
        total = partial(data.total, moment_sums, weights=None, quick=data.large)
    return fit_inverse_temperature(data.logits, data.labels, data.weights, total)


def sums_grid(
    data: SampledData, objective: str, bins: int, gammas: np.ndarray, temperatures: np.ndarray
) -> tuple[Best, float]:
    """The best of gammas × temperatures by ECE, and the ECE without calibration.

    Fixed bins are exact, with one pass per POINTS_PER_PASS points. Equal-mass errors come from a
    histogram of about 2,000 cells per point: the error of the chosen point exceeds that of the best
    by at most twice the largest bound.
    """
    pairs = list(product(gammas.tolist(), temperatures.tolist()))
    everything = [*pairs, (0.0, 1.0)]
    fixed = objective == "ece"
    edges = _bins.equal_width_edges(bins) if fixed else _cells()
    errors: list[float] = []
    for i in range(0, len(everything), POINTS_PER_PASS):
        part = np.array(everything[i : i + POINTS_PER_PASS])
        sums = data.total(histograms, pairs=part, edges=edges)
        for table in sums.reshape(len(part), 3, -1):
            b = Bins(edges, *table)
            b = b if fixed else Ordered.of_cells(b).equal_mass(bins)
            errors.append(float(_bins.mean_gap(b)))
    best = int(np.argmin(errors[:-1]))
    return Best(*pairs[best], error=errors[best], points=len(pairs)), errors[-1]


def histograms(
    logits: np.ndarray, labels: np.ndarray, pairs: np.ndarray, edges: np.ndarray
) -> np.ndarray:
    """Counts, confidence sums and hits (M, 3, bins) of the top class at pairs (M, 2), flattened."""
    correct = logits.argmax(axis=1) == labels
    points = [Point(t, (g,)) for g, t in pairs.tolist()]
    total = np.zeros((len(points), 3, len(edges) - 1))
    size = max(1, _ODDS // len(points))
    for start in range(0, len(labels), size):
        rows = slice(start, start + size)
        odds = point_log_odds(logits[rows], points, double=True)
        for table, row in zip(total, odds):
            b = _bins.bin_samples(expit(row), correct[rows], edges)
            table += (b.counts, b.confidence_sums, b.correct_sums)
    return total.reshape(-1)


@cache
def _cells() -> np.ndarray:
    edges = fine_edges()
    # Exactly 0 and exactly 1 keep their own cells.
    return np.unique(np.concatenate([edges[:2], edges[::_EVERY], edges[-2:]]))
