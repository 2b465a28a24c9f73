"""The best of a grid of (γ, T) by calibration error, from histograms of all samples.

Fixed bins are exact, in one pass for each POINTS_PER_PASS points. Equal-mass errors come from a
histogram of about 2,000 cells per point: the chosen point's error is within twice the largest bound
of the best one's.
"""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import numpy as np
from scipy.special import expit

from focalcal import bins as _bins
from focalcal.bins import Bins
from focalcal.calibrators._odds import Point, point_log_odds
from focalcal.calibrators.grid import Best
from focalcal.calibrators.sums import SampledData
from focalcal.ordered import Ordered, fine_edges

POINTS_PER_PASS = 500
_EVERY = 8  # of the fine histogram's edges one in so many is kept
_ODDS = 2**21  # log-odds held at a time


def sums_grid(
    data: SampledData, objective: str, bins: int, gammas: np.ndarray, temperatures: np.ndarray
) -> tuple[Best, dict[str, Any]]:
    """The best of gammas × temperatures, and "n_per_class" for `Diagnostics`."""
    pairs = list(product(gammas.tolist(), temperatures.tolist()))
    everything = [*pairs, (0.0, 1.0)]
    fixed = objective == "ece"
    edges = _bins.equal_width_edges(bins) if fixed else _cells()
    errors: list[float] = []
    for i in range(0, len(everything), POINTS_PER_PASS):
        part = np.array(everything[i : i + POINTS_PER_PASS])
        sums = data.total(histograms, pairs=part, edges=edges)
        counts = sums[-data.n_classes :]
        tables = sums[: -data.n_classes].reshape(len(part), 3, -1)
        for table in tables:
            b = Bins(edges, *table)
            b = b if fixed else Ordered.of_cells(b).equal_mass(bins)
            errors.append(float(_bins.mean_gap(b)))
    best = int(np.argmin(errors[:-1]))
    found = Best(*pairs[best], before=errors[-1], after=errors[best], points=len(pairs))
    return found, {"converged": True, "n_per_class": tuple(counts.astype(int).tolist())}


def histograms(
    logits: np.ndarray, labels: np.ndarray, pairs: np.ndarray, edges: np.ndarray
) -> np.ndarray:
    """Counts, confidence sums and hits (M, 3, bins) of the top class at pairs (M, 2), flat.

    The class counts follow.
    """
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
    return np.concatenate([total.reshape(-1), np.bincount(labels, minlength=logits.shape[1])])


@cache
def _cells() -> np.ndarray:
    edges = fine_edges()
    # Exactly 0 and exactly 1 keep the cells of their own.
    return np.unique(np.concatenate([edges[:2], edges[::_EVERY], edges[-2:]]))
