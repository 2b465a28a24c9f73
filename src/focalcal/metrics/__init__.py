"""Metrics of calibration and accuracy: functions of (y_true, y_prob)."""

from focalcal.metrics.calibration import (
    adaptive_ece,
    ece,
    equal_mass_reliability,
    reliability,
)
from focalcal.metrics.scores import accuracy, brier, error, nll

__all__ = [
    "accuracy",
    "adaptive_ece",
    "brier",
    "ece",
    "equal_mass_reliability",
    "error",
    "nll",
    "reliability",
]
