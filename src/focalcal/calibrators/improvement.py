"""Post-hoc improvement: how much of a proper loss recalibration removes, and what remains."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from focalcal._arrays import to_numpy, two_columns
from focalcal._checks import check_labels
from focalcal.calibrators.auto import held_out, mean_and_error
from focalcal.calibrators.base import Calibrator, FitData, check_usable_logits
from focalcal.calibrators.temperature import Identity


@dataclasses.dataclass(frozen=True)
class Improvement:
    """value = removed + stays: the mean loss, and its parts by a cross-fitted calibrator.

    `removed` is the calibration error that the calibrator corrects, negative if it does harm;
    `stays` is the refinement loss, which only a better classifier lowers.
    """

    value: float
    removed: float
    standard_error: float
    stays: float


def improvement(
    logits: Any, y: Any, calibrator: Calibrator, folds: int = 5
) -> dict[str, Improvement]:
    """The split of "nll" and "brier" of logits (N, K), or (N,) of class 1, with labels y (N,).

    Every sample is recalibrated by a fit without its fold, so that over-fitting is not counted as
    an improvement. The better the calibrator, the closer `removed` is to the whole
    calibration error, from below.

    >>> from focalcal.calibrators import TemperatureScaling
    >>> rng = np.random.default_rng(0)
    >>> z = 2 * rng.normal(size=(2000, 3))
    >>> y = np.argmax(z + rng.gumbel(size=z.shape), axis=1)
    >>> {k: round(v.removed, 2) for k, v in improvement(4 * z, y, TemperatureScaling()).items()}
    {'nll': 0.55, 'brier': 0.08}

    After the calibration–refinement split of proper losses: DeGroot and Fienberg, The
    Statistician 32, 1983; estimated by recalibration: Berta et al. 2025.
    """
    z = two_columns(to_numpy(check_usable_logits(logits, zeros=True)).astype(np.float64))
    labels = to_numpy(check_labels(y, *z.shape, name="y")).astype(np.int64)
    data = FitData(z, labels, np.ones(len(z)))
    held = held_out([Identity(), calibrator], data, folds)
    before, after = held.log_p
    found = loss_split(held.labels, before, after, held.sizes)
    return found if np.ndim(logits) == 2 and np.shape(logits)[1] > 1 else counted_once(found)


def loss_split(
    labels: np.ndarray, before: np.ndarray, after: np.ndarray, sizes: np.ndarray
) -> dict[str, Improvement]:
    """The split of "nll" and "brier" from log p (N, K) before and after; sizes: weights (N,)."""
    losses = [_losses(log_p, labels) for log_p in (before, after)]
    return {name: _split(losses[0][name], losses[1][name], sizes) for name in losses[0]}


def counted_once(split: dict[str, Improvement]) -> dict[str, Improvement]:
    """The split with a Brier score over class 1 only, as for one column."""
    halves = {name: value / 2 for name, value in dataclasses.asdict(split["brier"]).items()}
    return split | {"brier": Improvement(**halves)}


def _losses(log_p: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    p, own = np.exp(log_p), log_p[np.arange(len(labels)), labels]
    return {"nll": -own, "brier": np.sum(p**2, axis=1) - 2 * np.exp(own) + 1}


def _split(before: np.ndarray, after: np.ndarray, sizes: np.ndarray) -> Improvement:
    with np.errstate(invalid="ignore"):
        gain = np.where(before == after, 0.0, before - after)  # both may be infinite
    removed, error = mean_and_error(gain, sizes)
    value, stays = (float(mean_and_error(each, sizes)[0]) for each in (before, after))
    return Improvement(value, float(removed), float(error), stays)
