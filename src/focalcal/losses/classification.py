"""Other per-sample losses: Brier, dual focal, properised focal."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from focalcal._checks import check_gamma
from focalcal.errors import InputError
from focalcal.losses._base import Loss, Problem
from focalcal.losses._pointwise import focal_value
from focalcal.maps.inverse import inverse_focal_log_map


class BrierLoss(Loss):
    """Σ_k (q_k − u_k)² per sample, q = softmax(logits), u the (smoothed) target.

    A class weight multiplies the whole sample: w_y, or Σ_k u_k w_k with probability targets.

    Example:
        >>> loss = BrierLoss()
        >>> loss(torch.tensor([[0.6, 0.4]]).log(), torch.tensor([0]))
        tensor(0.3200)

    Brier 1950.
    """

    def values(self, problem: Problem) -> Tensor:
        q = problem.logits.softmax(1)
        return problem.per_sample((q - problem.distribution()).square().sum(1))


class DualFocalLoss(Loss):
    """−(1 − p_y + p_j)^γ · ln p_y, p_j the largest probability strictly below p_y (0 if none).

    The gradient flows through p_j. Integer targets only.

    Example:
        >>> loss = DualFocalLoss(gamma=1.0)
        >>> loss(torch.tensor([[0.6, 0.3, 0.1]]).log(), torch.tensor([0]))  # .7·(−ln .6)
        tensor(0.3576)

    Tao et al. 2023, Eq. 6.
    """

    shown = ("gamma",)
    integer_only = True

    def __init__(self, gamma: float = 5.0, **settings: Any) -> None:
        super().__init__(**settings)
        self.gamma = check_gamma(gamma)

    def values(self, problem: Problem) -> Tensor:
        log_q = F.log_softmax(problem.logits, 1)
        ce = F.nll_loss(log_q, problem.labels, ignore_index=problem.ignore_index, reduction="none")
        below = log_q.masked_fill(log_q >= -ce.unsqueeze(1), -torch.inf).amax(1)
        one_minus_p = (-torch.expm1(-ce)).masked_fill(ce.isinf(), 1.0)  # else the gradient is 0·∞
        # At 0 the power's derivative diverges for γ < 1 while its product with ce vanishes.
        margin = (below.exp() + one_minus_p).clamp(min=torch.finfo(ce.dtype).eps)
        return problem.per_sample(margin**self.gamma * ce)


class ProperFocalLoss(Loss):
    """L*(p) = FL(Ψ⁻¹(p)), p = softmax(logits): a proper loss, minimal at the true posterior.

    Training with it and using the softmax equals training with focal loss and using Ψ^γ(softmax).
    γ ≥ 0 (below 0 the inverse map minimises no risk); 0 is cross-entropy. Computed in float64.

    Example:
        >>> loss = ProperFocalLoss(gamma=1.0)
        >>> q = torch.tensor(0.7744)  # Ψ¹ takes (.7744, .2256) to (.9, .1)
        >>> p = torch.tensor([[0.9, 0.1]])
        >>> torch.allclose(loss(p.log(), torch.tensor([0])), -(1 - q) * q.log(), rtol=1e-3)
        True

    Komisarenko and Kull, ECAI 2024, Props. 2 and 4.
    """

    shown = ("gamma",)

    def __init__(self, gamma: float, **settings: Any) -> None:
        super().__init__(**settings)
        self.gamma = check_gamma(gamma)
        if self.gamma < 0:
            raise InputError(f"expected gamma >= 0 for the properised loss, got {gamma}")

    def values(self, problem: Problem) -> Tensor:
        invert = inverse_focal_log_map
        if torch.compiler.is_compiling():  # it iterates until it converges: a graph break
            invert = torch.compiler.disable(invert)
        log_q = invert(problem.logits.double().movedim(1, -1), self.gamma)
        terms = focal_value(-log_q.movedim(-1, 1), self.gamma)
        return problem.expected(terms.to(problem.precision))
