"""The contents of a report as data: every number of the page, before anything is drawn."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np

from focalcal.bins import Bins
from focalcal.calibrators import Improvement
from focalcal.decisions import Threshold
from focalcal.metrics import Comparison, Evaluation, RiskCoverage, SlicedEvaluation
from focalcal.metrics.summary import plain


@dataclasses.dataclass(frozen=True)
class MethodResult:
    """One calibrator, fitted on the validation set and measured on the test set.

    validation_nll: cross-validated on the validation set, the basis of the choice; None if the
    method is not a candidate. parameters: its scalar fitted parameters.
    """

    method: str
    summary: str
    preserves_accuracy: bool
    parameters: dict[str, float]
    validation_nll: float | None
    evaluation: Evaluation
    seconds: float
    notes: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class View:
    """The test set after one calibrator, for the figures.

    confidence: finer bins of the top confidence, right and wrong; classes: bins (K, M) of every
    class's own probability; class_ece: (K,) their errors, whose mean is the class-wise ECE;
    accuracy_low, accuracy_high: (M,) exact binomial intervals of the accuracy per bin; curve: risk
    and coverage, thinned for drawing; stops: the same at thresholds 0, 0.01, …, 1, where the risk
    is NaN if nothing is kept.
    """

    method: str
    evaluation: Evaluation
    accuracy_low: np.ndarray
    accuracy_high: np.ndarray
    confidence: Bins
    classes: Bins
    class_ece: np.ndarray
    curve: RiskCoverage
    stops: RiskCoverage


@dataclasses.dataclass(frozen=True)
class Landscape:
    """Equal-mass ECE on the validation set over γ (G,) and T (H,): errors (G, H).

    grid_gammas are those of the grid search; `grid` and `line` are the (γ, T) that each search
    finds, `lowest_nll` that of the fit by NLL if there was one; offset and slope define the line
    T = offset + slope·γ.
    """

    gammas: np.ndarray
    temperatures: np.ndarray
    errors: np.ndarray
    grid_gammas: np.ndarray
    grid: tuple[float, float]
    line: tuple[float, float]
    lowest_nll: tuple[float, float] | None
    offset: float
    slope: float

    @property
    def equation(self) -> str:
        """The line, as in "T = 2.30 + 0.97·γ"."""
        return f"T = {self.offset:.2f} {'−' if self.slope < 0 else '+'} {abs(self.slope):.2f}·γ"


@dataclasses.dataclass(frozen=True)
class ModelReport:
    """Everything about one model. `chosen` was picked on the validation set alone.

    sources: for the validation and the test set role, file, sha256, n, class_counts, provenance;
    split: how much of "nll" and "brier" calibration removes on the test set, and what remains;
    wrong: the most confident errors with row of the test file, classes and probabilities;
    thresholds, slices: of the test set after calibration.
    """

    name: str
    n_classes: int
    class_names: tuple[str, ...]
    sources: tuple[dict[str, Any], ...]
    methods: tuple[MethodResult, ...]
    chosen: str
    folds: int
    before: View
    after: View
    split: dict[str, Improvement]
    landscape: Landscape
    wrong: tuple[dict[str, Any], ...]
    calibrator: dict[str, Any]
    thresholds: tuple[Threshold, ...]
    slices: SlicedEvaluation | None
    verdict: str
    warnings: tuple[str, ...] = ()

    @property
    def views(self) -> tuple[tuple[str, View], tuple[str, View]]:
        return ("before", self.before), ("after", self.after)

    def __getitem__(self, method: str) -> MethodResult:
        return next(m for m in self.methods if m.method == method)


@dataclasses.dataclass(frozen=True)
class ModelDifference:
    """Two models after calibration on the same test samples; `second` has the lower NLL."""

    first: str
    second: str
    comparison: Comparison


@dataclasses.dataclass(frozen=True)
class ReportData:
    """One or several models, measured in the same way; the headline is a short verdict."""

    title: str
    models: tuple[ModelReport, ...]
    differences: tuple[ModelDifference, ...]
    headline: str
    verdict: str
    bins: int
    level: float
    resamples: int
    seed: int
    seconds: float
    provenance: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, numbers and None (for a value that is undefined or infinite)."""
        return plain(dataclasses.asdict(self))

    def to_json(self, indent: int | None = 2) -> str:
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False, ensure_ascii=False)
