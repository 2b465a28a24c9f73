"""From calibrated probabilities to decisions: thresholds with a guarantee, and their costs.

A rule decides alone where it is confident and leaves the other samples to a person. Thresholds are
chosen on labelled samples that neither the model nor the calibrator was fitted on; the guarantees
are exact for every sample size and only require new samples from the same distribution.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from focalcal._checks import check_classes, check_level
from focalcal.errors import InputError
from focalcal.metrics import Estimate
from focalcal.metrics.declare import percent
from focalcal.metrics.proportion import binomial_cdf, most_hits, proportion

ASK = -1
"""The decision to ask a person, and its column of the costs."""
STEPS = 32
"""Thresholds tested for a target accuracy, plus half as many among the largest sets."""
GOALS = {
    "target_accuracy": "accuracy of at least {} among the samples decided alone",
    "max_error": "at most {} of all samples decided alone and wrongly",
    "review_budget": "at most {} of all samples left to a person",
}


@dataclasses.dataclass(frozen=True)
class Threshold:
    """Decide alone where confidence ≥ threshold; the threshold is infinite if none meets the goal.

    decided: share of samples decided alone; error: error rate among them, NaN if there are none;
    both on the samples used to choose the threshold, with Clopper–Pearson intervals that treat it
    as given. `guarantee` holds for new samples, with probability `level` over the samples used.
    """

    goal: str
    value: float
    threshold: float
    decided: Estimate
    error: Estimate
    level: float
    n: int

    @property
    def found(self) -> bool:
        return math.isfinite(self.threshold)

    @property
    def rule(self) -> str:
        """What to do, and its effect on the samples used to choose the threshold."""
        if not self.found:
            return "No threshold reaches the goal: leave every sample to a person."
        # All digits: a rounded threshold may decide a sample just below the exact one.
        start = f"from confidence {self.threshold!r}" if self.threshold > 0 else "always"
        e = self.error
        return (
            f"Decide alone {start}: {percent(self.decided.value, 1)} of the samples, "
            f"{percent(e.value)} ({100 * e.low:.2f} – {100 * e.high:.2f}) of them wrong."
        )

    @property
    def guarantee(self) -> str:
        meaning = GOALS[self.goal].format(f"{100 * self.value:g} %")
        if not self.found:
            few = "1 sample does" if self.n == 1 else f"{self.n:,} samples do"
            return f"none; {few} not suffice to show {meaning}"
        return f"{meaning}, with probability {100 * self.level:g} % (exact binomial test)"


@dataclasses.dataclass(frozen=True)
class Cost:
    """Mean cost of the decisions with the least expected cost.

    expected: under the probabilities; measured: with the labels; difference: measured − expected.
    Their intervals are normal; those of measured and difference use the larger of the observed and
    the expected variance, since samples without errors show none. at_most: bound on the mean cost
    of new samples, with probability `level` (empirical Bernstein). The last three are None without
    labels.
    """

    decided: Estimate
    expected: Estimate
    measured: Estimate | None
    difference: Estimate | None
    at_most: float | None
    level: float
    n: int


def threshold(
    y_true: Any,
    y_prob: Any,
    *,
    target_accuracy: float | None = None,
    max_error: float | None = None,
    review_budget: float | None = None,
    level: float = 0.95,
) -> Threshold:
    """The lowest confidence from which a model may decide alone (highest, for a review budget).

    Give one goal: `target_accuracy` among the samples decided alone, `max_error` = the share of all
    samples that are decided alone and wrong, or `review_budget` = the share left to a person. The
    goal holds for new samples with probability ≥ `level`:

    - `max_error` and `review_budget` concern counts that are monotone in the threshold, so one
      exact binomial test at the chosen threshold suffices for any distribution.
    - `target_accuracy` uses learn-then-test: exact binomial tests of "accuracy too low" among the k
      most confident samples for up to 48 values of k, from few to all; a test that passes hands its
      share of 1 − level to the next (fallback procedure). Exact if the error rate does not rise
      with confidence.

    y_true: (N,) labels; y_prob: (N, K), or (N,) = probability of class 1 of two.

    >>> rng = np.random.default_rng(0)
    >>> p = rng.uniform(0.5, 1.0, 4000)
    >>> y = (rng.random(4000) < p).astype(int)
    >>> t = threshold(y, p, target_accuracy=0.9)
    >>> round(t.threshold, 3), round(t.decided.value, 3)
    (0.85, 0.298)

    Angelopoulos et al. 2021 (learn then test); Wiens 2003 (fallback); Geifman & El-Yaniv 2017.
    """
    given = zip(GOALS, (target_accuracy, max_error, review_budget))
    goals = [(name, value) for name, value in given if value is not None]
    if len(goals) != 1:
        raise InputError(f"expected one goal of {', '.join(GOALS)}, got {len(goals)}")
    ((goal, value),) = goals
    if not 0 < value < 1:
        raise InputError(f"expected {goal} between 0 and 1, such as 0.99 or 0.01, got {value!r}")
    check_level(level)
    labels, probs = check_classes(y_true, y_prob)
    confidence = probs.max(axis=1)
    return choose(confidence, probs.argmax(axis=1) != labels, goal, value, level)


def choose(
    confidence: np.ndarray, wrong: np.ndarray, goal: str, value: float, level: float = 0.95
) -> Threshold:
    """`threshold` of the confidences (N,) and of which predictions are wrong (N,)."""
    order = np.argsort(-confidence, kind="stable")
    ordered, errors = confidence[order], np.append(0, np.cumsum(wrong[order]))
    n = len(ordered)
    # Numbers kept above each sample: ties stay together, and the last entry keeps everything.
    kept = np.append(np.searchsorted(-ordered, -ordered, side="left"), n)
    if goal == "target_accuracy":
        k = _most_at_accuracy(errors, kept, 1 - value, 1 - level)
    elif goal == "max_error":
        k = int(kept[errors[kept] <= most_hits(n, value, 1 - level)].max(initial=0))
    else:
        k = int(kept[n - kept <= most_hits(n, value, 1 - level)].min(initial=n + 1))
    if k == 0 or k > n:
        at, k = math.inf, 0
    elif k == n:
        at = 0.0
    else:  # the test was for "above the first sample left out", not "from the last one kept"
        at = float(np.nextafter(ordered[k], ordered.dtype.type(2)))
    return Threshold(
        goal=goal,
        value=float(value),
        threshold=at,
        decided=proportion(k, n, level),
        error=proportion(errors[k], k, level),
        level=level,
        n=n,
    )


def _most_at_accuracy(errors: np.ndarray, kept: np.ndarray, most: float, alpha: float) -> int:
    """The largest number of most confident samples whose error rate is shown to be ≤ most."""
    n = len(errors) - 1
    fewest = math.ceil(math.log(alpha / STEPS) / math.log1p(-most))  # enough to pass without errors
    # Tied confidences merge several ranks into one set.
    counts = np.unique(kept[np.geomspace(min(fewest, n), n, STEPS).astype(int)])
    counts = counts[counts > 0]
    own = dict.fromkeys(counts.tolist(), alpha / len(counts))
    # Sets between the most distant ones have no share of their own, only what is handed on.
    more = kept[np.linspace(n / 2, n, STEPS // 2).astype(int)]
    counts = np.union1d(counts, more[more > counts[0]]) if len(counts) else counts
    p_values = binomial_cdf(errors[counts], counts, most)
    best, available = 0, 0.0
    for k, p in zip(counts.tolist(), p_values.tolist()):
        available += own.get(k, 0.0)
        if p <= available:
            best = k
        else:
            available = 0.0
    return best


def expected_cost(
    y_prob: Any,
    costs: Any = None,
    *,
    abstain_cost: float | None = None,
    y_true: Any = None,
    level: float = 0.95,
) -> Cost:
    """Cost of the decisions with the least expected cost, as expected and, with labels, measured.

    costs: (K, D) cost of decision d when the class is k, by default 1 for every error;
    abstain_cost: of asking a person, who then decides at no further cost; y_prob, y_true as in
    `threshold`. If `difference` excludes 0, the probabilities are not calibrated for these costs.

    >>> cost = expected_cost([[0.9, 0.1], [0.6, 0.4]], abstain_cost=0.2, y_true=[0, 1])
    >>> cost.decided.value, round(cost.expected.value, 2), round(cost.measured.value, 2)
    (0.5, 0.15, 0.1)

    Chow 1970; Elkan 2001; Maurer & Pontil 2009 for the bound.
    """
    check_level(level)
    labels, probs = check_classes(y_true, y_prob)
    n = len(probs)
    chosen, table = _cheapest(probs, costs, abstain_cost)
    own = (probs @ table)[np.arange(n), chosen]
    decided, expected = proportion((chosen != ASK).sum(), n, level), _mean(own, level)
    if labels is None:
        return Cost(decided, expected, None, None, None, level, n)
    paid = table[labels, chosen]
    chance = float(((table[:, chosen].T - own[:, None]) ** 2 * probs).sum()) / n
    measured = _mean(paid, level, chance + float(own.var()))
    difference = _mean(paid - own, level, chance)
    at_most = float(table.max())
    if n > 1:
        slack = math.log(2 / (1 - level))
        bound = measured.value + math.sqrt(2 * paid.var(ddof=1) * slack / n)
        bound += 7 * float(np.ptp(table)) * slack / (3 * (n - 1))
        at_most = min(at_most, bound)
    return Cost(decided, expected, measured, difference, at_most, level, n)


def decide(
    y_prob: Any,
    *,
    threshold: float | None = None,
    costs: Any = None,
    abstain_cost: float | None = None,
) -> np.ndarray:
    """Decisions (N,): a class (or column of `costs`), or −1 to ask a person.

    >>> decide([[0.9, 0.1], [0.6, 0.4]], threshold=0.8)
    array([ 0, -1])
    >>> decide([[0.9, 0.1], [0.6, 0.4]], costs=[[0, 1], [20, 0]])
    array([1, 1])
    """
    _, probs = check_classes(None, y_prob)
    if threshold is not None:
        if costs is not None or abstain_cost is not None:
            raise InputError("expected a threshold or costs, got both")
        confident = probs.max(axis=1) >= threshold
        return np.where(confident, probs.argmax(axis=1), ASK)
    return _cheapest(probs, costs, abstain_cost)[0]


def _mean(values: np.ndarray, level: float, least: float = 0.0) -> Estimate:
    """The mean with its normal interval from the variance of the values, or `least` if larger."""
    from scipy.special import ndtri

    n, value = len(values), float(values.mean())
    if n < 2:
        return Estimate(value, math.nan, math.nan, n)
    variance = max(float(values.var(ddof=1)), least)
    half = float(ndtri((1 + level) / 2)) * math.sqrt(variance / n)
    return Estimate(value, value - half, value + half, n)


def _cheapest(
    probs: np.ndarray, costs: Any, abstain_cost: float | None
) -> tuple[np.ndarray, np.ndarray]:
    """Decisions (N,) of least expected cost, and the costs (K, D); asking is the last column."""
    k = probs.shape[1]
    table = 1.0 - np.eye(k) if costs is None else np.asarray(costs, dtype=np.float64)
    if table.ndim != 2 or table.shape[0] != k or not np.isfinite(table).all():
        raise InputError(
            f"expected finite costs with one row for each of {k} classes, got shape {table.shape}"
        )
    if abstain_cost is None:
        return (probs @ table).argmin(axis=1), table
    if not math.isfinite(abstain_cost):
        raise InputError(f"expected a finite abstain_cost, got {abstain_cost!r}")
    table = np.column_stack([table, np.full(k, float(abstain_cost))])
    chosen = (probs @ table).argmin(axis=1)
    return np.where(chosen == table.shape[1] - 1, ASK, chosen), table
