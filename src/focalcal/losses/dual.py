"""Dual focal loss: the focal factor contains the margin to the next class below the true one."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from focalcal._checks import check_gamma
from focalcal.losses._base import Loss
from focalcal.losses._problem import Problem


class DualFocalLoss(Loss):
    """−(1 − p_y + p_j)^γ · ln p_y, p_j the largest probability strictly below p_y (0 if none).

    The gradient flows through p_j. Integer targets only.

    Example:
        >>> loss = DualFocalLoss(gamma=1.0)
        >>> loss(torch.tensor([[0.6, 0.3, 0.1]]).log(), torch.tensor([0]))  # .7·(−ln .6)
        tensor(0.3576)

    Tao et al. 2023, Eq. 6.
    """

    shown: ClassVar[tuple[str, ...]] = ("gamma",)
    integer_only: ClassVar[bool] = True

    def __init__(self, gamma: float = 5.0, **settings: Any) -> None:
        super().__init__(**settings)
        self.gamma = check_gamma(gamma)

    def values(self, problem: Problem) -> Tensor:
        log_q = F.log_softmax(problem.logits, 1)
        log_p = log_q.gather(1, problem.safe_labels().unsqueeze(1))
        below = log_q.masked_fill(log_q >= log_p, -torch.inf).amax(1)
        ce = -log_p.squeeze(1)
        # At 0 the power's derivative diverges for γ < 1 while its product with ce vanishes.
        margin = (below.exp() - torch.expm1(-ce)).clamp(min=torch.finfo(ce.dtype).eps)
        return problem.scaled_by_weight(margin**self.gamma * ce)
