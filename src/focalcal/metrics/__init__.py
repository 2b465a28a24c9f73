"""Metrics of accuracy and calibration: functions of (y_true, y_prob) or (y_true, logits=…).

y_prob (N, K) is a classifier's output, y_prob (N,) the probability of class 1 of a binary
classifier, and `confidence=` (N,) the forecast of an event, as in files of top-1 confidences.
`METRICS` holds the declaration of each.
"""

from focalcal.metrics import scores as _scores  # tables follow the order of declaration

# isort: split
from focalcal.metrics.calibration import (
    ace,
    adaptive_ece,
    classwise_ece,
    confidence_gap,
    debiased_ece,
    ece,
    equal_mass_reliability,
    ks_error,
    mce,
    reliability,
    rms_calibration_error,
)
from focalcal.metrics.comparison import Comparison, Difference, compare
from focalcal.metrics.declare import METRICS, Metric, metric
from focalcal.metrics.monitoring import BatchResult, Monitor
from focalcal.metrics.resampling import bootstrap, resample, resample_pair
from focalcal.metrics.sample import Sample, slices
from focalcal.metrics.scores import (
    BrierDecomposition,
    CorrectnessSplit,
    GroupMeans,
    accuracy,
    brier,
    brier_calibration,
    brier_decomposition,
    brier_refinement,
    correctness_split,
    error,
    nll,
)
from focalcal.metrics.selective import (
    HighConfidence,
    RiskCoverage,
    aurc,
    auroc_of_confidence,
    high_confidence,
    high_confidence_accuracy,
    high_confidence_share,
    risk_coverage,
)
from focalcal.metrics.slicing import Slice, SlicedEvaluation, evaluate_by
from focalcal.metrics.smooth import smooth_ece
from focalcal.metrics.streaming import Streamed, StreamedEvaluation
from focalcal.metrics.summary import (
    CalibrationTest,
    Estimate,
    Evaluation,
    calibration_test,
    evaluate,
    evaluate_sample,
)
from focalcal.stats import CalibrationStats

del _scores

__all__ = [
    "METRICS",
    "BatchResult",
    "BrierDecomposition",
    "CalibrationStats",
    "CalibrationTest",
    "Comparison",
    "CorrectnessSplit",
    "Difference",
    "Estimate",
    "Evaluation",
    "GroupMeans",
    "HighConfidence",
    "Metric",
    "Monitor",
    "RiskCoverage",
    "Sample",
    "Slice",
    "SlicedEvaluation",
    "Streamed",
    "StreamedEvaluation",
    "accuracy",
    "ace",
    "adaptive_ece",
    "aurc",
    "auroc_of_confidence",
    "bootstrap",
    "brier",
    "brier_calibration",
    "brier_decomposition",
    "brier_refinement",
    "calibration_test",
    "classwise_ece",
    "compare",
    "confidence_gap",
    "correctness_split",
    "debiased_ece",
    "ece",
    "equal_mass_reliability",
    "error",
    "evaluate",
    "evaluate_by",
    "evaluate_sample",
    "high_confidence",
    "high_confidence_accuracy",
    "high_confidence_share",
    "ks_error",
    "mce",
    "metric",
    "nll",
    "reliability",
    "resample",
    "resample_pair",
    "risk_coverage",
    "rms_calibration_error",
    "slices",
    "smooth_ece",
]
