"""The choice of a calibrator, on the validation set alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from focalcal._arrays import to_numpy, two_columns
from focalcal.calibrators import make
from focalcal.calibrators.auto import held_out_losses, mean_and_error
from focalcal.calibrators.base import FitData


@dataclasses.dataclass(frozen=True)
class Choice:
    """The chosen method, and the cross-validated NLL of each candidate."""

    method: str
    scores: dict[str, float]


def choose(methods: Sequence[str], logits: Any, labels: Any, folds: int = 5) -> Choice:
    """The first method whose cross-validated NLL is within one standard error of the best.

    Methods are given from simple to complex. Binning, which is not made for low NLL, is a
    candidate only where there is nothing else. Nothing is fitted to all the data here: the report
    fits every method once, for its row.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> z = 2 * rng.normal(size=(300, 3))
    >>> y = np.argmax(z + rng.gumbel(size=z.shape), axis=1)
    >>> choose(["identity", "temperature"], 4 * z, y).method
    'temperature'

    Breiman et al. 1984, Sec. 3.4.3.
    """
    names = [m for m in methods if m not in ("histogram", "bbq")]
    names = names if len(names) > 1 else list(methods)
    z = two_columns(to_numpy(logits).astype(np.float64))
    data = FitData(z, to_numpy(labels).astype(np.int64), np.ones(len(z)))
    losses, sizes = held_out_losses([make(name) for name in names], data, folds)
    means = {name: float(mean_and_error(loss, sizes)[0]) for name, loss in zip(names, losses)}
    best = losses[int(np.argmin(list(means.values())))]
    gaps = zip(names, [mean_and_error(loss - best, sizes) for loss in losses])
    return Choice(next(name for name, (excess, error) in gaps if excess <= error), means)
