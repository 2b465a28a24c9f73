"""The short way to the focal loss, for calls with nothing to prepare.

A small batch costs less time than the checks and small operations around it. Here the checks read
metadata only, and the loss is one autograd function. The general way in `focalcal.losses.focal`
takes every other call, the wrong ones included, and says what is wrong with them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import inf

import torch
from torch import Tensor

from focalcal.losses._pointwise import is_transformed
from focalcal.losses._problem import REDUCTIONS, can_fuse


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
        or len(target) != n
        or not _is_ready(gamma, n, logits)
        or not (weight is None or _is_vector(weight, n_classes, logits))
    ):
        return None
    if can_fuse(logits, target) and target.is_contiguous():
        return _fused()(logits, target, gamma, weight, ignore_index, reduction)
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
        and tensor.dtype is torch.float32
        and tensor.device == logits.device
        and tensor.is_contiguous()
        and not tensor.requires_grad
    )
