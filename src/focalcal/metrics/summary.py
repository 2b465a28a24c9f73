"""Everything at once: all metrics with intervals, and a test of "calibrated"."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from focalcal._checks import check_level
from focalcal.bins import Bins
from focalcal.columns import check_given
from focalcal.errors import InputError
from focalcal.metrics.declare import METRICS, Metric
from focalcal.metrics.intervals import bootstrap_interval, gap_interval
from focalcal.metrics.multilabel import evaluate_labels
from focalcal.metrics.resampling import check_resamples, consistency_test, resample
from focalcal.metrics.sample import EVERYTHING, Sample, of_samples


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A metric with its interval (NaN where it has none) and the number of samples behind it."""

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

    n_classes is 1 for the forecast of an event; reliability holds the bins of a reliability
    diagram. labels: for a multi-label task, of which this is the mean, each label by itself.
    """

    n: int
    n_classes: int
    metrics: dict[str, Estimate]
    test: CalibrationTest
    reliability: Bins
    threshold: float
    level: float
    resamples: int
    seed: int
    labels: dict[str, Evaluation] = dataclasses.field(default_factory=dict)

    def __getitem__(self, name: str) -> Estimate:
        return self.metrics[name]

    @property
    def direction(self) -> str:
        """Over- or under-confident by how many points, or that chance explains the ECE.

        The way is named only where the interval of confidence − accuracy excludes 0.
        """
        found = self["confidence_gap"]
        gap = found.value
        if not self.miscalibrated:
            return "No sign of miscalibration"
        way = "Over-confident" if gap > 0 else "Under-confident"
        points = f"by {100 * abs(gap):.1f} points"
        if abs(gap) < 0.25 * self["ece"].value:
            return f"Miscalibrated both ways (on balance {way.lower()} {points})"
        if found.low <= 0 <= found.high:
            return "Miscalibrated, but neither clearly over- nor under-confident"
        return f"{way} {points}"

    @property
    def miscalibrated(self) -> bool:
        """Whether the test rejects "calibrated" at this level."""
        return self.test.p_value <= 1 - self.level

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, numbers and None (for a value that is undefined or infinite)."""
        record = plain(dataclasses.asdict(self))
        if not self.labels:
            del record["labels"]
        for label in record.get("labels", {}).values():
            del label["labels"]
        return record

    def to_json(self, indent: int | None = 2) -> str:
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False, ensure_ascii=False)


