"""Fused focal loss for CUDA: one pass over the logits forward, one backward.

The forward pass leaves five numbers per row at most (see `focalcal.losses._kernels`);
nothing of size N×C is kept besides the caller's logits. `focalcal.losses._pointwise` with
PyTorch's cross_entropy is the reference and the fallback.

A call from Python costs as much time as reading hundreds of megabytes, so there is one
autograd function with the reduction inside, and three launches for both passes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from focalcal.losses import _kernels
from focalcal.losses._kernels import Tile, backward_tile, forward_tile, reduce_steps
from focalcal.losses._pointwise import logit_gradient, wants_plain_backward


def fused_focal(
    logits: Tensor,
    target: Tensor,
    gamma: float | Tensor,
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "none",
) -> Tensor:
    """Focal loss, float32, of contiguous logits (N, C), reduced as cross_entropy does.

    A label outside 0..C−1 gives NaN: an error would cost a wait for the device.
    """
    if isinstance(gamma, Tensor):
        gamma = gamma.contiguous()
    if weight is not None:
        weight = weight.contiguous()
    return FusedFocal.apply(logits, target.contiguous(), gamma, weight, ignore_index, reduction)


class FusedFocal(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        target: Tensor,
        gamma: float | Tensor,
        weight: Tensor | None,
        ignore_index: int,
        reduction: str,
    ) -> Tensor:
        value, scratch = launch_forward(logits, target, gamma, weight, ignore_index, reduction)
        ctx.save_for_backward(logits, target, scratch)
        ctx.settings = gamma, weight, ignore_index, reduction  # constants: none has a gradient
        return value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        logits, target, scratch = ctx.saved_tensors
        gamma, weight, ignore_index, reduction = ctx.settings
        if wants_plain_backward(grad):
            kept = target != ignore_index
            column = target.where(kept, 0).unsqueeze(1)
            factor = kept if weight is None else kept * weight[column.squeeze(1)]
            factor = factor * (grad / scratch[-1] if reduction == "mean" else grad)
            gamma = gamma.unsqueeze(1) if isinstance(gamma, Tensor) else gamma
            result = logit_gradient(logits, column, gamma, factor.unsqueeze(1))
        else:
            result = launch_backward(logits, target, scratch, grad, reduction)
        return result, None, None, None, None, None


def launch_forward(
    logits: Tensor,
    target: Tensor,
    gamma: float | Tensor,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    tile: Tile | None = None,
) -> tuple[Tensor, Tensor]:
    """The value and the scratch numbers that the backward pass needs."""
    n, n_classes = logits.shape
    tile = tile or forward_tile(n_classes)
    programs = -(-n // tile.rows)
    reduced = reduction != "none"
    scratch = logits.new_empty(3 * n + (2 * programs + 1) * reduced, dtype=torch.float32)
    value = logits.new_empty(() if reduced else n, dtype=torch.float32)
    per_row = isinstance(gamma, Tensor)
    weighted = weight is not None
    _kernels.forward.launch(
        programs,
        (
            logits,
            target,
            gamma if per_row else scratch,
            weight if weighted else scratch,
            scratch,
            value,
        ),
        (0.0 if per_row else float(gamma), n, ignore_index),
        (n_classes, per_row, weighted, reduced, tile.rows, tile.block),
        tile.warps,
    )
    if reduced:
        if programs > _kernels.MOST_SUMS:
            sums = scratch[3 * n : -1].view(2, programs).sum(1)
            scratch = torch.cat([scratch[: 3 * n], sums, sums[:1]])
            programs = 1
        _kernels.reduce.launch(
            1,
            (scratch, value),
            (n, programs),
            (reduction == "mean", reduce_steps(programs), _kernels.REDUCE_BLOCK),
            warps=32,
        )
    return value, scratch


def launch_backward(
    logits: Tensor,
    target: Tensor,
    scratch: Tensor,
    grad: Tensor,
    reduction: str,
    tile: Tile | None = None,
) -> Tensor:
    """grad · slope · (softmax(z) − onehot(y)) in the dtype of the logits, averaged if asked.

    grad is one number for all rows, or one per row.
    """
    n, n_classes = logits.shape
    tile = tile or backward_tile(n_classes)
    out = torch.empty_like(logits)
    _kernels.backward.launch(
        -(-n // tile.rows) * -(-n_classes // tile.block),
        (logits, target, scratch, grad, out),
        (n, grad.stride(0) if grad.ndim else 0, scratch.numel() - 1),
        (n_classes, reduction == "mean", tile.rows, tile.block),
        tile.warps,
    )
    return out
