"""The (γ, T) landscape of focal temperature scaling on the validation set."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from focalcal._arrays import softmax, to_numpy, two_columns
from focalcal._checks import check_labels
from focalcal.calibrators import Calibrator
from focalcal.calibrators.base import FitData, check_usable_logits, has_zeros
from focalcal.calibrators.focal import GAMMAS, TEMPERATURES
from focalcal.calibrators.grid import TopScores, grid_search, line_search
from focalcal.report.data import Landscape

ANCHORS = (-0.25, 1.0)
"""The values of γ whose best T define the line."""
SHOWN_GAMMAS = np.unique(np.concatenate([np.linspace(-0.5, 5, 12), GAMMAS]))
SHOWN_TEMPERATURES = np.geomspace(0.1, 5, 40)
MAX_ROWS = 20_000
"""The picture is drawn from at most this many rows; the searches use them too."""


def landscape(
    logits: Any, labels: Any, bins: int = 15, fitted: Calibrator | None = None
) -> Landscape:
    """Equal-mass ECE over γ and T, with the results of the grid and line searches.

    fitted: focal temperature scaling fitted by NLL, to show beside them.
    """
    z = two_columns(check_usable_logits(to_numpy(logits), zeros=True))
    y = to_numpy(check_labels(labels, len(z), z.shape[1], name="labels"))
    if len(z) > MAX_ROWS:
        keep = np.sort(np.random.default_rng(0).permutation(len(z))[:MAX_ROWS])
        z, y = z[keep], y[keep]
    if has_zeros(z):
        z = np.log(softmax(z) + (1e-3 / z.shape[1] if fitted is None else fitted.floor_))
    scores = TopScores(FitData(z, y, None), "adaptive_ece", bins)
    temperatures = np.asarray(TEMPERATURES)
    pairs = list(itertools.product(SHOWN_GAMMAS.tolist(), SHOWN_TEMPERATURES.tolist()))
    grid = grid_search(scores, GAMMAS, temperatures)
    line = line_search(scores, GAMMAS, temperatures, ANCHORS)
    ends = [grid_search(scores, (g,), temperatures).temperature for g in ANCHORS]
    slope = (ends[1] - ends[0]) / (ANCHORS[1] - ANCHORS[0])
    return Landscape(
        gammas=SHOWN_GAMMAS,
        temperatures=SHOWN_TEMPERATURES,
        errors=scores.exact(pairs).reshape(len(SHOWN_GAMMAS), -1),
        grid_gammas=np.asarray(GAMMAS),
        grid=(grid.gamma, grid.temperature),
        line=(line.gamma, line.temperature),
        lowest_nll=fitted and (float(fitted.gamma_), float(fitted.temperature_)),
        offset=ends[0] - slope * ANCHORS[0],
        slope=slope,
    )
