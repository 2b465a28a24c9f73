"""The short way to the focal loss, for calls with nothing to prepare.

A small batch costs less time than the checks and small operations around it. Here the checks read
metadata only, and the loss is one autograd function. The general way in `focalcal.losses.focal`
takes every other call, the wrong ones included, and says what is wrong with them.
"""

from __future__ import annotations

from functools import cache
from math import inf
from typing import Any

import torch
from torch import Tensor

from focalcal.losses._pointwise import (
    Gamma,
    gamma_at,
    is_transformed,
    value_and_slope,
    wants_plain_backward,
)
from focalcal.losses._problem import (
    IGNORE_INDEX,
    REDUCTIONS,
    can_fuse,
    compute_dtype,
    is_plain,
    reference_gradient,
)


def quick_focal(
    logits: Tensor,
    target: Tensor,
    gamma: Gamma,
    weight: Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    reduction: str,
) -> Tensor | None:
    """The focal loss of labels (N,) and logits (N, C), or None where the general way is needed."""
    if is_transformed() or logits.ndim != 2 or target.ndim != 1:
        return None
    n, n_classes = logits.shape
    if (
        n_classes < 2
        or not 0 <= label_smoothing <= 1
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
        apply, settings = _fused()
        settings = settings(gamma, weight, ignore_index, label_smoothing, reduction)
        return apply(logits, target, settings)
    if (
        logits.is_cpu
        and target.is_cpu
        and is_plain(logits)
        and logits.dtype in (torch.float32, torch.float64)
        and logits.numel() > 0
        and not label_smoothing
        and ignore_index < 0
        and target.min().item() >= 0  # none is ignored
        and not (isinstance(gamma, Tensor) and not -1 < gamma.min().item() <= gamma.max() < inf)
    ):
        try:
            return _RowFocal.apply(logits, target, gamma, weight, reduction)
        except RuntimeError:
            return None  # a label beyond the last class
    return None


@cache
def _fused() -> tuple[Any, Any]:
    from focalcal.losses._triton import FusedFocal, Settings

    return FusedFocal.apply, Settings


def _is_ready(gamma: Gamma, n: int, logits: Tensor) -> bool:
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


NONE = (None,) * 4  # no gradient for target, gamma, weight and reduction


class _RowFocal(torch.autograd.Function):
    """The loss on the CPU in few operations, all but three of them on columns (N, 1)."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        target: Tensor,
        gamma: Gamma,
        weight: Tensor | None,
        reduction: str,
    ) -> Tensor:
        column = target.unsqueeze(1)
        log_q = torch.log_softmax(logits, 1)
        ce = log_q.gather(1, column).neg_()
        exponent = gamma.unsqueeze(1) if isinstance(gamma, Tensor) else gamma_at(ce, gamma)
        value, slope = value_and_slope(ce, exponent)
        share = 1.0
        if weight is not None:
            weights = weight[column]
            value.mul_(weights)
            slope.mul_(weights)
        if reduction == "mean":
            share = 1 / (len(target) if weight is None else weights.sum().item())
        ctx.save_for_backward(logits, target, log_q, slope)
        ctx.settings = gamma, weight, share, reduction
        return value.squeeze(1) if reduction == "none" else value.sum() * share

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        logits, target, log_q, slope = ctx.saved_tensors
        gamma, weight, share, reduction = ctx.settings
        if wants_plain_backward(grad):
            options = gamma, weight, IGNORE_INDEX, 0.0, reduction
            return reference_gradient(logits, target, grad, *options), *NONE
        grad = grad.unsqueeze(1) if grad.ndim else grad
        scale = slope * (grad * -share)
        result = torch.zeros_like(log_q).scatter_(1, target.unsqueeze(1), scale)
        # grad − softmax · Σ grad: what the backward pass of cross_entropy calls, too.
        return torch._log_softmax_backward_data(result, log_q, 1, log_q.dtype), *NONE
