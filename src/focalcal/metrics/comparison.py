"""Paired comparison of two models on the same samples."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from focalcal._checks import check_level
from focalcal.columns import Input, read
from focalcal.errors import InputError
from focalcal.metrics.declare import METRICS, named
from focalcal.metrics.resampling import check_resamples, p_value, resample_pair
from focalcal.metrics.sample import EVERYTHING, Sample
from focalcal.metrics.summary import Estimate, plain

GROUPS = 30
"""Groups left out in turn for the intervals of class-wise metrics."""
MOST = 5_000_000
"""The most probabilities (N·K) for which class-wise metrics are recomputed for each group."""


@dataclasses.dataclass(frozen=True)
class Difference:
    """A metric of two models: both values, second − first with its interval, and a p-value.

    Interval and p-value are NaN where the metric is undefined, class-wise on too many
    probabilities, or based on one sample of either model. `better` is "first", "second", or "" if
    the difference is not significant.
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
        return named(self.metrics, name)

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

    The same samples are drawn for both (paired bootstrap), so that difficulty shared by both
    cancels. The p-value is the share of resampled differences at least as far from the difference
    as that is from 0, or that of Student's t with the resamples' standard deviation if larger: few
    samples, such as wrong predictions, vary too little in resamples. The interval holds the values
    that this test does not reject.
    Unlike a test that swaps the models at random, it stays valid where the metric agrees but the
    models do not (one over-, the other under-confident). Class-wise metrics use a jackknife over 30
    groups of samples. Each metric is tested on its own: decide beforehand which one counts.

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
    pair = [
        read(given) if hasattr(given, "as_logits") else read(y_true, given)
        for given in (first, second)
    ]
    if not np.array_equal(pair[0].labels, pair[1].labels):
        raise InputError(
            "expected the same samples in the same order, got different labels; give files with "
            "ids, or sort them alike"
        )
    if "binary" in (pair[0].kind, pair[1].kind):  # both Brier scores then count class 1
        pair = [dataclasses.replace(d, kind="binary") if d.n_classes == 2 else d for d in pair]
    settings = {"bins": bins, "threshold": threshold}
    a, b = (Sample.of(data, EVERYTHING, **settings) for data in pair)
    one, other = a.stats(), b.stats()
    names = [m.name for m in METRICS.values() if m.resampled]
    resamples = check_resamples(resamples)
    draws = [np.stack(list(d.values())) for d in resample_pair(a, b, names, resamples, seed)]
    with np.errstate(invalid="ignore"):  # two infinite losses have no difference
        spread = dict(zip(names, draws[1] - draws[0]))
    if a.n * pair[0].n_classes <= MOST:
        # Neither the order of the rows nor that of the models changes the groups.
        order = np.argsort(a.values["nll"] + b.values["nll"], kind="stable")
        spread |= _jackknifed([data.take(order) for data in pair], settings, seed)
    found, sizes = {}, [a.sizes(), b.sizes()]
    for name, m in METRICS.items():
        x, y = float(m.of(one)), float(m.of(other))
        few = a.n
        if m.within:
            few = min(size[m.within] for size in sizes)
        elif m.interval == "bootstrap" and not m.tested:  # compares right samples with wrong ones
            few = min(min(size["right"], size["wrong"]) for size in sizes)
        change = 0.0 if math.isclose(x, y, rel_tol=1e-12) else y - x  # not a mere rounding error
        estimate, p = _tested(change, spread.get(name), level, few, jackknife=not m.resampled)
        estimate = dataclasses.replace(estimate, n=a.n)
        better = ""
        if m.better and p <= 1 - level and x != y:
            better = "second" if (y < x) == (m.better == "lower") else "first"
        found[name] = Difference(x, y, estimate, p, better)
    return Comparison(a.n, found, level, resamples, seed)


def _tested(
    value: float, draws: np.ndarray | None, level: float, n: int, *, jackknife: bool
) -> tuple[Estimate, float]:
    """The symmetric interval and the p-value of a difference based on n samples."""
    draws = np.empty(0) if draws is None else draws[np.isfinite(draws)]
    if not math.isfinite(value) or len(draws) < 2 or n < 2:  # one sample has no variance
        return Estimate(value, math.nan, math.nan, n), math.nan
    from scipy.special import stdtr, stdtrit

    if jackknife:
        g = len(draws)
        error = math.sqrt((g - 1) ** 2 / g * draws.var(ddof=1))
        half = float(stdtrit(g - 1, (1 + level) / 2)) * error
        p = 2 * float(stdtr(g - 1, -abs(value) / error)) if error > 0 else float(value == 0)
    else:
        away = np.abs(draws - value)
        p = p_value(away, abs(value))
        # A value is rejected if at most this many draws, itself included, are as far away.
        rejected = int((1 - level) * (len(away) + 1) + 1e-9)
        half = float(np.sort(away)[-max(rejected, 1)])
        error = math.sqrt(float(away @ away) / len(away) * n / (n - 1))
        half = max(half, float(stdtrit(n - 1, (1 + level) / 2)) * error)
        if error > 0:
            p = max(p, 2 * float(stdtr(n - 1, -abs(value) / error)))
    return Estimate(value, value - half, value + half, n), float(p)


def _jackknifed(pair: list[Input], settings: dict[str, Any], seed: int) -> dict[str, np.ndarray]:
    """Differences of the class-wise metrics without each group of samples in turn."""
    metrics = [m for m in METRICS.values() if not m.resampled]
    n = len(pair[0])
    groups = np.random.default_rng(seed).permutation(n) % min(GROUPS, n)
    needs = tuple({need for m in metrics for need in m.needs})
    if n < 2:
        return {}

    def values(data: Input, rows: np.ndarray) -> np.ndarray:
        stats = Sample.of(data.take(rows), needs, **settings).stats()
        return np.array([float(m.of(stats)) for m in metrics])

    rest = [np.flatnonzero(groups != g) for g in range(groups.max() + 1)]
    found = np.array([values(pair[1], rows) - values(pair[0], rows) for rows in rest])
    return {m.name: found[:, i] for i, m in enumerate(metrics)}
