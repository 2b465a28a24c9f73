"""Any loss plus τ times the trace of its Hessian."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import torch
from torch import Tensor

from focalcal.errors import InputError
from focalcal.losses._base import Loss
from focalcal.losses.penalty import curvature_penalty


class CurvatureRegularizedLoss(Loss):
    """L + τ·Tr(H), H the Hessian of L in the model's parameters, by Hutchinson's estimator.

    Call it as `loss(logits, target)` while the graph from the parameters to the logits is alive.
    The trace is differentiable, so `.backward()` trains against curvature; τ = 0 is `base`.

    Args:
        base: the loss L with reduction "mean" or "sum" (cross-entropy in the paper).
        parameters: the tensors the Hessian is taken over.
        tau: τ, the strength.
        probes: random vectors per call.
        generator: source of the probes.

    Example:
        >>> from focalcal.losses import FocalLoss
        >>> model = torch.nn.Linear(3, 2)
        >>> loss = CurvatureRegularizedLoss(FocalLoss(0.0), model.parameters(), tau=0.1)
        >>> loss(model(torch.ones(4, 3)), torch.tensor([0, 1, 0, 1])).backward()

    Kimura and Naganuma 2024, "Geometric Insights into Focal Loss", Eq. 33.
    """

    shown: ClassVar[tuple[str, ...]] = ("tau", "probes")
    needs_parameters = True

    def __init__(
        self,
        base: Loss,
        parameters: Iterable[Tensor],
        tau: float = 0.1,
        probes: int = 1,
        generator: torch.Generator | None = None,
    ) -> None:
        if base.reduction == "none":
            raise InputError(
                "the curvature penalty has no per-sample value: expected a base loss with "
                "reduction 'mean' or 'sum', got 'none'"
            )
        super().__init__(reduction=base.reduction)
        self.base = base
        # In a tuple, so that the model's parameters do not become the loss's own.
        self.over = tuple(parameters)
        if not self.over:
            raise InputError("expected at least one parameter tensor, got none")
        self.tau = float(tau)
        self.probes = probes
        self.generator = generator

    @property
    def needs_validation(self) -> bool:  # type: ignore[override]
        return self.base.needs_validation

    def start_epoch(self, epoch: int, epochs: int) -> None:
        self.base.start_epoch(epoch, epochs)

    def update(self, val_logits: Tensor, val_labels: Tensor) -> None:
        """Pass validation results on to a base that `needs_validation`."""
        self.base.update(val_logits, val_labels)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        value = self.base(logits, target)
        # Evaluation under no_grad has no graph to differentiate: there the base is the loss.
        if self.tau == 0 or not torch.is_grad_enabled():
            return value
        return value + self.tau * curvature_penalty(value, self.over, self.probes, self.generator)
