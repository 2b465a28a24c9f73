"""The Brier score as a training loss."""

from __future__ import annotations

from torch import Tensor

from focalcal.losses._base import Loss
from focalcal.losses._problem import Problem


class BrierLoss(Loss):
    """Σ_k (q_k − u_k)² per sample, q = softmax(logits), u the (smoothed) target.

    A class weight multiplies the whole sample: w_y, or Σ_k u_k w_k with probability targets.

    Example:
        >>> import torch
        >>> loss = BrierLoss()
        >>> loss(torch.tensor([[0.6, 0.4]]).log(), torch.tensor([0]))
        tensor(0.3200)

    Brier 1950.
    """

    def values(self, problem: Problem) -> Tensor:
        q = problem.logits.softmax(1)
        return problem.scaled_by_weight((q - problem.distribution()).square().sum(1))
