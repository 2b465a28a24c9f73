"""Metric classes for torchmetrics: `update(preds, target)`, `compute()`, synchronised by sums.

`preds` are probabilities, or logits with `logits=True`. Each class is a thin wrapper of
`CalibrationStats`, whose state is a vector that can be summed: memory does not grow with the
samples, processes synchronise with one all-reduce, and confidences of exactly 0 and 1 count once.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from focalcal.errors import InputError, needing
from focalcal.integrations.segmentation import IGNORE_INDEX, pixels
from focalcal.metrics import METRICS, CalibrationStats, StreamedEvaluation
from focalcal.metrics.streaming import check_streamed

with needing("torchmetrics", "integrations", "a torchmetrics metric"):
    from torchmetrics import Metric


class CalibrationMetric(Metric):
    """One metric of `CalibrationStats`, by name.

    num_classes: columns of `preds`; name: such as "ece", by default that of the class; bins: number
    of bins; logits: whether `preds` are logits; ignore_index: a label that is left out.

    `update` takes preds (N, C) or (N, C, d1..dk) and target (N,) or (N, d1..dk), class indices;
    with num_classes=1 also preds of the target's shape, for class 1 of two.

    >>> metric = CalibrationMetric(num_classes=2, name="brier")
    >>> metric.update(torch.tensor([[0.9, 0.1], [0.4, 0.6]]), torch.tensor([0, 1]))
    >>> round(metric.compute().item(), 4)
    0.17
    """

    name: ClassVar[str] = "ece"
    full_state_update = False
    is_differentiable = False
    state: Tensor

    def __init__(
        self,
        num_classes: int | None = None,
        name: str | None = None,
        *,
        bins: int = 15,
        logits: bool = False,
        ignore_index: int = IGNORE_INDEX,
        n_classes: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        n_classes = n_classes if num_classes is None else num_classes  # its name in version 0.1
        if n_classes is None:
            raise InputError("expected num_classes, the columns of preds, got none")
        self.n_classes, self.bins, self.ignore_index = n_classes, bins, ignore_index
        self.logits = logits
        self.metric = name or self.name
        check_streamed([self.metric])
        empty = torch.as_tensor(CalibrationStats(n_classes, bins).to_vector())
        self.add_state("state", default=empty, dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add a batch of probabilities (or logits) and class indices."""
        preds = preds.detach().unsqueeze(1) if preds.shape == target.shape else preds.detach()
        rows, labels = pixels(preds, target, self.ignore_index)
        if len(labels) == 0:
            return
        given = {"logits": rows} if self.logits else {"y_prob": rows}
        batch = CalibrationStats(self.n_classes, self.bins).update(labels, **given)
        self.state = self.state + torch.as_tensor(batch.to_vector(), device=self.state.device)

    def evaluation(self) -> StreamedEvaluation:
        """All metrics of the samples so far, with the reliability bins."""
        stats = CalibrationStats(self.n_classes, self.bins)
        return stats.add_vector(self.state.cpu().numpy()).compute()

    def compute(self) -> Tensor:
        """The metric of all samples so far; NaN if every label was `ignore_index`."""
        seen = not self.update_called or bool(self.state[0] > 0)
        value = self.evaluation()[self.metric].value if seen else math.nan
        return torch.tensor(value, dtype=torch.float32, device=self.state.device)

    @property
    def higher_is_better(self) -> bool | None:
        return {"higher": True, "lower": False}.get(METRICS[self.metric].better)

    @property
    def plot_lower_bound(self) -> float:
        return METRICS[self.metric].range[0]

    @property
    def plot_upper_bound(self) -> float | None:
        highest = METRICS[self.metric].range[1]
        return highest if math.isfinite(highest) else None

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """Figure and axes of the current value, or of the given ones, as drawn by torchmetrics."""
        return self._plot(val, ax)


class ExpectedCalibrationError(CalibrationMetric):
    """ECE over equally wide bins (lo, hi]."""

    name = "ece"


class AdaptiveCalibrationError(CalibrationMetric):
    """ECE over equal-mass bins."""

    name = "adaptive_ece"


class SmoothCalibrationError(CalibrationMetric):
    """Smooth ECE."""

    name = "smooth_ece"


class NegativeLogLikelihood(CalibrationMetric):
    """Mean −log p of the true class."""

    name = "nll"


class BrierScore(CalibrationMetric):
    """Mean Σ_k (p_k − y_k)²."""

    name = "brier"
