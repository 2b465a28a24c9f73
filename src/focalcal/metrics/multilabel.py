"""Several labels per sample: each is a binary problem, and metrics are means over the labels."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from focalcal._arrays import as_array, to_numpy
from focalcal.errors import InputError

if TYPE_CHECKING:
    from focalcal.metrics.summary import Evaluation


def evaluate_labels(
    y_true: Any,
    *,
    y_prob: Any = None,
    logits: Any = None,
    names: Sequence[str] | None = None,
    progress: Callable[[float], None] | None = None,
    **settings: Any,
) -> Evaluation:
    """The evaluation of labels (N, L), 0 or 1: the mean over the labels, and each by itself.

    A metric's interval is the mean of the labels' intervals: it holds however the labels depend on
    one another, because the error of a mean is at most the mean of the errors. It is NaN if a label
    with a value has no interval. The p-value is Bonferroni's, L times the smallest, for which the
    clearest label is tested with 200·L draws.
    """
    from focalcal.metrics.summary import CalibrationTest, Estimate, calibration_test, evaluate

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
    if p_values[j] * (tests[j].resamples + 1) < 2 and draws > tests[j].resamples:  # none as large
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
