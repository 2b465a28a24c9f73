"""Metrics of accuracy and calibration: functions of (y_true, y_prob).

A two-dimensional y_prob (N, K) is a classifier's output, a one-dimensional one (N,) the
probability of y_true = 1.
"""

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
from focalcal.metrics.resampling import bootstrap
from focalcal.metrics.scores import (
    BrierDecomposition,
    CorrectnessSplit,
    GroupMeans,
    accuracy,
    brier,
    brier_decomposition,
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
    risk_coverage,
)
from focalcal.metrics.smooth import smooth_ece
from focalcal.metrics.streaming import CalibrationStats, Streamed, StreamedEvaluation
from focalcal.metrics.summary import (
    CalibrationTest,
    Estimate,
    Evaluation,
    calibration_test,
    evaluate,
)

__all__ = [
    "BrierDecomposition",
    "CalibrationStats",
    "CalibrationTest",
    "CorrectnessSplit",
    "Estimate",
    "Evaluation",
    "GroupMeans",
    "HighConfidence",
    "RiskCoverage",
    "Streamed",
    "StreamedEvaluation",
    "accuracy",
    "ace",
    "adaptive_ece",
    "aurc",
    "auroc_of_confidence",
    "bootstrap",
    "brier",
    "brier_decomposition",
    "calibration_test",
    "classwise_ece",
    "confidence_gap",
    "correctness_split",
    "debiased_ece",
    "ece",
    "equal_mass_reliability",
    "error",
    "evaluate",
    "high_confidence",
    "ks_error",
    "mce",
    "nll",
    "reliability",
    "risk_coverage",
    "rms_calibration_error",
    "smooth_ece",
]
