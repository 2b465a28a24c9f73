"""The Triton kernels of the fused focal loss, and how they are launched.

`scratch` is one float32 buffer that the forward kernel fills for the others, with P programs:
largest logit (N), ln Σ exp(z − largest) (N), slope g (N), sums of loss (P) and of weight (P) over
the rows of each program, and the sum of all weights (1).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime import driver

EPS = tl.constexpr(1.1920929e-07)  # float32; the same stop as the reference's

REDUCE_BLOCK = 8192
MOST_SUMS = 2**17
"""More sums than this are too many for the one program that adds them up."""


@dataclass(frozen=True)
class Tile:
    """How a kernel walks the logits: `rows` × `block` numbers at a time with `warps` warps."""

    rows: int
    block: int
    warps: int


@cache
def forward_tile(n_classes: int) -> Tile:
    return _tile(n_classes, largest=8192)


@cache
def backward_tile(n_classes: int) -> Tile:
    return _tile(n_classes, largest=4096)


def _tile(n_classes: int, largest: int) -> Tile:
    block = min(triton.next_power_of_2(n_classes), largest)
    return Tile(max(1, 512 // block), block, max(1, min(16, block // 512)))


@cache
def reduce_steps(programs: int) -> int:
    """A power of 2, so that not every batch size is compiled for."""
    return triton.next_power_of_2(triton.cdiv(programs, REDUCE_BLOCK))


class Kernel:
    """A Triton kernel that finds its compiled form by a short key.

    Triton's own launch looks at every argument again each time, which takes longer than the kernel
    of a small batch. The key holds what Triton compiles for: device, dtype, alignment, constants.
    """

    def __init__(self, jit: Any) -> None:
        self.jit = jit
        self.compiled: dict[tuple, Any] = {}
        self.direct = True

    def launch(
        self,
        programs: int,
        tensors: tuple[Tensor, ...],
        numbers: tuple[float, ...],
        constants: tuple[int, ...],
        warps: int,
    ) -> None:
        """Run on the device of the first tensor, the only one with another dtype or alignment."""
        device = tensors[0].get_device()
        if device < 0 or device == torch.cuda.current_device():
            self._launch(device, programs, tensors, numbers, constants, warps)
        else:
            with torch.cuda.device(device):
                self._launch(device, programs, tensors, numbers, constants, warps)

    def _launch(self, device, programs, tensors, numbers, constants, warps) -> None:
        first = tensors[0]
        key = (device, first.dtype, first.data_ptr() % 16, constants, warps)
        # Triton compiles anew for whole numbers of 64 bits: those take the long way.
        direct = self.direct and max(numbers) < 2**31 and min(numbers) >= -(2**31)
        if direct and (kernel := self.compiled.get(key)) is not None:
            try:
                # What Triton itself calls once it has found the compiled kernel.
                kernel.run(
                    *(programs, 1, 1, driver.active.get_current_stream(device)),
                    *(kernel.function, kernel.packed_metadata, None, None, None),
                    *[tensor.data_ptr() for tensor in tensors],
                    *numbers,
                    *constants,
                )
                return
            except (TypeError, AttributeError):  # another version of Triton
                self.direct = direct = False
        kernel = self.jit[(programs,)](*tensors, *numbers, *constants, num_warps=warps)
        if direct and kernel is not None:  # None when interpreted
            self.compiled[key] = kernel


@triton.jit(
    do_not_specialize=["n", "ignore_index"],
    do_not_specialize_on_alignment=["target_ptr", "gamma_ptr", "weight_ptr"],
)
def _forward(
    logits_ptr,
    target_ptr,
    gamma_ptr,
    weight_ptr,
    scratch_ptr,
    value_ptr,
    gamma,
    n,
    ignore_index,
    C: tl.constexpr,  # constant, so that the compiler knows how rows are aligned
    GAMMA_PER_ROW: tl.constexpr,
    WEIGHTED: tl.constexpr,
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
    counts = inside & (label != ignore_index)
    own_weight = tl.where(counts, 1.0, 0.0)
    if WEIGHTED:
        weight = tl.load(weight_ptr + label, mask=inside & known, other=1.0)
        own_weight = tl.where(counts, weight, 0.0)
    loss = tl.where(counts, own_weight * power * ce, 0.0)

    tl.store(scratch_ptr + row, top, mask=inside)
    tl.store(scratch_ptr + n + row, log_sum, mask=inside)
    tl.store(scratch_ptr + 2 * n + row, tl.where(counts, own_weight * slope, 0.0), mask=inside)
    if REDUCED:
        sums = scratch_ptr + 3 * n + program
        tl.store(sums, tl.sum(loss, axis=0))
        tl.store(sums + tl.num_programs(0), tl.sum(own_weight, axis=0))
    else:
        tl.store(value_ptr + row, loss, mask=inside)


@triton.jit(do_not_specialize=["n", "programs"])
def _reduce(
    scratch_ptr,
    value_ptr,
    n,
    programs,
    MEAN: tl.constexpr,
    STEPS: tl.constexpr,  # at least programs / BLOCK
    BLOCK: tl.constexpr,
):
    losses = scratch_ptr + 3 * n.to(tl.int64)
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
    do_not_specialize_on_alignment=["target_ptr", "grad_ptr"],
)
def _backward(
    logits_ptr,
    target_ptr,
    scratch_ptr,
    grad_ptr,
    out_ptr,
    n,
    grad_stride,
    total_at,
    C: tl.constexpr,
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
    scale = tl.load(scratch_ptr + 2 * n + row, mask=inside, other=0.0)
    scale *= tl.load(grad_ptr + row * grad_stride, mask=inside, other=0.0).to(tl.float32)
    if MEAN:
        scale /= tl.load(scratch_ptr + total_at)

    q = tl.exp((x.to(tl.float32) - top[:, None]) - log_sum[:, None])
    q = tl.where(column[None, :] == label[:, None], q - 1, q)
    tl.store(
        out_ptr + at, (q * scale[:, None]).to(x.dtype), mask=where, eviction_policy="evict_first"
    )


forward = Kernel(_forward)
reduce = Kernel(_reduce)
backward = Kernel(_backward)
