"""Resampling: bootstrap values of metrics, single or paired, and the test of "calibrated".

A bootstrap sample is a row of counts: how often each sample was drawn. Samples are sorted and
binned once; every metric is then a few sums over rows of counts, for many rows at a time. Weights
are repetitions: a sample of weight 3 stands for three, each of which can be drawn.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from focalcal import bins as _bins
from focalcal._blocks import map_blocks
from focalcal._checks import check_whole
from focalcal.errors import InputError
from focalcal.metrics.declare import METRICS
from focalcal.metrics.sample import Sample, of_samples
from focalcal.ordered import bin_starts

_CHUNK = 1 << 18
"""Counts held at a time per thread."""

Values = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class CalibrationTest:
    """Test of the hypothesis "calibrated" by consistency resampling of the ECE.

    p_value: how often calibrated data show an ECE this large; small values are evidence against
    calibration. expected_ece: the mean ECE of calibrated data, the noise floor.
    """

    ece: float
    p_value: float
    expected_ece: float
    resamples: int


@of_samples("sums", "top", "order")
def bootstrap(
    sample: Sample, names: Iterable[str] = ("ece",), *, resamples: int = 1000, seed: int = 0
) -> Values:
    """Values (resamples,) of the named metrics on samples of N drawn with replacement.

    Bins of equal mass are recomputed in every resample. The same seed gives the same values with
    any number of threads and for any order of the rows. names: metrics that are functions of sums,
    bins and the order of confidences; class-wise ones are not resampled.

    >>> values = bootstrap([1, 0, 1, 1], [0.9, 0.4, 0.8, 0.7], ["ece", "nll"], resamples=100)
    >>> values["ece"].shape
    (100,)

    Efron 1979.
    """
    return resample(sample, names, check_resamples(resamples), seed)


def resample(
    sample: Sample,
    names: Iterable[str],
    resamples: int,
    seed: int,
    progress: Callable[[float], None] | None = None,
) -> Values:
    """Bootstrap values of the named metrics; progress: called with the fraction done."""
    return _draws([(sample, slice(None))], names, resamples, seed, progress)[0]


def resample_pair(
    a: Sample, b: Sample, names: Iterable[str], resamples: int, seed: int
) -> tuple[Values, Values]:
    """Bootstrap values of two models on the same samples, drawn together: a paired comparison.

    a and b: the same rows in the same order, with the same weights.

    >>> y, p = [1, 0, 1], [[0.2, 0.8], [0.6, 0.4], [0.3, 0.7]]
    >>> one, other = resample_pair(Sample.read(y, p), Sample.read(y, p), ["nll"], 10, seed=0)
    >>> bool((one["nll"] == other["nll"]).all())
    True
    """
    if a.n != b.n:
        raise InputError(f"expected two models on the same samples, got {a.n} and {b.n} of them")
    place = np.empty(a.n, np.intp)
    place[a.order] = np.arange(a.n)
    first, second = _draws([(a, slice(None)), (b, place[b.order])], names, resamples, seed)
    return first, second


def _draws(
    samples: Sequence[tuple[Sample, Any]],
    names: Iterable[str],
    resamples: int,
    seed: int,
    progress: Callable[[float], None] | None = None,
) -> list[Values]:
    """Values on resamples of the first sample; each comes with its rows' places in the first."""
    names, done = tuple(names), 0
    known = [m.name for m in METRICS.values() if m.resampled]
    if unknown := sorted(set(names) - set(known)):
        raise InputError(f"expected names among {', '.join(known)}; got {', '.join(unknown)}")

    def chunk(rows: slice) -> list[Values]:
        nonlocal done
        counts = draw_counts(samples[0][0], rows, seed)
        found = [sample.resampled(counts[:, place]) for sample, place in samples]
        values = [{name: METRICS[name].of(stats) for name in names} for stats in found]
        done += rows.stop - rows.start
        if progress is not None:
            progress(done / resamples)
        return values

    parts = zip(*map_blocks(chunk, resamples, max(_CHUNK // samples[0][0].n, 1)))
    return [{name: np.concatenate([v[name] for v in each]) for name in names} for each in parts]


def draw_counts(sample: Sample, rows: slice, seed: int) -> np.ndarray:
    """How often each sample of `order` is drawn with replacement, (rows, N) float64."""
    n, b = sample.n, rows.stop - rows.start
    rng = np.random.Generator(np.random.SFC64([seed, rows.start]))
    if sample.weights is not None:
        draws = max(round(sample.total), 1)
        weights = sample.weights[sample.order]
        counts = rng.multinomial(draws, weights / weights.sum(), size=b)
        return counts * (sample.total / draws)
    small = np.uint16 if n <= 1 << 16 else np.uint32 if n <= 1 << 32 else np.uint64
    drawn = rng.integers(0, n, size=(b, n), dtype=small).astype(np.intp)
    drawn += np.arange(b)[:, None] * n
    return np.bincount(drawn.ravel(), minlength=b * n).reshape(b, n).astype(np.float64)


def consistency_values(sample: Sample, resamples: int, seed: int) -> np.ndarray:
    """ECE when every sample is correct with probability equal to its confidence, (resamples,).

    Confidences (and so bins) stay as they are; only correctness is drawn.

    Bröcker & Smith 2007; Vaicenavicius et al. 2019.
    """
    confidence, weights, starts, mass = _in_bins(sample)

    def chunk(rows: slice) -> np.ndarray:
        rng = np.random.Generator(np.random.SFC64([seed, 1, rows.start]))
        shape = rows.stop - rows.start, sample.n
        if weights is None:
            hits = (rng.random(shape, dtype=np.float32) < confidence).astype(np.float64)
        else:  # w repetitions, where a fraction counts as one with that probability
            whole = np.floor(weights + rng.random(shape)).astype(np.int64)
            hits = rng.binomial(whole, confidence.astype(np.float64)) + 0.0
            hits += (weights - whole) * confidence
        return np.abs(mass - np.add.reduceat(hits, starts, axis=1)).sum(axis=1) / sample.total

    return np.concatenate(map_blocks(chunk, resamples, max(_CHUNK // sample.n, 1)))


def consistency_test(sample: Sample, ece: float, resamples: int, seed: int) -> CalibrationTest:
    """The test of an ECE by `consistency_values`.

    The ECE is recomputed in the same way: if nearly all draws equal the data, as for a classifier
    without errors, sums in a different order would round differently.
    """
    null = consistency_values(sample, resamples, seed)
    _, weights, starts, mass = _in_bins(sample)
    hits = sample.correct[sample.order] * (1.0 if weights is None else weights)
    value = np.abs(mass - np.add.reduceat(hits, starts)).sum() / sample.total
    return CalibrationTest(ece, p_value(null, float(value)), float(null.mean()), resamples)


def _in_bins(sample: Sample) -> tuple[np.ndarray, np.ndarray | None, np.ndarray, np.ndarray]:
    """Confidences and weights in order, where each bin begins, and its sum of confidences."""
    order = sample.order
    confidence = sample.confidence[order]
    weights = None if sample.weights is None else sample.weights[order]
    starts = bin_starts(confidence, _bins.equal_width_edges(sample.bins))
    mass = confidence.astype(np.float64) if weights is None else confidence * weights
    return confidence, weights, starts, np.add.reduceat(mass, starts)


def p_value(null: np.ndarray, value: float) -> float:
    """The share of draws at least as large as the value, which itself counts as a draw."""
    # A draw that differs from the data only by rounding counts as equal.
    return float((1 + np.count_nonzero(null >= value * (1 - 1e-12))) / (len(null) + 1))


def check_resamples(resamples: int) -> int:
    """The number of resamples as an int ≥ 2."""
    return check_whole(resamples, "resamples", 2)
