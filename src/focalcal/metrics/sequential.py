"""E-processes over batches: tests that may be checked after every batch.

A batch yields, for each of several alternatives, a ratio of likelihoods (alternative to
hypothesis), whose mean is at most 1 if the hypothesis holds, whatever came before. Their running
product therefore ever exceeds 1/α with probability at most α (Ville 1939). As the time of a change
is unknown, the evidence is a mixture over alternatives and over starting batches s, with weights
1/(s(s+1)):

    E_t = Σ_s w_s · mean over alternatives of Π_{u=s..t} ratio_u

Shafer 2021; Ramdas et al. 2023; Shin, Ramdas & Rinaldo 2024 for the mixture over starts.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Self

import numpy as np

from focalcal.bins import Bins
from focalcal.errors import FileFormatError

SHIFTS = (-0.8, -0.4, -0.2, -0.1, 0.0, 0.1, 0.2, 0.4, 0.8)
SLOPES = (0.6, 0.8, 1.0, 1.25, 1.6)
MISCALIBRATED = np.array([(a, b) for a in SHIFTS for b in SLOPES if (a, b) != (0.0, 1.0)])
"""Alternatives to "calibrated": log-odds of being right = shift + slope · log-odds claimed."""
EFFECTS = (0.5, 1.0, 2.0, 3.0)
"""Alternatives to a standard normal z: its mean."""


@dataclasses.dataclass(frozen=True)
class EProcess:
    """Evidence against a hypothesis after some batches.

    logs: (A,) logarithm of the weighted products of each alternative, summed over starts, −∞
    before the first batch; batches: how many were seen; largest: the largest log E so far, which a
    later batch cannot take back.
    """

    logs: np.ndarray = dataclasses.field(default_factory=lambda: np.array([-math.inf]))
    batches: int = 0
    largest: float = 0.0

    def update(self, log_ratios: np.ndarray) -> EProcess:
        """After a further batch with these logarithms of likelihood ratios, (A,).

        >>> e = EProcess()
        >>> for _ in range(5):
        ...     e = e.update(np.log([3.0]))
        >>> e.batches, round(e.p_value, 4)
        (5, 0.0072)
        """
        t = self.batches + 1
        logs = np.logaddexp(self.logs, -math.log(t * (t + 1))) + log_ratios
        mixture = np.logaddexp.reduce(logs) - math.log(len(logs))
        # Starts that are still to come keep their weight, 1/(t+1) in all.
        now = float(np.logaddexp(mixture, -math.log(t + 1)))
        return EProcess(logs, t, max(self.largest, now))

    @property
    def p_value(self) -> float:
        """1/max E: ever at most α with probability at most α."""
        return math.exp(-max(self.largest, 0.0))

    def to_dict(self) -> dict[str, Any]:
        logs = [None if v == -math.inf else v for v in self.logs.tolist()]
        return {"logs": logs, "batches": self.batches, "largest": self.largest}

    @classmethod
    def from_dict(cls, record: Any) -> Self:
        try:
            logs = [-math.inf if v is None else float(v) for v in record["logs"]]
            return cls(np.array(logs), int(record["batches"]), float(record["largest"]))
        except (TypeError, KeyError, ValueError) as error:
            raise FileFormatError(f"expected an e-process, got {record!r:.80}") from error


def miscalibration_ratios(
    confidence: np.ndarray, correct: np.ndarray, tolerance: float = 0.0
) -> np.ndarray:
    """Log-likelihood ratios (A,) of `MISCALIBRATED` to "right with probability = confidence".

    With a tolerance the hypothesis is "within ± tolerance of the confidence"; an alternative is
    then compared with the closest such probability, which keeps the mean ratio at most 1.
    Exact for every number of samples, which may be added up batch by batch.
    """
    from scipy.special import logit

    # A confidence that rounds to 1 is taken as 1 − ε of its precision.
    limit = math.log(2 / np.finfo(confidence.dtype).eps)
    ends = (np.clip(confidence + t, 0.0, 1.0) for t in np.array([-tolerance, 0.0, tolerance]))
    low, odds, high = (np.clip(logit(end), -limit, limit) for end in ends)
    sign = np.where(correct, 1.0, -1.0)

    def log_chance(odds: np.ndarray) -> np.ndarray:
        """Of what was seen, ln 1/(1 + exp(−sign·odds)); SciPy's `log_expit` is slower."""
        return np.minimum(sign * odds, 0) - np.log1p(np.exp(-np.abs(odds)))

    def ratio(shift: float, slope: float) -> float:
        other = shift + slope * odds
        return (log_chance(other) - log_chance(np.clip(other, low, high))).sum()

    return np.array([ratio(*alternative) for alternative in MISCALIBRATED.tolist()])


