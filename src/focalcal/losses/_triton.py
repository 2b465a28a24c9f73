"""Fused focal loss for CUDA: one pass over the logits forward, one backward.

The forward pass leaves at most six numbers per row (see `focalcal.losses._kernels`); nothing of
size N×C is kept besides the caller's logits. `focalcal.losses._pointwise` with PyTorch's
cross_entropy is the reference and the fallback.

A call from Python costs as much time as reading hundreds of megabytes, so there is one
autograd function with the reduction inside, and three launches for both passes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from focalcal.losses import _kernels
from focalcal.losses._base import Problem
from focalcal.losses._kernels import Tile, backward_tile, forward_tile, reduce_steps
from focalcal.losses._pointwise import Gamma, wants_plain_backward


class Settings(NamedTuple):
    """What defines the loss besides logits and labels; none of it has a gradient."""

    gamma: Gamma
    weight: Tensor | None = None
    ignore_index: int = -100
    smoothing: float = 0.0
    reduction: str = "none"

    def arguments(self, unused: Tensor) -> tuple[tuple, tuple, tuple]:
        """Tensors, numbers and constants that both kernels take; `unused` fills the gaps."""
        gamma, weight, smoothing = self.gamma, self.weight, self.smoothing
        number, table, per_row, steps = 0.0, unused, False, 0
        if isinstance(gamma, tuple):
            table, steps = _table(gamma, unused.device), len(gamma)
        elif isinstance(gamma, Tensor):
            table, per_row = gamma.contiguous(), True
        else:
            number = float(gamma)
        tensors = (table, unused if weight is None else weight.contiguous())
        return tensors, (number, smoothing), (per_row, steps, weight is not None, smoothing > 0)


_tables: dict[tuple, Tensor] = {}


def _table(steps: tuple[tuple[float, float], ...], device: torch.device) -> Tensor:
    """The steps, last first, as one tensor: ends, then γ; copied to each device once."""
    key = steps, device
    if key not in _tables:
        table = torch.tensor(steps[::-1], dtype=torch.float32, device="cpu")
        _tables[key] = table.T.flatten().to(device)
    return _tables[key]


def fused_focal(logits: Tensor, target: Tensor, *settings: Any, **named: Any) -> Tensor:
    """Focal loss, float32, of contiguous logits (N, C), reduced as cross_entropy does.

    Other arguments: see `Settings`. A label outside 0..C−1 gives NaN: an error would need
    synchronisation.
    """
    return FusedFocal.apply(logits, target.contiguous(), Settings(*settings, **named))


class FusedFocal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, settings: Settings) -> Tensor:
        value, scratch = launch_forward(logits, target, settings)
        ctx.save_for_backward(logits, target, scratch)
        ctx.settings = settings
        return value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        logits, target, scratch = ctx.saved_tensors
        if wants_plain_backward(grad):
            gamma, *options, reduction = ctx.settings
            again = torch.is_grad_enabled()
            with torch.enable_grad():
                problem = Problem(logits, target, None, *options)
                value = problem.focal(gamma, reduction)
            return *torch.autograd.grad(value, logits, grad, create_graph=again), None, None
        return launch_backward(logits, target, scratch, grad, ctx.settings), None, None


def launch_forward(
    logits: Tensor, target: Tensor, settings: Settings, tile: Tile | None = None
) -> tuple[Tensor, Tensor]:
    """The value and the scratch buffer that the backward pass needs."""
    n, n_classes = logits.shape
    tile = tile or forward_tile(n_classes, logits.element_size())
    programs = -(-n // tile.rows)
    reduced = settings.reduction != "none"
    sums_at = (3 + (settings.smoothing > 0)) * n
    scratch = logits.new_empty(sums_at + (2 * programs + 1) * reduced, dtype=torch.float32)
    value = logits.new_empty(() if reduced else n, dtype=torch.float32)
    tensors, numbers, constants = settings.arguments(scratch)
    parts, partial = -(-n_classes // tile.block), scratch
    if parts > 1:
        partial = logits.new_empty(2 * n * parts, dtype=torch.float32)
        shape = (n_classes, tile.block)
        _kernels.partial.launch(n * parts, (logits, partial), (n,), shape, max(1, tile.warps // 2))
    _kernels.forward.launch(
        programs,
        (logits, target, *tensors, partial, scratch, value),
        (*numbers, n, settings.ignore_index),
        (n_classes, *constants, reduced, tile.rows, tile.block),
        tile.warps,
    )
    if reduced:
        if programs > _kernels.MOST_SUMS:
            sums = scratch[sums_at:-1].view(2, programs).sum(1)
            scratch = torch.cat([scratch[:sums_at], sums, sums[:1]])
            programs = 1
        _kernels.reduce.launch(
            1,
            (scratch, value),
            (sums_at, programs),
            (settings.reduction == "mean", reduce_steps(programs), _kernels.REDUCE_BLOCK),
            warps=32,
        )
    return value, scratch


def launch_backward(
    logits: Tensor,
    target: Tensor,
    scratch: Tensor,
    grad: Tensor,
    settings: Settings,
    tile: Tile | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """The logits' gradient in their dtype, reduced as in `settings`; `out` may be the logits.

    grad is one number for all rows, or one per row.
    """
    n, n_classes = logits.shape
    tile = tile or backward_tile(n_classes, logits.element_size())
    out = torch.empty_like(logits) if out is None else out
    tensors, numbers, constants = settings.arguments(scratch)
    _kernels.backward.launch(
        -(-n // tile.rows) * -(-n_classes // tile.block),
        (logits, target, *tensors, scratch, grad, out),
        (*numbers, n, grad.stride(0) if grad.ndim else 0, scratch.numel() - 1),
        (n_classes, *constants, settings.reduction == "mean", tile.rows, tile.block),
        tile.warps,
    )
    return out


def scale_(x: Tensor, factor: Tensor) -> Tensor:
    """x · factor in place, without reading x if the factor is 1 and without synchronising."""
    block = 8192
    programs = max(1, min(4096, -(-x.numel() // block)))
    _kernels.scale.launch(programs, (x, factor), (x.numel(),), (block,), warps=8)
    return x
