"""E-processes over batches: tests that may be checked after every batch.

A batch yields, for each of several alternatives, a likelihood ratio (alternative to hypothesis)
whose mean is at most 1 under the hypothesis, given all earlier batches. The probability that their
running product ever exceeds 1/α is therefore at most α (Ville 1939). As the time of a change is
unknown, the evidence is a mixture over alternatives and over starting batches s, with weights
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
"""Alternatives to "calibrated": log-odds of being right = shift + slope · predicted log-odds."""
EFFECTS = (0.5, 1.0, 2.0, 3.0)
"""Alternatives to equal odds in past and batch: the change of a test statistic, in units of σ."""
STEEPEST = 1.5
"""Largest change of the log-odds in an alternative: rare events make σ small."""


@dataclasses.dataclass(frozen=True)
class EProcess:
    """Evidence against a hypothesis after some batches.

    logs: (A,) logarithm of the weighted products of each alternative, summed over starts, −∞
    before the first batch; batches: how many were seen; largest: the largest log E so far, which
    later batches cannot reduce.
    """

    logs: np.ndarray = dataclasses.field(default_factory=lambda: np.array([-math.inf]))
    batches: int = 0
    largest: float = 0.0

    def update(self, log_ratios: np.ndarray) -> EProcess:
        """The process after another batch with these log-likelihood ratios (A,).

        >>> e = EProcess()
        >>> for _ in range(5):
        ...     e = e.update(np.log([3.0]))
        >>> e.batches, round(e.p_value, 4)
        (5, 0.0072)
        """
        t = self.batches + 1
        logs = np.logaddexp(self.logs, -math.log(t * (t + 1))) + log_ratios
        mixture = np.logaddexp.reduce(logs) - math.log(len(logs))
        # Future starts keep their weight, 1/(t+1) in total.
        now = float(np.logaddexp(mixture, -math.log(t + 1)))
        return EProcess(logs, t, max(self.largest, now))

    @property
    def p_value(self) -> float:
        """1/max E: the probability that it ever falls to α is at most α."""
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
    Valid for any number of samples; ratios of parts can be added.
    """
    from scipy.special import logit

    # A confidence that rounds to 1 counts as 1 − ε of its precision.
    limit = math.log(2 / np.finfo(confidence.dtype).eps)
    ends = (np.clip(confidence + t, 0.0, 1.0) for t in np.array([-tolerance, 0.0, tolerance]))
    low, odds, high = (np.clip(logit(end), -limit, limit) for end in ends)
    sign = np.where(correct, 1.0, -1.0)

    def log_chance(odds: np.ndarray) -> np.ndarray:
        """Log-probability of the outcomes, −ln(1 + exp(−sign·odds)); SciPy's is slower."""
        return np.minimum(sign * odds, 0) - np.log1p(np.exp(-np.abs(odds)))

    def ratio(shift: float, slope: float) -> float:
        other = shift + slope * odds
        return (log_chance(other) - log_chance(np.clip(other, low, high))).sum()

    return np.array([ratio(*alternative) for alternative in MISCALIBRATED.tolist()])


def accuracy_ratios(past: Bins, batch: Bins) -> np.ndarray:
    """Log-ratios against "accuracy at equal confidence is as in the past".

    Given how many samples of past and batch together are right in a bin, the number in the batch is
    hypergeometric, whatever the accuracy. Alternatives change the odds of being right by a common
    factor, as in the test of Cochran, Mantel & Haenszel, or up or down in each bin.
    """
    n, m = batch.counts, past.counts
    right = batch.correct_sums + past.correct_sums
    return _ratios(batch.correct_sums, n, m, right, _variance(n, m, right), np.ones(len(n)))


def confidence_ratios(past: Bins, batch: Bins) -> np.ndarray:
    """Log-ratios against "confidences are distributed as in the past"; labels are not used.

    Given the counts of past and batch together, and of the batch in lower bins, the batch's count
    in a bin is hypergeometric among the samples at or above that bin. Weighted by the share of
    these, a common change of the odds corresponds to Wilcoxon's rank test.
    """
    both = batch.counts + past.counts
    n, m, above = (np.cumsum(x[::-1])[::-1] for x in (batch.counts, past.counts, both))
    share = above / above[0]
    expected = _variance(batch.total * share, past.total * share, both)
    return _ratios(batch.counts, n, m, both, expected, share)


def _variance(n: np.ndarray, m: np.ndarray, hits: np.ndarray) -> np.ndarray:
    """The variance of the number of hits among n samples, given `hits` among n + m."""
    total = n + m
    product = n * m * hits * np.maximum(total - hits, 0)
    return product / np.maximum(total**2 * (total - 1), 1)


def _ratios(
    found: np.ndarray,
    n: np.ndarray,
    m: np.ndarray,
    hits: np.ndarray,
    variance: np.ndarray,
    weights: np.ndarray,
) -> np.ndarray:
    """Log-ratios of tables (B,), each of a hypergeometric number of hits in n of n + m samples.

    `found` is tilted: exp(θ·found)/E exp(θ·found) has mean 1 for any θ that does not depend on it,
    even if events are rare and no normal limit holds. The alternatives: θ common to all tables up
    to their weights, of either sign, with a mean of `EFFECTS` standard errors; and the mean over
    both signs in each table, where each adds to a χ² so that it grows by `EFFECTS` of its own
    standard errors. variance: determines θ, known before `found`.
    """
    effects = np.array(EFFECTS)
    spread = math.sqrt(max(float(weights**2 @ variance), 1e-300))
    common = np.concatenate([-effects, effects])[:, None] * weights / spread
    freedom = max(float(np.minimum(variance, 1).sum()), 1.0)
    shift = np.sqrt(effects * math.sqrt(2 / freedom))
    own = shift[:, None] / np.sqrt(np.maximum(variance, 1e-300))
    tilts = np.clip(np.concatenate([common, own, -own]), -STEEPEST, STEEPEST)
    logs = np.zeros(tilts.shape)
    for b in np.flatnonzero(np.minimum(np.minimum(n, m), np.minimum(hits, n + m - hits)) > 0):
        logs[:, b] = _tilted(found[b], n[b], m[b], hits[b], tilts[:, b])
    signed, up, down = np.split(logs, [len(common), len(common) + len(own)])
    either = np.logaddexp(up, down) - math.log(2)
    return np.concatenate([signed.sum(axis=1), either.sum(axis=1)])


def _tilted(found: float, n: float, m: float, hits: float, tilts: np.ndarray) -> np.ndarray:
    """θ·found − ln E exp(θ·X) for each θ, X hypergeometric."""
    from scipy.special import gammaln

    mean, total = n * hits / (n + m), n + m
    variance = mean * m * (total - hits) / (total * max(total - 1, 1))
    reach = 40 * math.sqrt(variance) + 200  # the rest is negligible in float64
    low, high = max(0.0, hits - m, mean - reach), min(n, hits, mean + reach)
    x = np.arange(math.ceil(low), math.floor(high) + 1.0)
    logs = -sum(gammaln(1 + part) for part in (x, n - x, hits - x, m - hits + x))
    chance = np.exp(logs - logs.max())
    grown = np.exp(np.outer(tilts, x - mean)) @ chance / chance.sum()
    return tilts * (found - mean) - np.log(grown)
