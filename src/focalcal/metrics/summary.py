"""Everything at once: all metrics with intervals, and a test of "calibrated"."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from focalcal import bins as _bins
from focalcal.bins import Bins
from focalcal.errors import InputError
from focalcal.metrics import _classwise, _samples
from focalcal.metrics.calibration import ace, classwise_ece
from focalcal.metrics.resampling import (
    KERNELS,
    Sample,
    check_resamples,
    consistency_values,
    point_values,
    read_sample,
    resample,
)
from focalcal.metrics.scores import brier_decomposition

_ERRORS = {
    "ece",
    "mce",
    "rms_calibration_error",
    "adaptive_ece",
    "debiased_ece",
    "smooth_ece",
    "ks_error",
}
_CLASSWISE_ERRORS = {"classwise_ece", "ace", "brier_calibration"}
_SIGNED = {"confidence_gap"}
_UNBOUNDED = {"nll", "nll_right", "nll_wrong", "entropy_right", "entropy_wrong"}
_AT_MOST_TWO = {"brier", "brier_calibration", "brier_refinement"}


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A metric with its bootstrap interval and the number of samples behind it."""

    value: float
    low: float
    high: float
    n: int


@dataclasses.dataclass(frozen=True)
class CalibrationTest:
    """Test of the hypothesis "calibrated" by consistency resampling of the ECE.

    p_value: how often data that obey their confidences show an ECE this large; small values
    speak against calibration. expected_ece: the mean ECE of such data, the noise floor.
    """

    ece: float
    p_value: float
    expected_ece: float
    resamples: int


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """All metrics of one set of predictions. `evaluation["ece"]` is an `Estimate`.

    n_classes is 1 for (N,) probabilities; reliability holds the bins of a reliability diagram;
    classwise_resamples says how many resamples the class-wise intervals rest on.
    """

    n: int
    n_classes: int
    metrics: dict[str, Estimate]
    test: CalibrationTest
    reliability: Bins
    threshold: float
    level: float
    resamples: int
    classwise_resamples: int
    seed: int

    def __getitem__(self, name: str) -> Estimate:
        return self.metrics[name]

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, numbers and None (for a value that is undefined or infinite)."""
        return _plain(dataclasses.asdict(self))

    def to_json(self, indent: int | None = 2) -> str:
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False, ensure_ascii=False)


def evaluate(
    y_true: Any,
    y_prob: Any,
    *,
    bins: int = 15,
    threshold: float = 0.99,
    sample_weight: Any = None,
    resamples: int | None = None,
    level: float = 0.95,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> Evaluation:
    """All metrics with bootstrap intervals, and the test of "calibrated".

    Intervals are basic bootstrap intervals, 2·value − quantiles of the resampled values. Those of
    calibration errors, which are biased upwards and more so when resampled, are symmetric with
    the larger of the two half-widths, and reach 0 if the test does not reject "calibrated" at
    this level (not so the class-wise errors, of which the test says nothing). All are clipped to
    the metric's range. Equal-mass bins are formed anew in each resample, except for `ace`, whose
    edges are held fixed.

    y_true: (N,) labels; y_prob: (N, K), or (N,) = probability of y_true = 1; sample_weight: (N,);
    resamples: default 1000, fewer (at least 200) for more than 50,000 samples; level: coverage of
    the intervals; progress: called with the fraction done.

    >>> e = evaluate([0, 1, 1, 0], [[0.8, 0.2], [0.3, 0.7], [0.6, 0.4], [0.9, 0.1]], resamples=50)
    >>> e["accuracy"].value, e.n, e.test.resamples
    (0.75, 4, 50)
    """
    if not 0 < level < 1:
        raise InputError(f"expected a level between 0 and 1, such as 0.95, got {level!r}")
    labels, probs = _samples.columns(y_true, y_prob)
    n, n_classes = probs.shape
    if resamples is None:
        resamples = min(1000, max(200, 50_000_000 // n))
    resamples = check_resamples(resamples)
    few = _classwise.affordable(resamples, n, n_classes)
    tick = _ticker(progress, resamples + few)

    sample = read_sample(
        y_true, y_prob, KERNELS, bins=bins, threshold=threshold, sample_weight=sample_weight
    )
    options = {"bins": bins, "sample_weight": sample_weight}
    values = point_values(sample, KERNELS) | {
        "classwise_ece": classwise_ece(y_true, y_prob, **options),
        "ace": ace(y_true, y_prob, **options),
    }
    split = brier_decomposition(y_true, y_prob, **options)
    values |= {"brier_calibration": split.calibration, "brier_refinement": split.refinement}

    draws = resample(sample, KERNELS, resamples, seed, tick)
    by_class = _classwise.resample_classwise(
        labels[sample.order], probs[sample.order], sample, few, seed, tick
    )
    by_class["brier_refinement"] = draws["brier"][:few] - by_class["brier_calibration"]
    draws |= by_class

    sizes = _sizes(sample)
    metrics = {
        name: estimate(name, values[name], draws[name], level, sizes.get(name, n))
        for name in values
    }
    test = _test(sample, values["ece"], resamples, seed)
    if test.p_value > 1 - level:
        for name in _ERRORS:
            metrics[name] = dataclasses.replace(metrics[name], low=0.0)
    edges = _bins.equal_width_edges(bins)
    return Evaluation(
        n=n,
        n_classes=n_classes,
        metrics=metrics,
        test=test,
        reliability=_bins.bin_samples(sample.confidence, sample.correct, edges, sample.weights),
        threshold=threshold,
        level=level,
        resamples=resamples,
        classwise_resamples=few,
        seed=seed,
    )


def calibration_test(
    y_true: Any,
    y_prob: Any,
    *,
    bins: int = 15,
    sample_weight: Any = None,
    resamples: int = 1000,
    seed: int = 0,
) -> CalibrationTest:
    """Test the hypothesis "calibrated": could data that obey their confidences look like this?

    Correctness is drawn from the confidences `resamples` times; the p-value is the share of draws,
    the data counted among them, whose ECE is at least that of the data.

    >>> calibration_test([0] * 30, [0.9] * 30, resamples=99).p_value
    0.01

    Bröcker & Smith 2007; Vaicenavicius et al. 2019.
    """
    sample = read_sample(
        y_true, y_prob, ["ece"], bins=bins, threshold=1.0, sample_weight=sample_weight
    )
    value = point_values(sample, ["ece"])["ece"]
    return _test(sample, value, check_resamples(resamples), seed)


def _test(sample: Sample, value: float, resamples: int, seed: int) -> CalibrationTest:
    null = consistency_values(sample, resamples, seed)
    # A draw equal to the data but for rounding counts as equal.
    p_value = (1 + np.count_nonzero(null >= value * (1 - 1e-12))) / (resamples + 1)
    return CalibrationTest(value, float(p_value), float(null.mean()), resamples)


def estimate(name: str, value: float, draws: np.ndarray, level: float, n: int) -> Estimate:
    """The bootstrap interval of a named metric; see `evaluate`."""
    draws = draws[~np.isnan(draws)]
    if not math.isfinite(value) or len(draws) < 2:
        return Estimate(value, float("nan"), float("nan"), n)
    tail = (1 - level) / 2
    lower, upper = np.quantile(draws, [tail, 1 - tail]).tolist()
    below, above = max(upper - value, 0.0), max(value - lower, 0.0)
    if name in _ERRORS or name in _CLASSWISE_ERRORS:
        below = above = max(below, above)
    least = -1.0 if name in _SIGNED else 0.0
    most = math.inf if name in _UNBOUNDED else 2.0 if name in _AT_MOST_TWO else 1.0
    return Estimate(value, max(value - below, least), min(value + above, most), n)


def _sizes(sample: Sample) -> dict[str, int]:
    """The number of samples behind the metrics that read a part of them."""
    groups = {"right": "right", "wrong": "wrong", "high_confidence_accuracy": "high"}
    counts = {k: int((sample.means[v] * (sample.weights > 0)).sum()) for k, v in groups.items()}
    for name in KERNELS:
        ending = name.rsplit("_", 1)[-1]
        if ending in ("right", "wrong"):
            counts[name] = counts[ending]
    return counts


def _ticker(progress: Callable[[float], None] | None, total: int) -> Callable[[int], None] | None:
    if progress is None:
        return None
    done = 0

    def tick(more: int) -> None:
        nonlocal done
        done += more
        progress(min(done / total, 1.0))

    return tick


def _plain(x: Any) -> Any:
    if isinstance(x, dict):
        return {key: _plain(value) for key, value in x.items()}
    if isinstance(x, np.ndarray):
        return [_plain(value) for value in x.tolist()]
    if isinstance(x, float) and not math.isfinite(x):
        return None
    return x
