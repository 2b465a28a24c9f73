"""The best of a grid of (γ, T) by calibration error or NLL, from merged histograms.

Fixed bins and NLL are exact, in one pass for each POINTS_PER_PASS points. Equal-mass errors come
from a histogram of about 2,000 cells per point: the chosen point's error is within twice
the largest bound of the best one's.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from focalcal import bins as _bins
from focalcal.bins import Bins
from focalcal.calibrators import focal, temperature
from focalcal.calibrators._grid import Best
from focalcal.calibrators._odds import Point, point_log_odds
from focalcal.errors import InputError
from focalcal.ordered import Ordered, fine_edges

if TYPE_CHECKING:
    from focalcal.calibrators.base import Calibrator
    from focalcal.scale.fitting import StreamedData

POINTS_PER_PASS = 500
_EVERY = 8  # of the fine histogram's edges one in so many is kept
_ODDS = 2**21  # log-odds held at a time


@cache
def _cells() -> np.ndarray:
    edges = fine_edges()
    # Exactly 0 and exactly 1 keep the cells of their own.
    return np.unique(np.concatenate([edges[:2], edges[::_EVERY], edges[-2:]]))


def fit_grid(data: StreamedData, calibrator: Calibrator) -> dict[str, Any]:
    """Set γ and T of the calibrator to the best of its grid; return fields for `Diagnostics`."""
    if getattr(calibrator, "search", None) == "line" or calibrator.objective == "nll":
        raise InputError(
            "expected the search 'grid' by ECE, or 'gradient' by NLL, for a fit at scale, got "
            f"search={calibrator.search!r}, objective={calibrator.objective!r}"
        )
    two = calibrator.method == "focal-temperature"
    gammas = calibrator._gammas() if two else np.zeros(1)
    default = focal.TEMPERATURES if two else temperature.TEMPERATURES
    temperatures = temperature.check_temperatures(calibrator.temperatures, default)
    pairs = [(float(g), float(t)) for g in gammas for t in temperatures]
    errors: list[float] = []
    everything = [*pairs, (0.0, 1.0)]
    for i in range(0, len(everything), POINTS_PER_PASS):
        part = np.array(everything[i : i + POINTS_PER_PASS])
        fixed = calibrator.objective == "ece"
        edges = _bins.equal_width_edges(calibrator.bins) if fixed else _cells()
        sums = data.total(histograms, pairs=part, edges=edges)
        counts = sums[-data.source.n_classes :]
        tables = sums[: -len(counts)].reshape(3, len(part), -1)
        binned = Bins(edges, *tables)
        if fixed:
            errors += _bins.mean_gap(binned).tolist()
        else:
            rows = (Bins(edges, *(t[j] for t in tables)) for j in range(len(part)))
            cells = (Ordered.of_cells(row).equal_mass(calibrator.bins) for row in rows)
            errors += [float(_bins.mean_gap(b)) for b in cells]
    best = int(np.argmin(errors[:-1]))
    found = Best(*pairs[best], before=errors[-1], after=errors[best], points=len(pairs))
    calibrator.temperature_ = found.temperature
    searched = {"temperatures": temperatures}
    if two:
        calibrator.gamma_ = found.gamma
        searched["gammas"] = gammas
    outcome = found.outcome(calibrator.objective, **searched)
    return {**outcome, "converged": True, "n_per_class": tuple(counts.astype(int).tolist())}


def histograms(
    logits: np.ndarray, labels: np.ndarray, pairs: np.ndarray, edges: np.ndarray
) -> np.ndarray:
    """Counts, confidence sums and hits (3, M, bins) of the top class at pairs (M, 2), flat.

    The class counts follow.
    """
    correct = logits.argmax(axis=1) == labels
    points = [Point(t, (g,)) for g, t in pairs.tolist()]
    total = np.zeros((3, len(points), len(edges) - 1))
    size = max(1, _ODDS // len(points))
    for start in range(0, len(labels), size):
        rows = slice(start, start + size)
        odds = point_log_odds(logits[rows], points, double=True)
        with np.errstate(over="ignore"):
            confidence = 1.0 / (1.0 + np.exp(-odds))
        for j, row in enumerate(confidence):
            b = _bins.bin_samples(row, correct[rows], edges)
            total[:, j] += (b.counts, b.confidence_sums, b.correct_sums)
    return np.concatenate([total.reshape(-1), np.bincount(labels, minlength=logits.shape[1])])
