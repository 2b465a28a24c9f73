"""A fine histogram of confidences, and how far what is read from it can be from the truth."""

from __future__ import annotations

import dataclasses
import math
from functools import cache

import numpy as np

from focalcal.bins import Bins, mean_gap, quantile_positions
from focalcal.metrics._ordered import Ordered, auroc, ks
from focalcal.metrics.smooth import smooth

_UNIFORM = 8192
_LOGIT = 8192
_MAX_LOGIT = 37.0
"""ln(2^53): beyond it 1 − p is below the resolution of float64."""


@cache
def fine_edges() -> np.ndarray:
    """Edges that are at most 1/8192 apart in probability and 0.0091 apart in logit.

    Networks put most confidences close to 1, where equally wide cells would lump them together.
    Exactly 0 and exactly 1 have cells of their own.
    """
    logits = np.linspace(-_MAX_LOGIT, _MAX_LOGIT, _LOGIT + 1)
    edges = np.concatenate(
        [
            np.linspace(0.0, 1.0, _UNIFORM + 1),
            1 / (1 + np.exp(-logits)),
            [np.nextafter(0.0, 1.0), np.nextafter(1.0, 0.0)],
        ]
    )
    edges = np.unique(edges)
    edges.flags.writeable = False
    return edges


@dataclasses.dataclass(frozen=True)
class Cells:
    """The non-empty cells of a fine histogram. All vectors are (G,).

    ordered: each cell as one group at its mean confidence; slack: the most that Σ|confidence −
    correct| over a cell's samples can be, 0 for a cell that holds a single value; width: hi − lo.
    """

    ordered: Ordered
    slack: np.ndarray
    width: np.ndarray

    @classmethod
    def of(cls, fine: Bins) -> Cells:
        some = fine.counts > 0
        low, high = fine.edges[:-1][some], fine.edges[1:][some]
        weights, hits = fine.counts[some], fine.correct_sums[some]
        single = np.nextafter(low, 1.0) >= high
        # A wrong sample is off by its confidence, at most hi; a right one by at most 1 − lo.
        slack = np.where(single, 0.0, (weights - hits) * high + hits * (1 - low))
        mean = fine.confidence_sums[some] / weights
        return cls(Ordered(mean, weights, hits), slack, np.where(single, 0.0, high - low))

    def ks_error(self) -> tuple[float, float]:
        """Running sums are exact between cells; inside one they stray by at most its slack."""
        o = self.ordered
        return float(ks(o)), float(self.slack.max() / o.total)

    def auroc(self) -> tuple[float, float]:
        """Pairs inside a cell count as ties: each is wrong by at most a half."""
        o = self.ordered
        wrong = o.weights - o.hits
        pairs = o.hits.sum() * wrong.sum()
        unsure = (o.hits * wrong)[self.slack > 0].sum() / 2
        return float(auroc(o)), float(unsure / pairs) if pairs > 0 else 0.0

    def adaptive_ece(self, m: int) -> tuple[float, float]:
        """Without the cells that hold a quantile, true and found bins are the same.

        Putting a cell back changes either error by at most its slack.
        """
        o = self.ordered
        cut = np.unique(quantile_positions(np.cumsum(o.weights), m))
        bound = 2 * self.slack[cut].sum() / o.total
        return float(mean_gap(o.equal_mass(m))), float(bound)

    def smooth_ece(self) -> tuple[float, float]:
        """Moving a residual r by δ changes smECE_σ by at most |r|·δ·√(2/π)/σ.

        σ − smECE_σ has slope ≥ 1, so the fixed point moves no further than smECE_σ does there.
        """
        o = self.ordered
        sigma = float(smooth(o))
        moved = float((self.slack * self.width).sum() / o.total)
        if moved == 0:
            return sigma, 0.0
        return sigma, min(moved * math.sqrt(2 / math.pi) / sigma, 1.0) if sigma > 0 else 1.0
