"""Two models on the same samples: which is better, and can they be told apart?"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from focalcal._arrays import to_numpy
from focalcal._checks import check_labels, check_level, check_probs
from focalcal.errors import InputError
from focalcal.metrics.declare import METRICS
from focalcal.metrics.resampling import check_resamples, p_value, resample_pair
from focalcal.metrics.sample import EVERYTHING, Sample
from focalcal.metrics.summary import Estimate, plain

GROUPS = 30
"""Groups that are left out in turn for the intervals of class-wise metrics."""
MOST = 5_000_000
"""Probabilities (N·K) up to which class-wise metrics are computed again for each group."""


@dataclasses.dataclass(frozen=True)
class Difference:
    """A metric of two models: both values, second − first with its interval, and a p-value.

    Interval and p-value are NaN where the metric is undefined, or class-wise on too many
    probabilities. `better` is "first", "second" or "" where they cannot be told apart.
    """

    first: float
    second: float
    difference: Estimate
    p_value: float
    better: str


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What `compare` returns; `comparison["nll"]` is a `Difference`."""

    n: int
    metrics: dict[str, Difference]
    level: float
    resamples: int
    seed: int

    def __getitem__(self, name: str) -> Difference:
        return self.metrics[name]

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, numbers and None (for a value that is undefined or infinite)."""
        return plain(dataclasses.asdict(self))


def compare(
    y_true: Any,
    first: Any,
    second: Any,
    *,
    bins: int = 15,
    threshold: float = 0.99,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Comparison:
    """Paired differences of every metric between two models, second − first.

    The same samples are drawn for both (paired bootstrap), so that what makes a sample hard for
    both cancels. The p-value is the share of resampled differences at least as far from the
    difference as that is from 0; the interval holds the values that this test does not reject.
    Unlike a test that swaps the models at random, it stays valid where the metric agrees but the
    models do not (one over-, the other under-confident). Class-wise metrics use a jackknife over 30
    groups of samples. Each metric is tested by itself: decide beforehand which one counts.

    y_true: (N,) labels; first, second: (N, K) probabilities, or (N,) for class 1 of two; or both
    `Predictions` with labels, and y_true None.

    >>> rng = np.random.default_rng(0)
    >>> z = 2 * rng.normal(size=(500, 3))
    >>> y = np.argmax(z + rng.gumbel(size=z.shape), axis=1)
    >>> def softmax(z):
    ...     return np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    >>> found = compare(y, softmax(2 * z), softmax(z), resamples=200)
    >>> found["nll"].better, found["accuracy"].better
    ('second', '')

    Efron & Tibshirani 1993, ch. 16.
    """
    check_level(level)
    pair = [labels_and_values(y_true, given) for given in (first, second)]
    if pair[0][0].shape != pair[1][0].shape or (pair[0][0] != pair[1][0]).any():
        raise InputError(
            "expected the same samples in the same order, got different labels; give files with "
            "ids, or sort them alike"
        )
    if any(v.ndim == 1 or v.shape[1] == 1 for _, given in pair for v in given.values()):
        pair = [(y, _one_column(given)) for y, given in pair]
    settings = {"bins": bins, "threshold": threshold}
    a, b = (Sample.read(y, needs=EVERYTHING, **v, **settings) for y, v in pair)
    one, other = a.stats(), b.stats()
    names = [m.name for m in METRICS.values() if m.resampled]
    resamples = check_resamples(resamples)
    draws = [np.stack(list(d.values())) for d in resample_pair(a, b, names, resamples, seed)]
    with np.errstate(invalid="ignore"):  # two infinite losses have no difference
        spread = dict(zip(names, draws[1] - draws[0]))
    if a.n * a.n_classes <= MOST:
        spread |= _left_out(pair, settings, seed)
    found = {}
    for name, m in METRICS.items():
        x, y = float(m.of(one)), float(m.of(other))
        estimate, p = _tested(y - x, spread.get(name), level, a.n, jackknife=not m.resampled)
        found[name] = Difference(x, y, estimate, p, _better(m.better, y - x, p <= 1 - level))
    return Comparison(a.n, found, level, resamples, seed)


def _one_column(given: dict[str, Any]) -> dict[str, Any]:
    """Values of two classes as those of class 1, so that both Brier scores count the same."""
    ((name, values),) = given.items()
    if values.ndim == 1 or values.shape[1] != 2:
        return given
    return {name: values[:, 1] - values[:, 0] if name == "logits" else values[:, 1]}


def _tested(
    value: float, draws: np.ndarray | None, level: float, n: int, *, jackknife: bool
) -> tuple[Estimate, float]:
    """The symmetric interval and the p-value of a difference."""
    draws = np.empty(0) if draws is None else draws[np.isfinite(draws)]
    if not math.isfinite(value) or len(draws) < 2:
        return Estimate(value, math.nan, math.nan, n), math.nan
    if jackknife:
        from scipy.special import stdtr, stdtrit

        g = len(draws)
        error = math.sqrt((g - 1) ** 2 / g * draws.var(ddof=1))
        half = float(stdtrit(g - 1, (1 + level) / 2)) * error
        p = 2 * float(stdtr(g - 1, -abs(value) / error)) if error > 0 else float(value == 0)
    else:
        away = np.abs(draws - value)
        half = float(np.quantile(away, level))
        p = p_value(away, abs(value))
    return Estimate(value, value - half, value + half, n), float(p)


def _left_out(pair: list[Any], settings: dict[str, Any], seed: int) -> dict[str, np.ndarray]:
    """Differences of the class-wise metrics without each group of samples in turn."""
    metrics = [m for m in METRICS.values() if not m.resampled]
    n = len(pair[0][0])
    groups = np.random.default_rng(seed).permutation(n) % min(GROUPS, n)
    needs = tuple({need for m in metrics for need in m.needs})
    if n < 2:
        return {}

    def values(rows: np.ndarray) -> np.ndarray:
        both = []
        for y, given in pair:
            part = {name: v[rows] for name, v in given.items()}
            stats = Sample.read(y[rows], needs=needs, **part, **settings).stats()
            both.append([float(m.of(stats)) for m in metrics])
        return np.array(both[1]) - both[0]

    found = np.array([values(np.flatnonzero(groups != g)) for g in range(groups.max() + 1)])
    return {m.name: found[:, i] for i, m in enumerate(metrics)}


def _better(direction: str, difference: float, told_apart: bool) -> str:
    if not told_apart or not direction or difference == 0:
        return ""
    return "second" if (difference < 0) == (direction == "lower") else "first"


def labels_and_values(y_true: Any, given: Any) -> tuple[np.ndarray, dict[str, Any]]:
    """Labels as class indices, and the keyword of `Sample.read` with the model's output.

    Texts are looked up here, among all samples: some rows need not have every class.
    """
    if not hasattr(given, "as_logits"):
        probs = to_numpy(check_probs(given))
        width = probs.shape[1] if probs.ndim == 2 and probs.shape[1] > 1 else 2
        return to_numpy(check_labels(y_true, len(probs), width)), {"y_prob": probs}
    if given.labels is None or given.task == "multilabel":
        raise InputError("expected single-label predictions with labels to compare")
    name = "logits" if given.logits is not None else "y_prob"
    values = given.logits if given.logits is not None else given.probs
    return to_numpy(given.labels), {name: to_numpy(values)}
