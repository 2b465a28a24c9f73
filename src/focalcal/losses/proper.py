"""The properised focal loss L* = FL ∘ Ψ⁻¹."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from focalcal._checks import check_gamma
from focalcal.errors import InputError
from focalcal.losses._base import Loss
from focalcal.losses._pointwise import focal_value
from focalcal.losses._problem import Problem
from focalcal.maps.inverse import inverse_focal_log_map


class ProperFocalLoss(Loss):
    """L*(p) = FL(Ψ⁻¹(p)), p = softmax(logits): a proper loss, minimal at the true posterior.

    Training with it and reading the softmax is training with focal loss and reading Ψ^γ(softmax).
    γ ≥ 0 (below 0 the inverse map minimises no risk); 0 is cross-entropy. Computed in float64.

    Example:
        >>> import torch
        >>> loss = ProperFocalLoss(gamma=1.0)
        >>> q = torch.tensor(0.7744)  # Ψ¹ takes (.7744, .2256) to (.9, .1)
        >>> p = torch.tensor([[0.9, 0.1]])
        >>> torch.allclose(loss(p.log(), torch.tensor([0])), -(1 - q) * q.log(), rtol=1e-3)
        True

    Komisarenko and Kull, ECAI 2024, Props. 2 and 4.
    """

    shown: ClassVar[tuple[str, ...]] = ("gamma",)

    def __init__(self, gamma: float, **settings: Any) -> None:
        super().__init__(**settings)
        self.gamma = check_gamma(gamma)
        if self.gamma < 0:
            raise InputError(f"expected gamma >= 0 for the properised loss, got {gamma}")

    def values(self, problem: Problem) -> Tensor:
        log_q = inverse_focal_log_map(problem.logits.double().movedim(1, -1), self.gamma)
        terms = focal_value(-log_q.movedim(-1, 1), self.gamma)
        return problem.expected(terms.to(problem.precision))
