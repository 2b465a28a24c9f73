"""Monitoring: batches are compared with a reference, by tests that are valid after every batch.

The hypotheses of `TESTS`, the last of which needs no labels, are tested over the whole life of a
monitor, each at a third of 1 − level, so that the probability of any false alarm is at most
1 − level for any number of batches. The tests are e-processes, see `focalcal.metrics.sequential`.
"""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any, Self

import numpy as np

from focalcal._checks import check_classes, check_level
from focalcal.bins import Bins, bin_samples, equal_mass_edges
from focalcal.errors import FileFormatError, InputError
from focalcal.metrics.proportion import proportion
from focalcal.metrics.sequential import (
    MISCALIBRATED,
    EProcess,
    accuracy_ratios,
    confidence_ratios,
    miscalibration_ratios,
)
from focalcal.metrics.summary import Estimate, calibration_test, plain
from focalcal.stats import PARTS, CalibrationStats, numbers

FORMAT, VERSION = "focalcal-monitor", 1
BINS = 20
"""Equal-mass bins of the reference's confidences, in which batches are compared with it."""
ADVICE = (
    "After an alarm: look for the slice that changed, fit a calibrator to recent labelled samples, "
    "and start a new monitor from them."
)
TESTS = {
    "calibrated": "a prediction of confidence c is right with probability c",
    "reference": "at equal confidence, right as often as in the reference",
    "confidences": "confidences distributed as in the reference",
}
_FOUND = {
    "calibrated": "not calibrated",
    "reference": "accuracy at equal confidence has changed",
    "confidences": "confidences have drifted",
}


@dataclasses.dataclass(frozen=True)
class Batch:
    """What a monitor keeps of some samples; parts of one batch can be added.

    seen: all confidences in the reference's bins; labelled: those with labels; variance: Σ c(1 − c)
    of all confidences; ratios: of `miscalibration_ratios`; stats: for the metrics, None unlabelled.
    """

    seen: Bins
    labelled: Bins
    variance: float
    ratios: np.ndarray
    stats: CalibrationStats | None

    def __add__(self, other: Batch) -> Batch:
        stats = self.stats or other.stats
        if self.stats and other.stats:
            stats = self.stats + other.stats
        return Batch(
            self.seen + other.seen,
            self.labelled + other.labelled,
            self.variance + other.variance,
            self.ratios + other.ratios,
            stats,
        )


@dataclasses.dataclass(frozen=True)
class BatchResult:
    """The result of one batch.

    accuracy: measured (None without labels); expected_accuracy: the mean confidence, which is the
    accuracy if the model is still calibrated; trusted: false if there is evidence against that,
    which `caution` names. p_values: by test, valid after every batch; alarms: tests whose alarm
    this batch raised. metrics: values by name (None if undefined), empty without labels.
    """

    name: str
    n: int
    labelled: int
    accuracy: Estimate | None
    expected_accuracy: Estimate
    trusted: bool
    caution: str
    p_values: dict[str, float]
    alarms: tuple[str, ...]
    metrics: dict[str, float | None]


