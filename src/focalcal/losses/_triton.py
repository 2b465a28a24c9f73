"""Fused focal loss for CUDA: one pass over the logits forward, one backward.

The forward pass leaves five numbers per row (see `launch_forward`);
nothing of size N×C is kept besides the caller's logits. `focalcal.losses._pointwise` with
PyTorch's cross_entropy is the reference and the fallback.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from focalcal.losses._pointwise import focal_value

EPS = tl.constexpr(1.1920929e-07)  # float32; the same stop as the reference's


@dataclass(frozen=True)
class Tile:
    """How a kernel walks the logits: `rows` × `block` numbers at a time with `warps` warps."""

    rows: int
    block: int
    warps: int


def forward_tile(n_classes: int) -> Tile:
    return _tile(n_classes, largest=8192)


def backward_tile(n_classes: int) -> Tile:
    return _tile(n_classes, largest=4096)


def _tile(n_classes: int, largest: int) -> Tile:
    block = min(triton.next_power_of_2(n_classes), largest)
    return Tile(max(1, 512 // block), block, max(1, min(16, block // 512)))


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
    return _FusedFocal.apply(logits, target.contiguous(), gamma, weight, ignore_index, reduction)


class _FusedFocal(torch.autograd.Function):
    # The reduction is inside: a launch from Python costs as much time as reading 50 MB.
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
        rows = launch_forward(logits, target, gamma, weight, ignore_index)
        ctx.gamma, ctx.weight = gamma, weight  # constants: neither has a gradient
        ctx.ignore_index, ctx.reduction = ignore_index, reduction
        if reduction == "mean":
            totals = rows[:2].sum(1)
            ctx.save_for_backward(logits, target, rows, totals)
            return totals[0] / totals[1]
        ctx.save_for_backward(logits, target, rows)
        return rows[0].sum() if reduction == "sum" else rows[0].clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        logits, target, rows, *totals = ctx.saved_tensors
        if not torch.is_grad_enabled():
            result = launch_backward(logits, target, rows, grad, totals[0] if totals else None)
        else:
            # Somebody differentiates this pass too: the reference, which autograd sees through.
            ce = F.cross_entropy(
                logits.float(), target, ignore_index=ctx.ignore_index, reduction="none"
            )
            value = focal_value(ce, ctx.gamma) * rows[1]
            if ctx.reduction != "none":
                value = value.sum() / totals[0][1] if totals else value.sum()
            (result,) = torch.autograd.grad(value, logits, grad, create_graph=True)
        return result, None, None, None, None, None


def launch_forward(
    logits: Tensor,
    target: Tensor,
    gamma: float | Tensor,
    weight: Tensor | None,
    ignore_index: int,
    tile: Tile | None = None,
) -> Tensor:
    """Per row (5, N), float32: loss, weight, largest logit, ln Σ exp(z − largest), slope g.

    Loss and slope are weighted; weight, loss and slope are 0 where the label is ignored.
    """
    n, n_classes = logits.shape
    tile = tile or forward_tile(n_classes)
    rows = torch.empty((5, n), dtype=torch.float32, device=logits.device)
    per_row = isinstance(gamma, Tensor)
    with torch.cuda.device_of(logits):
        _forward[(triton.cdiv(n, tile.rows),)](
            logits,
            target,
            gamma if per_row else rows,
            0.0 if per_row else float(gamma),
            rows if weight is None else weight,
            rows,
            n,
            ignore_index,
            C=n_classes,
            GAMMA_PER_ROW=per_row,
            WEIGHTED=weight is not None,
            ROWS=tile.rows,
            BLOCK=tile.block,
            num_warps=tile.warps,
        )
    return rows


def launch_backward(
    logits: Tensor,
    target: Tensor,
    rows: Tensor,
    grad: Tensor,
    totals: Tensor | None = None,
    tile: Tile | None = None,
) -> Tensor:
    """grad · slope · (softmax(z) − onehot(y)) in the dtype of the logits; over totals[1] if given.

    grad is one number for all rows, or one per row.
    """
    n, n_classes = logits.shape
    tile = tile or backward_tile(n_classes)
    out = torch.empty_like(logits)
    with torch.cuda.device_of(logits):
        _backward[(triton.cdiv(n, tile.rows) * triton.cdiv(n_classes, tile.block),)](
            logits,
            target,
            rows,
            grad,
            grad.stride(0) if grad.ndim else 0,
            rows if totals is None else totals,
            out,
            n,
            C=n_classes,
            MEAN=totals is not None,
            ROWS=tile.rows,
            BLOCK=tile.block,
            num_warps=tile.warps,
        )
    return out


@triton.jit
def _forward(
    logits_ptr,
    target_ptr,
    gamma_ptr,
    gamma,
    weight_ptr,
    rows_ptr,
    n,
    ignore_index,
    C: tl.constexpr,  # constant, so that the compiler knows how rows are aligned
    GAMMA_PER_ROW: tl.constexpr,
    WEIGHTED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = row < n
    line = logits_ptr + row[:, None] * C
    column = tl.arange(0, BLOCK)[None, :]

    x = tl.load(line + column, mask=inside[:, None] & (column < C), other=float("-inf"))
    x = x.to(tl.float32)
    top = tl.max(x, axis=1)
    total = tl.sum(tl.exp(x - top[:, None]), axis=1)
    for start in range(BLOCK, C, BLOCK):
        at = start + column
        more = tl.load(line + at, mask=inside[:, None] & (at < C), other=float("-inf"))
        more = more.to(tl.float32)
        larger = tl.maximum(top, tl.max(more, axis=1))
        total = total * tl.exp(top - larger) + tl.sum(tl.exp(more - larger[:, None]), axis=1)
        top = larger
    log_sum = tl.log(total)

    label = tl.load(target_ptr + row, mask=inside, other=0)
    known = (label >= 0) & (label < C)
    own = tl.load(logits_ptr + row * C + label, mask=inside & known, other=float("nan"))
    ce = log_sum + (top - own.to(tl.float32))
    if GAMMA_PER_ROW:
        exponent = tl.load(gamma_ptr + row, mask=inside, other=0.0).to(tl.float32)
    else:
        exponent = gamma

    safe = tl.where(ce < EPS, EPS, ce)
    small = safe * (
        1 - safe / 2 * (1 - safe / 3 * (1 - safe / 4 * (1 - safe / 5 * (1 - safe / 6))))
    )
    p = tl.exp(-safe)
    one_minus_p = tl.where(safe < 0.125, small, 1 - p)
    power = tl.exp(exponent * tl.log(one_minus_p))
    slope = power * (1 + exponent * (p * tl.minimum(safe, 1e38) / one_minus_p))
    ignored = label == ignore_index
    if WEIGHTED:
        own_weight = tl.load(weight_ptr + label, mask=inside & known, other=1.0)
        own_weight = tl.where(ignored, 0.0, own_weight)
    else:
        own_weight = tl.where(ignored, 0.0, 1.0)

    tl.store(rows_ptr + row, tl.where(ignored, 0.0, own_weight * power * ce), mask=inside)
    tl.store(rows_ptr + n + row, own_weight, mask=inside)
    tl.store(rows_ptr + 2 * n + row, top, mask=inside)
    tl.store(rows_ptr + 3 * n + row, log_sum, mask=inside)
    tl.store(rows_ptr + 4 * n + row, tl.where(ignored, 0.0, own_weight * slope), mask=inside)


@triton.jit
def _backward(
    logits_ptr,
    target_ptr,
    rows_ptr,
    grad_ptr,
    grad_stride,
    totals_ptr,
    out_ptr,
    n,
    C: tl.constexpr,
    MEAN: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    # Last rows first: the forward pass has just left them in the cache.
    program = tl.num_programs(0) - 1 - tl.program_id(0)
    blocks: tl.constexpr = (C + BLOCK - 1) // BLOCK
    row = (program // blocks).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = (program % blocks) * BLOCK + tl.arange(0, BLOCK)
    inside = row < n
    where = inside[:, None] & (column < C)[None, :]
    at = row[:, None] * C + column[None, :]

    x = tl.load(logits_ptr + at, mask=where, other=0.0, eviction_policy="evict_first")
    label = tl.load(target_ptr + row, mask=inside, other=0)
    top = tl.load(rows_ptr + 2 * n + row, mask=inside, other=0.0)
    log_sum = tl.load(rows_ptr + 3 * n + row, mask=inside, other=0.0)
    scale = tl.load(rows_ptr + 4 * n + row, mask=inside, other=0.0)
    scale *= tl.load(grad_ptr + row * grad_stride, mask=inside, other=0.0).to(tl.float32)
    if MEAN:
        scale /= tl.load(totals_ptr + 1)

    q = tl.exp((x.to(tl.float32) - top[:, None]) - log_sum[:, None])
    q = tl.where(column[None, :] == label[:, None], q - 1, q)
    tl.store(
        out_ptr + at, (q * scale[:, None]).to(x.dtype), mask=where, eviction_policy="evict_first"
    )
