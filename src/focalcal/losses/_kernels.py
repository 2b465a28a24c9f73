"""The Triton kernels of the fused focal loss, and how they are launched.

`scratch` is one float32 buffer that the forward kernel fills for the others, with P programs:
largest logit (N), ln Σ exp(z − largest) (N), slope S (N), with label smoothing the label's own
slope (N), sums of loss (P) and of weight (P) over the rows of each program, sum of all weights (1).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

EPS = tl.constexpr(1.1920929e-07)  # float32; the same lower limit as the reference's

REDUCE_BLOCK = 8192
MOST_SUMS = 2**17
"""More partial sums than this are too many for the single program that adds them."""


@dataclass(frozen=True)
class Tile:
    """How a kernel walks the logits: `rows` × `block` numbers at a time with `warps` warps."""

    rows: int
    block: int
    warps: int


@cache
def forward_tile(n_classes: int, item_size: int) -> Tile:
    return _tile(n_classes, item_size, largest=8192)


@cache
def backward_tile(n_classes: int, item_size: int) -> Tile:
    return _tile(n_classes, item_size, largest=4096)


def _tile(n_classes: int, item_size: int, largest: int) -> Tile:
    """64 bytes per thread, the fastest size measured."""
    block = min(triton.next_power_of_2(n_classes), largest)
    return Tile(max(1, 512 // block), block, max(1, min(16, block * item_size // 2048)))


@cache
def reduce_steps(programs: int) -> int:
    """A power of 2, so that few batch sizes cause a new compilation."""
    return triton.next_power_of_2(triton.cdiv(programs, REDUCE_BLOCK))


class Kernel:
    """A Triton kernel whose compiled variants are looked up by a short key.

    `jit[grid](...)` inspects every argument on each call, which takes longer than the kernel itself
    on a small batch. The key holds what Triton specialises on: device, dtype, alignment, constants.
    """

    def __init__(self, jit: Any) -> None:
        self.jit = jit
        self.compiled: dict[tuple, Any] = {}

    def launch(
        self,
        programs: int,
        tensors: tuple[Tensor, ...],
        numbers: tuple[float, ...],
        constants: tuple[int, ...],
        warps: int,
    ) -> None:
        """Run on the device of the first tensor, the only one whose dtype and alignment vary."""
        device = tensors[0].get_device()
        if device < 0 or device == torch.cuda.current_device():
            self._launch(device, programs, tensors, numbers, constants, warps)
        else:
            with torch.cuda.device(device):
                self._launch(device, programs, tensors, numbers, constants, warps)

    def _launch(self, device, programs, tensors, numbers, constants, warps) -> None:
        first = tensors[0]
        key = (device, first.dtype, first.data_ptr() % 16, constants, warps)
        # Triton compiles a separate variant for 64-bit integers.
        narrow = max(numbers) < 2**31 and min(numbers) >= -(2**31)
        if narrow and (kernel := self.compiled.get(key)) is not None:
            pointers = [tensor.data_ptr() for tensor in tensors]
            kernel[(programs, 1, 1)](*pointers, *numbers, *constants)
            return
        kernel = self.jit[(programs,)](*tensors, *numbers, *constants, num_warps=warps)
        if narrow and kernel is not None:  # None when interpreted
            self.compiled[key] = kernel


@triton.jit
def _exponent(ce, gamma, gamma_ptr, STEPS: tl.constexpr):
    """γ at p = exp(−ce): `gamma`, or the γ of the first step whose end is above p."""
    if STEPS > 0:  # ends, then γ, both from the last step to the first
        p = tl.exp(-ce)
        exponent = tl.zeros_like(ce) + tl.load(gamma_ptr + STEPS)
        for i in tl.static_range(1, STEPS):
            below = p < tl.load(gamma_ptr + i)
            exponent = tl.where(below, tl.load(gamma_ptr + STEPS + i), exponent)
    else:
        exponent = tl.zeros_like(ce) + gamma
    return exponent


@triton.jit
def _power_and_slope(ce, exponent):
    """(1−p)^γ and g(p, γ) of p = exp(−ce): factor and slope of `focal_value`."""
    safe = tl.where(ce < EPS, EPS, ce)
    small = safe * (
        1 - safe / 2 * (1 - safe / 3 * (1 - safe / 4 * (1 - safe / 5 * (1 - safe / 6))))
    )
    p = tl.exp(-safe)
    one_minus_p = tl.where(safe < 0.125, small, 1 - p)
    power = tl.exp(exponent * tl.log(one_minus_p))
    return power, power * (1 + exponent * (p * tl.minimum(safe, 1e38) / one_minus_p))


@triton.jit(do_not_specialize=["n"])
def _partial(logits_ptr, part_ptr, n, C: tl.constexpr, BLOCK: tl.constexpr):
    """Largest logit and Σ exp(z − largest) of each block of rows that are longer than a block."""
    parts: tl.constexpr = (C + BLOCK - 1) // BLOCK
    program = tl.program_id(0).to(tl.int64)
    column = (program % parts) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits_ptr + program // parts * C + column, mask=column < C, other=float("-inf"))
    x = x.to(tl.float32)
    top = tl.max(x, axis=0)
    tl.store(part_ptr + program, top)
    # A block that holds only −inf contributes 0.
    total = tl.sum(tl.exp(x - tl.maximum(top, -3e38)), axis=0)
    tl.store(part_ptr + n.to(tl.int64) * parts + program, total)


@triton.jit(
    do_not_specialize=["n", "ignore_index"],
    do_not_specialize_on_alignment=["target_ptr", "gamma_ptr", "weight_ptr"],
)
def _forward(
    logits_ptr,
    target_ptr,
    gamma_ptr,
    weight_ptr,
    part_ptr,
    scratch_ptr,
    value_ptr,
    gamma,
    smoothing,
    n,
    ignore_index,
    C: tl.constexpr,  # constant, so that the compiler knows how rows are aligned
    PER_ROW: tl.constexpr,
    STEPS: tl.constexpr,
    WEIGHTED: tl.constexpr,
    SMOOTH: tl.constexpr,
    REDUCED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    n = n.to(tl.int64)
    program = tl.program_id(0).to(tl.int64)
    row = program * ROWS + tl.arange(0, ROWS)
    inside = row < n
    line = logits_ptr + row[:, None] * C
    column = tl.arange(0, BLOCK)[None, :]

    parts: tl.constexpr = (C + BLOCK - 1) // BLOCK
    if parts == 1:
        where = inside[:, None] & (column < C)
        x = tl.load(line + column, mask=where, other=float("-inf")).to(tl.float32)
        top = tl.max(x, axis=1)
        total = tl.sum(tl.exp(x - top[:, None]), axis=1)
    else:  # combine the results of `_partial`
        where = inside[:, None] & (column < parts)
        part = part_ptr + row[:, None] * parts + column
        tops = tl.load(part, mask=where, other=float("-inf"))
        top = tl.max(tops, axis=1)
        sums = tl.load(part + n * parts, mask=where, other=0.0)
        total = tl.sum(sums * tl.exp(tops - top[:, None]), axis=1)
    log_sum = tl.log(total)

    label = tl.load(target_ptr + row, mask=inside, other=0)
    known = (label >= 0) & (label < C)
    own = tl.load(logits_ptr + row * C + label, mask=inside & known, other=float("nan"))
    ce = log_sum + (top - own.to(tl.float32))
    if PER_ROW:
        gamma = tl.load(gamma_ptr + row, mask=inside, other=0.0).to(tl.float32)
    power, slope = _power_and_slope(ce, _exponent(ce, gamma, gamma_ptr, STEPS))
    counts = inside & (label != ignore_index)
    own_weight = tl.where(counts, 1.0, 0.0)
    if WEIGHTED:
        weight = tl.load(weight_ptr + label, mask=inside & known, other=1.0)
        own_weight = tl.where(counts, weight, 0.0)
    loss = own_weight * power * ce
    slope = own_weight * slope

    if SMOOTH:
        losses = tl.zeros((ROWS,), tl.float32)
        slopes = tl.zeros((ROWS,), tl.float32)
        for start in range(0, C, BLOCK):
            at = start + column
            where = inside[:, None] & (at < C)
            z = tl.load(line + at, mask=where, other=0.0).to(tl.float32)
            each = log_sum[:, None] + (top[:, None] - z)
            exponent = gamma[:, None] if PER_ROW else gamma
            powers, factors = _power_and_slope(each, _exponent(each, exponent, gamma_ptr, STEPS))
            # An impossible class (z = −inf) has infinite loss, as in cross_entropy.
            powers *= each
            if WEIGHTED:
                w = tl.load(weight_ptr + at, mask=at < C, other=0.0)
                powers *= w
                factors *= w
            losses += tl.sum(tl.where(where, powers, 0.0), axis=1)
            slopes += tl.sum(tl.where(where, factors, 0.0), axis=1)
        slope *= 1 - smoothing
        tl.store(scratch_ptr + 3 * n + row, tl.where(counts, slope, 0.0), mask=inside)
        loss = (1 - smoothing) * loss + losses * (smoothing / C)
        slope += slopes * (smoothing / C)

    loss = tl.where(counts, loss, 0.0)
    tl.store(scratch_ptr + row, top, mask=inside)
    tl.store(scratch_ptr + n + row, log_sum, mask=inside)
    tl.store(scratch_ptr + 2 * n + row, tl.where(counts, slope, 0.0), mask=inside)
    if REDUCED:
        sums = scratch_ptr + (3 + SMOOTH) * n + program
        tl.store(sums, tl.sum(loss, axis=0))
        tl.store(sums + tl.num_programs(0), tl.sum(own_weight, axis=0))
    else:
        tl.store(value_ptr + row, loss, mask=inside)


@triton.jit(do_not_specialize=["sums_at", "programs"])
def _reduce(
    scratch_ptr,
    value_ptr,
    sums_at,
    programs,
    MEAN: tl.constexpr,
    STEPS: tl.constexpr,  # at least programs / BLOCK
    BLOCK: tl.constexpr,
):
    losses = scratch_ptr + sums_at.to(tl.int64)
    weights = losses + programs
    at = tl.arange(0, BLOCK)
    loss = tl.zeros((BLOCK,), tl.float32)
    weight = tl.zeros((BLOCK,), tl.float32)
    for step in range(STEPS):
        inside = step * BLOCK + at < programs
        loss += tl.load(losses + step * BLOCK + at, mask=inside, other=0.0)
        weight += tl.load(weights + step * BLOCK + at, mask=inside, other=0.0)
    value = tl.sum(loss, axis=0)
    if MEAN:
        total = tl.sum(weight, axis=0)
        tl.store(weights + programs, total)
        value = value / total
    tl.store(value_ptr, value)


@triton.jit(
    do_not_specialize=["n", "grad_stride", "total_at"],
    do_not_specialize_on_alignment=["target_ptr", "gamma_ptr", "weight_ptr", "grad_ptr"],
)
def _backward(
    logits_ptr,
    target_ptr,
    gamma_ptr,
    weight_ptr,
    scratch_ptr,
    grad_ptr,
    out_ptr,
    gamma,
    smoothing,
    n,
    grad_stride,
    total_at,
    C: tl.constexpr,
    PER_ROW: tl.constexpr,
    STEPS: tl.constexpr,
    WEIGHTED: tl.constexpr,
    SMOOTH: tl.constexpr,
    MEAN: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    n = n.to(tl.int64)
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
    top = tl.load(scratch_ptr + row, mask=inside, other=0.0)
    log_sum = tl.load(scratch_ptr + n + row, mask=inside, other=0.0)
    slope = tl.load(scratch_ptr + 2 * n + row, mask=inside, other=0.0)
    scale = tl.load(grad_ptr + row * grad_stride, mask=inside, other=0.0).to(tl.float32)
    if MEAN:
        scale /= tl.load(scratch_ptr + total_at)

    log_q = (x.to(tl.float32) - top[:, None]) - log_sum[:, None]
    is_label = column[None, :] == label[:, None]
    if SMOOTH:
        # S·q_k − Σ over the target's two parts of weight · slope at k; 0 if ignored, where S = 0.
        if PER_ROW:
            gamma = tl.load(gamma_ptr + row, mask=inside, other=0.0).to(tl.float32)[:, None]
        _, factors = _power_and_slope(-log_q, _exponent(-log_q, gamma, gamma_ptr, STEPS))
        if WEIGHTED:
            factors *= tl.load(weight_ptr + column, mask=column < C, other=0.0)[None, :]
        own = tl.load(scratch_ptr + 3 * n + row, mask=inside, other=0.0)
        q = tl.exp(log_q) * slope[:, None] - factors * (smoothing / C)
        q = tl.where(is_label, q - own[:, None], q) * scale[:, None]
        q = tl.where((slope != 0)[:, None], q, 0.0)
    else:
        scale *= slope
        q = tl.exp(log_q)
        q = tl.where(is_label, q - 1, q) * scale[:, None]
    tl.store(out_ptr + at, q.to(x.dtype), mask=where, eviction_policy="evict_first")


@triton.jit(do_not_specialize=["n"])
def _scale(x_ptr, factor_ptr, n, BLOCK: tl.constexpr):
    """x ← factor · x, without touching x where the factor is 1, as in `loss.backward()`."""
    n = n.to(tl.int64)
    factor = tl.load(factor_ptr).to(tl.float32)
    if factor != 1.0:
        first = tl.program_id(0).to(tl.int64) * BLOCK
        for start in range(first, n, tl.num_programs(0) * BLOCK):
            at = start + tl.arange(0, BLOCK)
            x = tl.load(x_ptr + at, mask=at < n, other=0.0)
            tl.store(x_ptr + at, (x.to(tl.float32) * factor).to(x.dtype), mask=at < n)


partial = Kernel(_partial)
forward = Kernel(_forward)
reduce = Kernel(_reduce)
backward = Kernel(_backward)
scale = Kernel(_scale)
