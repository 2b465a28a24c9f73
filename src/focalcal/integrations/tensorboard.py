"""Calibration in TensorBoard: scalars and a reliability diagram."""

from __future__ import annotations

import math
from typing import Any

from focalcal.bins import Bins
from focalcal.errors import MissingExtraError
from focalcal.metrics import Evaluation, StreamedEvaluation

METRICS = ("accuracy", "nll", "brier", "ece", "adaptive_ece", "classwise_ece", "confidence_gap")
"""What is logged unless other names are given; any key of the evaluation will do."""


def log_evaluation(
    writer: Any,
    evaluation: Evaluation | StreamedEvaluation,
    step: int,
    *,
    prefix: str = "calibration",
    metrics: tuple[str, ...] = METRICS,
) -> None:
    """Add metrics and reliability diagram to a `SummaryWriter` (or anything with its methods).

    Values that are undefined or infinite are left out; an `Evaluation`'s intervals become the
    scalars `ece_low` and `ece_high`.
    """
    for name in metrics:
        found = evaluation[name]
        numbers = {name: found.value}
        if isinstance(evaluation, Evaluation):
            numbers |= {f"{name}_low": found.low, f"{name}_high": found.high}
        for key, value in numbers.items():
            if math.isfinite(value):
                writer.add_scalar(f"{prefix}/{key}", value, step)
    writer.add_figure(f"{prefix}/reliability", reliability_figure(evaluation.reliability), step)


def reliability_figure(bins: Bins) -> Any:
    """A reliability diagram as a matplotlib `Figure`, for any logger that takes one."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise MissingExtraError("matplotlib", "figures", "a reliability diagram") from error
    from focalcal.figures import plot_reliability, reliability_panel

    figure = Figure(figsize=(4.2, 3.4), layout="constrained")
    plot_reliability(reliability_panel(bins), figure.subplots())
    return figure