class Monitor:
    """Tests of a deployed model, batch by batch, against "calibrated" and against a reference.

    y_true, y_prob: labels (N,) and probabilities (N, K) of the reference, or (N,) for class 1 of
    two; level: 1 − the probability of a false alarm over the whole life; tolerance: accuracy
    within ± this of the confidence counts as calibrated.

    >>> rng = np.random.default_rng(0)
    >>> p = rng.uniform(0.5, 1.0, (5, 1000))
    >>> y = (rng.random(p.shape) < p).astype(int)
    >>> monitor = Monitor(y[0], p[0])
    >>> monitor.update("week 1", p[1], y[1]).alarms
    ()
    >>> monitor.update("week 2", p[2], y[3]).alarms
    ('calibrated', 'reference')
    >>> Monitor.from_json(monitor.to_json()).alarms
    {'calibrated': 'week 2', 'reference': 'week 2'}
    """

    class_names: tuple[str, ...] | None = None
    """For reading batches, which may lack a class; `focalcal monitor` sets them."""

    def __init__(
        self, y_true: Any, y_prob: Any, *, level: float = 0.95, tolerance: float = 0.0
    ) -> None:
        check_level(level)
        if not 0 <= tolerance < 1:
            raise InputError(f"expected a tolerance in [0, 1), such as 0.01, got {tolerance!r}")
        labels, probs = check_classes(y_true, y_prob)
        if labels is None:
            raise InputError("expected a reference with labels, got none")
        self.level, self.tolerance = float(level), float(tolerance)
        self.n_classes = probs.shape[1]
        confidence, correct = probs.max(axis=1), probs.argmax(axis=1) == labels
        self.edges = equal_mass_edges(confidence, BINS)
        held = self.summarise(probs, labels)
        self.seen, self.labelled = held.seen, held.labelled
        self.reference = {
            "n": len(probs),
            "accuracy": float(correct.mean()),
            "gap_variance": float((confidence - correct).var() / len(probs)),
            "p_value": calibration_test(labels, probs, resamples=1000).p_value,
            "metrics": _values(held.stats),
        }
        self.tests = {name: EProcess() for name in TESTS}
        self.results: list[BatchResult] = []

    def summarise(self, y_prob: Any, y_true: Any = None) -> Batch:
        """What `update` needs from some samples; the summaries of parts can be added."""
        labels, probs = check_classes(y_true, y_prob)
        if probs.shape[1] != self.n_classes:
            raise InputError(
                f"expected {self.n_classes} classes, as in the reference, got {probs.shape[1]}"
            )
        confidence = probs.max(axis=1)
        c = confidence.astype(np.float64)
        variance = float((c * (1 - c)).sum())
        if labels is None:
            seen = bin_samples(c, np.zeros(len(c), bool), self.edges)
            none = Bins.empty(self.edges)
            return Batch(seen, none, variance, np.zeros(len(MISCALIBRATED)), None)
        correct = probs.argmax(axis=1) == labels
        seen = bin_samples(c, correct, self.edges)
        ratios = miscalibration_ratios(confidence, correct, self.tolerance)
        stats = CalibrationStats(self.n_classes).update(labels, probs)
        return Batch(seen, seen, variance, ratios, stats)

    def update(self, name: str, y_prob: Any, y_true: Any = None) -> BatchResult:
        """Test another batch: probabilities (N, K) and, if known, labels (N,); or a `Batch`."""
        batch = y_prob if isinstance(y_prob, Batch) else self.summarise(y_prob, y_true)
        before = set(self.alarms)
        ratios = {"confidences": confidence_ratios(self.seen, batch.seen)}
        if batch.labelled.total > 0:
            ratios["calibrated"] = batch.ratios
            ratios["reference"] = accuracy_ratios(self.labelled, batch.labelled)
        self.tests |= {test: self.tests[test].update(r) for test, r in ratios.items()}
        self.seen, self.labelled = self.seen + batch.seen, self.labelled + batch.labelled
        p_values = {test: self.tests[test].p_value for test in TESTS}
        raised = tuple(t for t, p in p_values.items() if p <= self.threshold and t not in before)
        caution = self._caution(before | set(raised))
        n, right = int(batch.labelled.total), float(batch.labelled.correct_sums.sum())
        result = BatchResult(
            name=str(name),
            n=int(batch.seen.total),
            labelled=n,
            accuracy=proportion(round(right), n, self.level) if n else None,
            expected_accuracy=self._expected(batch),
            trusted=not caution,
            caution=caution,
            p_values=p_values,
            alarms=raised,
            metrics=_values(batch.stats),
        )
        self.results.append(result)
        return result

    @property
    def threshold(self) -> float:
        """The p-value at or below which a test raises an alarm: the tests share 1 − level."""
        return (1 - self.level) / len(TESTS)

    @property
    def alarms(self) -> dict[str, str]:
        """The tests that have raised an alarm, with the batch that raised it."""
        return {test: r.name for r in self.results for test in r.alarms}

    @property
    def verdict(self) -> str:
        """One line: no alarm, or which and since when."""
        if not self.alarms:
            n = len(self.results)
            return f"No alarm after {n} {'batch' if n == 1 else 'batches'}."
        found = [f"{_FOUND[test]} since {batch}" for test, batch in self.alarms.items()]
        return f"Alarm: {'; '.join(found)}."

    def _expected(self, batch: Batch) -> Estimate:
        """Mean confidence; its interval covers the batch's chance and the reference's gap."""
        from scipy.special import ndtri

        n = int(batch.seen.total)
        value = float(batch.seen.confidence_sums.sum()) / n
        variance = batch.variance / n**2 + self.reference["gap_variance"]
        # Half a sample more, since the number of errors is whole, and 0 or 1 if they are rare.
        half = float(ndtri((1 + self.level) / 2)) * math.sqrt(variance) + 0.5 / n
        return Estimate(value, max(value - half, 0.0), min(value + half, 1.0), n)

    def _caution(self, alarms: set[str]) -> str:
        """Why the mean confidence may differ from the accuracy, as far as can be detected."""
        if "calibrated" in alarms or "reference" in alarms:
            return "labelled batches are not calibrated"
        if self.reference["p_value"] < 0.05:
            return "the reference itself is not calibrated"
        return "the confidences have drifted" if "confidences" in alarms else ""

    def to_json(self) -> str:
        """The state as JSON text: its size depends on bins and batches, not on samples."""
        state = {
            "format": FORMAT,
            "version": VERSION,
            "level": self.level,
            "tolerance": self.tolerance,
            "n_classes": self.n_classes,
            "class_names": self.class_names,
            "edges": self.edges.tolist(),
            "seen": [getattr(self.seen, part).tolist() for part in PARTS],
            "labelled": [getattr(self.labelled, part).tolist() for part in PARTS],
            "reference": self.reference,
            "tests": {name: e.to_dict() for name, e in self.tests.items()},
            "batches": [dataclasses.asdict(r) for r in self.results],
        }
        return json.dumps(state, indent=1, allow_nan=False, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The monitor that `to_json` wrote; anything else is a FileFormatError."""
        try:
            state = json.loads(text)
            if state["format"] != FORMAT or state["version"] != VERSION:
                raise FileFormatError(f"{state['format']} version {state['version']}")
            made = cls.__new__(cls)
            made.level, made.tolerance = float(state["level"]), float(state["tolerance"])
            made.n_classes, made.reference = int(state["n_classes"]), dict(state["reference"])
            if state.get("class_names") is not None:
                made.class_names = tuple(map(str, state["class_names"]))
            made.edges = np.array(state["edges"], dtype=np.float64)
            shape = (len(made.edges) - 1,)
            made.seen, made.labelled = (
                Bins(made.edges, *(numbers(sums, shape, name) for sums in state[name]))
                for name in ("seen", "labelled")
            )
            made.tests = {name: EProcess.from_dict(state["tests"][name]) for name in TESTS}
            made.results = [_result(r) for r in state["batches"]]
        except (ValueError, TypeError, KeyError) as error:
            raise FileFormatError(
                f"expected the JSON that a monitor saved, got: {error}; start from the reference"
            ) from error
        return made


def _values(stats: CalibrationStats | None) -> dict[str, float | None]:
    """Values of the metrics, None where one is undefined or infinite."""
    return {} if stats is None else plain({k: m.value for k, m in stats.compute().metrics.items()})


def _result(record: dict[str, Any]) -> BatchResult:
    given = {name: record[name] for name in ("accuracy", "expected_accuracy")}
    estimates = {name: None if e is None else Estimate(**e) for name, e in given.items()}
    return BatchResult(**record | estimates | {"alarms": tuple(record["alarms"])})
