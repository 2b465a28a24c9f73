"""The choice of a calibrator, on the validation set alone."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from focalcal import calibrators
from focalcal._arrays import to_numpy
from focalcal.calibrators.base import mean_nll
from focalcal.errors import FitWarning, InputError

FOLDS = 5


@dataclasses.dataclass(frozen=True)
class Choice:
    """The method of lowest cross-validated NLL, and the NLL of each that was tried."""

    method: str
    scores: dict[str, float]


def choose(methods: Sequence[str], logits: Any, labels: Any, *, seed: int = 0) -> Choice:
    """The method whose predictions for held-out folds have the lowest mean NLL.

    >>> rng = np.random.default_rng(0)
    >>> z = 2 * rng.normal(size=(300, 3))
    >>> y = np.argmax(z + rng.gumbel(size=z.shape), axis=1)
    >>> choose(["identity", "temperature"], 4 * z, y).method
    'temperature'
    """
    logits, y = to_numpy(logits), to_numpy(labels)
    if len(y) < 2 * FOLDS:
        raise InputError(
            f"expected at least {2 * FOLDS} validation samples to choose a calibrator, got {len(y)}"
        )
    fold = np.random.default_rng(seed).permutation(len(y)) % FOLDS
    scores = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        for method in methods:
            scores[method] = float(
                np.mean(
                    [
                        mean_nll(
                            calibrators.make(method)
                            .fit(logits[fold != i], y[fold != i])
                            .predict_log_proba(logits[fold == i]),
                            y[fold == i],
                        )
                        for i in range(FOLDS)
                    ]
                )
            )
    finite = {m: s for m, s in scores.items() if np.isfinite(s)}
    return Choice(min(finite or scores, key=lambda m: scores[m]), scores)
