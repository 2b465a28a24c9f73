"""The choice of a calibrator, on the validation set alone."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any

from focalcal.calibrators import AutoCalibrator
from focalcal.calibrators.auto import default_candidates
from focalcal.errors import FitWarning


@dataclasses.dataclass(frozen=True)
class Choice:
    """What `AutoCalibrator` chose, and the cross-validated NLL of each candidate."""

    method: str
    scores: dict[str, float]


def choose(
    methods: Sequence[str], n_classes: int, logits: Any, labels: Any, folds: int = 5
) -> Choice:
    """The choice of `AutoCalibrator` among those of the given methods that it would consider.

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
    with warnings.catch_warnings():
        # The row of the chosen method carries the same notes.
        warnings.simplefilter("ignore", FitWarning)
        auto = AutoCalibrator(candidates, folds=folds).fit(logits, labels)
    return Choice(auto.method_, {row.method: row.nll for row in auto.table_})
