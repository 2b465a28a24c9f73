"""The choice of a calibrator, on the validation set alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from focalcal._arrays import to_numpy, two_columns
from focalcal._checks import check_labels, check_logits
from focalcal.calibrators import make
from focalcal.calibrators.auto import default_candidates, held_out_losses, mean_and_error, simplest
from focalcal.calibrators.base import FitData


@dataclasses.dataclass(frozen=True)
class Choice:
    """The method that `AutoCalibrator` would choose, and the cross-validated NLL of each."""

    method: str
    scores: dict[str, float]


def choose(
    methods: Sequence[str], n_classes: int, logits: Any, labels: Any, folds: int = 5
) -> Choice:
    """The choice of `AutoCalibrator` among those of the given methods that it would consider.

    Nothing is fitted to all the data here: the report fits every method once, for its row.

    Where it would consider none of them (but to leave things as they are), it takes them all.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> z = 2 * rng.normal(size=(300, 3))
    >>> y = np.argmax(z + rng.gumbel(size=z.shape), axis=1)
    >>> choose(["identity", "temperature"], 3, 4 * z, y).method
    'temperature'
    """
    usual = default_candidates(len(labels), n_classes)
    candidates = tuple(m for m in usual if m in methods)
    if len(candidates) < 2:
        candidates = tuple(methods)
    z = two_columns(check_logits(to_numpy(logits)))
    y = to_numpy(check_labels(labels, len(z), z.shape[1], name="labels"))
    data = FitData(z, y, np.ones(len(y)))
    losses = {name: held_out_losses(make(name), data, folds) for name in candidates}
    scores = {name: float(mean_and_error(losses[name], data.weights)[0]) for name in losses}
    return Choice(simplest(losses, data.weights), scores)
