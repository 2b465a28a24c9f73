"""The short way to the focal loss, for calls with nothing to prepare.

A small batch costs less time than the checks and small operations around it. Here the checks read
metadata only, and the loss is one autograd function. The general way in `focalcal.losses.focal`
takes every other call, the wrong ones included, and says what is wrong with them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import inf, isfinite
from typing import Any

import torch
from torch import Tensor

from focalcal.losses._pointwise import is_transformed, logit_gradient, wants_plain_backward
from focalcal.losses._problem import REDUCTIONS, can_fuse, compute_dtype, is_plain

ZERO = torch.zeros((), device="cpu")


def quick_focal(
    logits: Tensor,
    target: Tensor,
    gamma: float | Tensor,
    weight: Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    reduction: str,
) -> Tensor | None:
    """The focal loss of labels (N,) and logits (N, C) without smoothing, or None: not for here."""
    if is_transformed() or logits.ndim != 2 or target.ndim != 1:
        return None
    n, n_classes = logits.shape
    if (
        label_smoothing
        or reduction not in REDUCTIONS
        or target.dtype is not torch.int64
        or target.size(0) != n
        or not _is_ready(gamma, n, logits)
        or not (weight is None or _is_vector(weight, n_classes, logits))
    ):
        return None
    if can_fuse(logits, target):
        if not target.is_contiguous():
            return None
        return _fused()(logits, target, gamma, weight, ignore_index, reduction)
    if (
        logits.is_cpu
        and target.is_cpu
        and is_plain(logits)
        and logits.dtype in (torch.float32, torch.float64)
        and logits.numel() > 0
        and not isinstance(gamma, Tensor)  # its values would have to be looked at
        and ignore_index < 0
        and target.min().item() >= 0  # none is ignored
    ):
        try:
            return _RowFocal.apply(logits, target.unsqueeze(1), gamma, weight, reduction)
        except RuntimeError:
            return None  # a label beyond the last class, or an infinite loss
    return None


@cache
def _fused() -> Callable[..., Tensor]:
    from focalcal.losses._triton import FusedFocal

    return FusedFocal.apply


def _is_ready(gamma: float | Tensor, n: int, logits: Tensor) -> bool:
    """Whether γ can be used as it is; 0 is left to cross_entropy."""
    if type(gamma) is float or type(gamma) is int:
        return -1 < gamma < inf and gamma != 0
    return isinstance(gamma, Tensor) and _is_vector(gamma, n, logits)


def _is_vector(tensor: Tensor, length: int, logits: Tensor) -> bool:
    """Whether a kernel can read the tensor where it lies."""
    return (
        tensor.shape == (length,)
        and tensor.dtype is compute_dtype(logits)
        and tensor.device == logits.device
        and tensor.is_contiguous()
        and not tensor.requires_grad
    )


class _RowFocal(torch.autograd.Function):
    """The loss on the CPU in few operations, all but three of them on columns (N, 1)."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        column: Tensor,
        gamma: float,
        weight: Tensor | None,
        reduction: str,
    ) -> Tensor:
        log_q = torch.log_softmax(logits, 1)
        log_p = log_q.gather(1, column)
        # As in _pointwise, of −ce: 1−p stops at eps.
        safe = log_p.clamp_max(-torch.finfo(log_p.dtype).eps)
        power = torch.expm1(safe).neg_().pow_(gamma)
        value = log_p.mul_(power)  # of the other sign
        slope = torch.addcdiv(power, value, safe.neg_().expm1_(), value=-gamma)
        weights = None if weight is None else weight[column]
        if weights is not None:
            value.mul_(weights)
            slope.mul_(weights)
        total = value.sum().item()
        if not isfinite(total):
            raise RuntimeError("an infinite cross-entropy, whose slope here would be NaN")
        share = 1.0
        if reduction == "mean":
            share = 1 / (column.size(0) if weights is None else weights.sum().item())
        ctx.save_for_backward(logits, column, log_q, slope)
        ctx.settings = gamma, weights, share
        return (
            value.squeeze(1).neg_() if reduction == "none" else value.new_full((), -total * share)
        )

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        logits, column, log_q, slope = ctx.saved_tensors
        gamma, weights, share = ctx.settings
        if wants_plain_backward(grad):
            factor = grad.unsqueeze(-1) * share
            factor = factor if weights is None else factor * weights
            result = logit_gradient(logits, column, gamma, factor)
        else:
            # slope · grad · share in one operation.
            grad = grad.unsqueeze(1) if grad.ndim else grad
            scale = torch.addcmul(ZERO, slope, grad, value=share)
            result = log_q.exp().mul_(scale).scatter_add_(1, column, scale.neg_())
        return result, None, None, None, None