def evaluate(
    y_true: Any,
    y_prob: Any = None,
    *,
    logits: Any = None,
    confidence: Any = None,
    task: str = "auto",
    bins: int = 15,
    threshold: float = 0.99,
    sample_weight: Any = None,
    resamples: int | None = None,
    level: float = 0.95,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> Evaluation:
    """All metrics with intervals, and the test of "calibrated".

    Means, shares, squared and class-wise errors have intervals in closed form, other errors and
    areas bootstrap intervals; those of calibration errors of the top label reach 0 if the test does
    not reject "calibrated" at this level. See `focalcal.metrics.intervals`.

    y_true: (N,) labels, or `Predictions`, which has both labels and values. Else exactly one of
    y_prob and logits, (N, K), or (N,) for class 1 of a binary classifier, and confidence, (N,), the
    forecast of an event (y_true = 1: it happened), such as a file of top-1 confidences.
    task: "multilabel" takes y_true (N, L) of zeros and ones and predictions of that shape, and
    gives the mean over the labels with each label in `labels`; see `evaluate_labels`.
    sample_weight: (N,), how many samples each stands for; resamples: default 1000, fewer (at
    least 200) for more than 10,000 samples; level: coverage of the intervals; progress: called
    with the fraction done.

    >>> e = evaluate([0, 1, 1, 0], [[0.8, 0.2], [0.3, 0.7], [0.6, 0.4], [0.9, 0.1]], resamples=50)
    >>> e["accuracy"].value, e.n, e.test.resamples
    (0.75, 4, 50)
    """
    check_level(level)
    if task not in ("auto", "multilabel"):
        raise InputError(f"expected task 'auto' or 'multilabel', got {task!r}")
    check_given(y_true, y_prob, logits, confidence)
    settings = {"bins": bins, "threshold": threshold, "sample_weight": sample_weight}
    given = y_true if hasattr(y_true, "as_logits") else None
    if task == "multilabel" or getattr(given, "task", "auto") == "multilabel":
        settings |= {"resamples": resamples, "level": level, "seed": seed, "progress": progress}
        if given is None:
            return evaluate_labels(y_true, y_prob=y_prob, logits=logits, **settings)
        values = {"y_prob": given.probs, "logits": given.logits, "names": given.class_names}
        return evaluate_labels(given.labels, **values, **settings)
    given = {"logits": logits, "confidence": confidence}
    sample = Sample.read(y_true, y_prob, EVERYTHING, **given, **settings)
    if resamples is None:
        resamples = min(1000, max(200, 10_000_000 // sample.n))
    return evaluate_sample(sample, check_resamples(resamples), level, seed, progress)


def evaluate_sample(
    sample: Sample,
    resamples: int,
    level: float,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> Evaluation:
    """`evaluate` of samples that were read; metrics of what they lack are left out."""
    stats = sample.stats()
    known = {name: m for name, m in METRICS.items() if stats.has(m.needs)}
    values = {name: float(m.of(stats)) for name, m in known.items()}
    names = [name for name, m in known.items() if m.interval == "bootstrap" and m.resampled]
    draws = resample(sample, names, resamples, seed, progress)
    test = _test(sample, values["ece"], resamples, seed)
    sizes = sample.sizes()

    right = float(stats.top.correct_sums.sum())
    few = min(right, sample.total - right)
    gap = max(map(abs, gap_interval(values["confidence_gap"], sample, level)))

    def ends(name: str, m: Metric) -> tuple[float, float]:
        value = values[name]
        if m.interval is None or not math.isfinite(value):
            return math.nan, math.nan
        if name in draws:
            low, high = bootstrap_interval(m, value, draws[name], level, few)
        else:
            low, high = m.interval(value, sample, level)
        if m.tested and not math.isnan(low):
            low = 0.0 if test.p_value > 1 - level else low
            # None of these errors is below |confidence − accuracy|, whose interval also serves
            # where all samples are right and resamples show no other accuracy.
            high = high if few > 0 else max(high, gap)
        least, most = m.range
        return float(max(low, least)), float(min(high, most))

    return Evaluation(
        n=sample.n,
        n_classes=sample.data.n_classes,
        metrics={
            name: Estimate(values[name], *ends(name, m), sizes.get(m.within, sample.n))
            for name, m in known.items()
        },
        test=test,
        reliability=stats.top,
        threshold=sample.threshold,
        level=level,
        resamples=resamples,
        seed=seed,
    )


@of_samples("top")
def calibration_test(sample: Sample, *, resamples: int = 1000, seed: int = 0) -> CalibrationTest:
    """Test the hypothesis "calibrated": could data that obey their confidences look like this?

    Correctness is drawn from the confidences `resamples` times; the p-value is the share of draws,
    the data counted among them, whose ECE is at least that of the data.

    >>> calibration_test([0] * 30, [0.9] * 30, resamples=99).p_value
    0.01

    Bröcker & Smith 2007; Vaicenavicius et al. 2019.
    """
    value = float(METRICS["ece"].of(sample.stats()))
    return _test(sample, value, check_resamples(resamples), seed)


def _test(sample: Sample, value: float, resamples: int, seed: int) -> CalibrationTest:
    return CalibrationTest(value, *consistency_test(sample, resamples, seed), resamples)


def plain(x: Any) -> Any:
    """JSON-ready values: arrays and tuples become lists, NaN and infinity None."""
    if isinstance(x, dict):
        return {str(key): plain(value) for key, value in x.items()}
    if isinstance(x, np.ndarray):
        return plain(x.tolist())
    if isinstance(x, list | tuple):
        return [plain(value) for value in x]
    if isinstance(x, np.generic):
        return plain(x.item())
    if isinstance(x, float) and not math.isfinite(x):
        return None
    return x
