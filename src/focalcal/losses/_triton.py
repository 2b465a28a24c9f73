"""Fused focal loss for CUDA: one pass over the logits forward, one backward.

The forward pass leaves four numbers per row (loss, largest logit, log of the shifted sum, slope);
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


def fused_focal(logits: Tensor, target: Tensor, gamma: float | Tensor, ignore_index: int) -> Tensor:
    """Focal loss per row, float32 (N,), of contiguous logits (N, C); 0 where ignored.

    A label outside 0..C−1 gives NaN: an error would cost a wait for the device.
    """
    if isinstance(gamma, Tensor):
        gamma = gamma.contiguous()
    return _FusedFocal.apply(logits, target.contiguous(), gamma, ignore_index)


class _FusedFocal(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, target: Tensor, gamma: float | Tensor, ignore_index: int
    ) -> Tensor:
        loss, *rows = launch_forward(logits, target, gamma, ignore_index)
        ctx.gamma, ctx.ignore_index = gamma, ignore_index
        ctx.save_for_backward(logits, target, *rows)
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        logits, target, top, log_sum, slope = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return launch_backward(logits, target, top, log_sum, slope, grad), None, None, None
        # Somebody differentiates this pass too: take the reference, which autograd sees through.
        ce = F.cross_entropy(
            logits.float(), target, ignore_index=ctx.ignore_index, reduction="none"
        )
        value = focal_value(ce, ctx.gamma)
        (result,) = torch.autograd.grad(value, logits, grad, create_graph=True)
        return result, None, None, None


def launch_forward(
    logits: Tensor,
    target: Tensor,
    gamma: float | Tensor,
    ignore_index: int,
    tile: Tile | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(loss, largest logit, ln Σ exp(z − largest), slope g), each float32 (N,)."""
    n, n_classes = logits.shape
    tile = tile or forward_tile(n_classes)
    rows = torch.empty((4, n), dtype=torch.float32, device=logits.device)
    per_row = isinstance(gamma, Tensor)
    with torch.cuda.device_of(logits):
        _forward[(triton.cdiv(n, tile.rows),)](
            logits,
            target,
            gamma if per_row else logits,
            0.0 if per_row else float(gamma),
            rows,
            n,
            ignore_index,
            C=n_classes,
            GAMMA_PER_ROW=per_row,
            ROWS=tile.rows,
            BLOCK=tile.block,
            num_warps=tile.warps,
        )
    loss, top, log_sum, slope = rows.unbind()
    return loss, top, log_sum, slope


def launch_backward(
    logits: Tensor,
    target: Tensor,
    top: Tensor,
    log_sum: Tensor,
    slope: Tensor,
    grad: Tensor,
    tile: Tile | None = None,
) -> Tensor:
    """grad · slope · (softmax(z) − onehot(y)), in the dtype of the logits."""
    n, n_classes = logits.shape
    tile = tile or backward_tile(n_classes)
    out = torch.empty_like(logits)
    with torch.cuda.device_of(logits):
        _backward[(triton.cdiv(n, tile.rows) * triton.cdiv(n_classes, tile.block),)](
            logits,
            target,
            top,
            log_sum,
            slope,
            grad,
            grad.stride(0),  # 0 after sum and mean: one number for every row
            out,
            n,
            C=n_classes,
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
    rows_ptr,
    n,
    ignore_index,
    C: tl.constexpr,  # constant, so that the compiler knows how rows are aligned
    GAMMA_PER_ROW: tl.constexpr,
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
    ignored = label == ignore_index
    loss = tl.where(ignored, 0.0, power * ce)
    slope = tl.where(
        ignored, 0.0, power * (1 + exponent * (p * tl.minimum(safe, 1e38) / one_minus_p))
    )

    tl.store(rows_ptr + row, loss, mask=inside)
    tl.store(rows_ptr + n + row, top, mask=inside)
    tl.store(rows_ptr + 2 * n + row, log_sum, mask=inside)
    tl.store(rows_ptr + 3 * n + row, slope, mask=inside)


@triton.jit
def _backward(
    logits_ptr,
    target_ptr,
    top_ptr,
    log_sum_ptr,
    slope_ptr,
    grad_ptr,
    grad_stride,
    out_ptr,
    n,
    C: tl.constexpr,
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
    top = tl.load(top_ptr + row, mask=inside, other=0.0)
    log_sum = tl.load(log_sum_ptr + row, mask=inside, other=0.0)
    scale = tl.load(slope_ptr + row, mask=inside, other=0.0)
    scale *= tl.load(grad_ptr + row * grad_stride, mask=inside, other=0.0).to(tl.float32)

    q = tl.exp((x.to(tl.float32) - top[:, None]) - log_sum[:, None])
    q = tl.where(column[None, :] == label[:, None], q - 1, q)
    tl.store(
        out_ptr + at, (q * scale[:, None]).to(x.dtype), mask=where, eviction_policy="evict_first"
    )
