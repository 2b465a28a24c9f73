"""Everything at once: all metrics with intervals, and a test of "calibrated"."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from focalcal._arrays import as_array, to_numpy
from focalcal._checks import check_level
from focalcal.bins import Bins
from focalcal.columns import check_given
from focalcal.errors import InputError
from focalcal.metrics.declare import METRICS, Metric, named
from focalcal.metrics.intervals import bootstrap_interval, gap_interval, skipped_share
from focalcal.metrics.proportion import Estimate
from focalcal.metrics.resampling import CalibrationTest, check_resamples, consistency_test, resample
from focalcal.metrics.sample import EVERYTHING, Sample, of_samples


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """All metrics of one set of predictions. `evaluation["ece"]` is an `Estimate`.

    n_classes is 1 for the forecast of an event; reliability holds the bins of a reliability
    diagram. labels: for a multi-label task, each label's own evaluation; this is then their mean.
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
        return named(self.metrics, name)

    @property
    def direction(self) -> str:
        """Over- or under-confident by how many points, or that chance explains the ECE.

        The direction is given only if the interval of confidence − accuracy excludes 0.
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

    y_true: (N,) labels, or `Predictions`, which has both labels and values. With labels, exactly
    one of: y_prob or logits, (N, K), or (N,) for class 1 of a binary classifier; confidence, (N,),
    the forecast of an event (y_true = 1: it happened), such as a file of top-1 confidences.
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
    """`evaluate` of a `Sample`; metrics that need parts it lacks are left out."""
    stats = sample.stats()
    known = {name: m for name, m in METRICS.items() if stats.has(m.needs)}
    values = {name: float(m.of(stats)) for name, m in known.items()}
    names = [name for name, m in known.items() if m.interval == "bootstrap" and m.resampled]
    draws = resample(sample, names, resamples, seed, progress)
    test = consistency_test(sample, values["ece"], resamples, seed)
    sizes = sample.sizes()

    right = float(stats.top.correct_sums.sum())
    few = min(right, sample.total - right)
    skipped = skipped_share(few, sample.total, level)
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
            low = 0.0 if test.p_value > 1 - level else low - skipped
            # None of these errors is below |confidence − accuracy|, whose interval is also valid
            # if all samples are right and resamples show no other accuracy.
            high = max(high, gap)
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


def evaluate_labels(
    y_true: Any,
    *,
    y_prob: Any = None,
    logits: Any = None,
    names: Sequence[str] | None = None,
    progress: Callable[[float], None] | None = None,
    **settings: Any,
) -> Evaluation:
    """The evaluation of labels (N, L), 0 or 1: the mean over the labels, and each on its own.

    A metric's interval is the mean of the labels' intervals: it holds for any dependence between
    labels, because the error of a mean is at most the mean of the errors. It is NaN if a label
    with a value has no interval. The p-value is Bonferroni's, L times the smallest, for which the
    most significant label is tested with 200·L draws.
    """
    key, values = ("logits", logits) if y_prob is None else ("y_prob", y_prob)
    labels, values = as_array(y_true), as_array(values)
    if labels.ndim != 2 or tuple(labels.shape) != tuple(values.shape):
        raise InputError(
            "expected multi-label y_true and predictions of one shape (N, labels), "
            f"got {tuple(labels.shape)} and {tuple(values.shape)}"
        )
    width = labels.shape[1]
    parts: dict[str, Evaluation] = {}
    for j, name in enumerate(map(str, names or range(width))):
        tick = None if progress is None else lambda part, j=j: progress((j + part) / width)
        given = {key: values[:, j], **settings, "progress": tick}
        parts[name] = evaluate(to_numpy(labels[:, j]), **given)
    several = list(parts.values())
    metrics = {}
    for name in several[0].metrics:
        ends = ("value", "low", "high")
        known = [e[name] for e in several if not math.isnan(e[name].value)]
        value, low, high = (_mean([getattr(m, end) for m in known]) for end in ends)
        metrics[name] = Estimate(value, low, high, several[0].n)
    tests = [part.test for part in several]
    p_values = [t.p_value for t in tests]
    j = min(range(width), key=lambda j: (p_values[j], tests[j].expected_ece - tests[j].ece))
    draws = 200 * width
    # If no draw was as large as the data, more draws may lower the p-value.
    if p_values[j] * (tests[j].resamples + 1) < 2 and draws > tests[j].resamples:
        given = {name: settings[name] for name in ("bins", "sample_weight") if name in settings}
        given |= {key: values[:, j], "seed": several[j].seed, "resamples": draws}
        p_values[j] = calibration_test(to_numpy(labels[:, j]), **given).p_value
    test = CalibrationTest(
        ece=metrics["ece"].value,
        p_value=min(1.0, width * min(p_values)),
        expected_ece=_mean([t.expected_ece for t in tests]),
        resamples=tests[0].resamples,
    )
    bins = functools.reduce(operator.add, (part.reliability for part in several))
    return dataclasses.replace(
        several[0], metrics=metrics, test=test, reliability=bins, n_classes=width, labels=parts
    )


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else math.nan


@of_samples("top")
def calibration_test(sample: Sample, *, resamples: int = 1000, seed: int = 0) -> CalibrationTest:
    """Test the hypothesis "calibrated": would calibrated predictions show an ECE this large?

    Correctness is drawn from the confidences `resamples` times; the p-value is the share of draws,
    including the data themselves, whose ECE is at least that of the data.

    >>> calibration_test([0] * 30, [0.9] * 30, resamples=99).p_value
    0.01

    Bröcker & Smith 2007; Vaicenavicius et al. 2019.
    """
    value = float(METRICS["ece"].of(sample.stats()))
    return consistency_test(sample, value, check_resamples(resamples), seed)


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
