"""Focal loss on sigmoids: binary and multi-label problems."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor
from torch.nn import functional as F

from focalcal._checks import check_gamma
from focalcal.errors import InputError
from focalcal.losses._base import Loss
from focalcal.losses._pointwise import focal_value
from focalcal.losses._problem import check_reduction, compute_dtype


def sigmoid_focal_loss(
    logits: Tensor,
    target: Tensor,
    gamma: float = 2.0,
    *,
    alpha: float | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Focal loss of independent yes/no problems, one logit each.

    t·α·(1−p)^γ(−ln p) + (1−t)·(1−α)·p^γ(−ln(1−p)), p = sigmoid(logit); without α both weigh 1.

    Args:
        logits: any shape.
        target: the same shape, in [0, 1] (bool, integer or float; fractions are soft labels).
        gamma: γ > −1; 0 without α is binary cross-entropy.
        alpha: weight of the positive class in [0, 1], or None.
        reduction: "none", "mean" (over every element, as BCEWithLogitsLoss) or "sum".

    Returns:
        A scalar, or the logits' shape with reduction "none".

    Example:
        >>> import torch
        >>> sigmoid_focal_loss(torch.tensor([0.0]), torch.tensor([1.0]))  # .25·ln 2
        tensor(0.1733)

    Lin et al. 2017, Eq. 5.
    """
    check_reduction(reduction)
    gamma = check_gamma(gamma)
    _check_alpha(alpha)
    if not logits.is_floating_point():
        raise InputError(f"expected floating-point logits, got {logits.dtype}")
    if target.shape != logits.shape:
        raise InputError(
            f"expected one target per logit, shape {tuple(logits.shape)}, got "
            f"{tuple(target.shape)}; for class labels use F.one_hot or FocalLoss"
        )
    logits = logits.to(compute_dtype(logits))
    target = target.to(logits.dtype)
    positive, negative = (1.0, 1.0) if alpha is None else (alpha, 1 - alpha)
    values = positive * target * focal_value(-F.logsigmoid(logits), gamma)
    values = values + negative * (1 - target) * focal_value(-F.logsigmoid(-logits), gamma)
    if reduction == "none":
        return values
    return values.mean() if reduction == "mean" else values.sum()


class SigmoidFocalLoss(Loss):
    """The module of `sigmoid_focal_loss`; no class weights, smoothing or ignored labels."""

    shown: ClassVar[tuple[str, ...]] = ("gamma", "alpha")

    def __init__(
        self, gamma: float = 2.0, alpha: float | None = None, *, reduction: str = "mean"
    ) -> None:
        super().__init__(reduction=reduction)
        self.gamma = check_gamma(gamma)
        self.alpha = _check_alpha(alpha)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return sigmoid_focal_loss(
            logits, target, self.gamma, alpha=self.alpha, reduction=self.reduction
        )


def _check_alpha(alpha: float | None) -> float | None:
    if alpha is not None and not 0 <= alpha <= 1:
        raise InputError(f"expected alpha in [0, 1] or None, got {alpha}")
    return alpha