def normal_ratios(z: float, *, two_sided: bool) -> np.ndarray:
    """Log-likelihood ratios of means in `EFFECTS` (and their negatives) to a standard normal."""
    means = np.array(EFFECTS)
    means = np.concatenate([-means, means]) if two_sided else means
    return means * z - means**2 / 2


def accuracy_ratios(past: Bins, batch: Bins) -> np.ndarray:
    """Log-ratios against "accuracy at equal confidence is as in the past".

    Given how many samples of past and batch together are right in a bin, the number in the batch is
    hypergeometric, whatever the accuracy. Its standardised sum over bins (Cochran, Mantel &
    Haenszel) sees a common change, its χ² over bins any other. As the past includes every earlier
    batch, the statistics of different batches are independent.
    """
    n, m = batch.counts, past.counts
    total, right = n + m, batch.correct_sums + past.correct_sums
    some = (n > 0) & (m > 0)
    n, total, right = n[some], total[some], right[some]
    share = right / total
    off = batch.correct_sums[some] - n * share
    variance = n * share * (1 - share) * (total - n) / np.maximum(total - 1, 1)
    return _ratios_of(off.sum(), variance.sum(), off, variance)


def confidence_ratios(past: Bins, batch: Bins) -> np.ndarray:
    """Log-ratios against "confidences are distributed as in the past"; labels take no part.

    The batch's bin counts are compared with those of past and batch together: a rank test (mean
    bin) sees a common shift, χ² over bins any other change. Independent between batches.
    """
    n, both = float(batch.total), batch.counts + past.counts
    total = float(both.sum())
    share = both / total
    rank = np.cumsum(share) - share / 2
    factor = n * (total - n) / max(total - 1, 1)
    shift = float((batch.counts * rank).sum() - n * (share * rank).sum())
    spread = factor * float((share * rank**2).sum() - (share * rank).sum() ** 2)
    off, variance = batch.counts - n * share, factor * share
    # Σ off = 0 takes one degree of freedom: the covariance of counts is diag(share) − share·shareᵀ.
    return _ratios_of(shift, spread, off, variance, lost=1)


def _ratios_of(
    shift: float, spread: float, off: np.ndarray, variance: np.ndarray, lost: int = 0
) -> np.ndarray:
    """Ratios of the normal of a signed sum, and of that of the χ² of its parts."""
    from scipy.special import chdtrc, ndtri

    z = shift / math.sqrt(spread) if spread > 0 else 0.0
    off, variance = _joined(off, variance)
    freedom = len(off) - lost
    other = 0.0
    if freedom > 0:
        chi2 = float((off**2 / variance).sum())
        other = float(-ndtri(max(chdtrc(freedom, chi2), 1e-300)))
    return np.concatenate([normal_ratios(z, two_sided=True), normal_ratios(other, two_sided=False)])


def _joined(off: np.ndarray, variance: np.ndarray, least: float = 3.0) -> list[np.ndarray]:
    """Neighbouring bins joined until each has the variance that the normal limit needs."""
    groups, start, held = [], 0, 0.0
    for i, v in enumerate(variance.tolist()):
        held += v
        if held >= least:
            groups.append(start)
            start, held = i + 1, 0.0
    if not groups:
        return [np.empty(0), np.empty(0)]
    return [np.add.reduceat(x, groups) for x in (off, variance)]
