"""Linear layer and focal loss in one, for vocabularies whose logits do not fit in memory.

The rows are processed in chunks: one product gives a chunk's logits, a fused kernel turns them into
their gradient in place, and two products propagate it to x and to the weight. Nothing is computed
twice, and no more than one chunk of logits exists at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from focalcal.errors import InputError
from focalcal.losses._base import (
    IGNORE_INDEX,
    Loss,
    Problem,
    can_fuse,
    check_reduction,
    compute_dtype,
    has_triton,
    is_plain,
    make_problem,
)
from focalcal.losses._pointwise import Gamma
from focalcal.losses._targets import check_tensors
from focalcal.losses.focal import DEFAULT_GAMMA, check_gammas, check_one_gamma

CHUNK_BYTES = 395_000_000
"""Most bytes of logits that exist at a time."""
ROWS = 128
"""Chunks are multiples of this many rows, as are the tiles of a matrix product."""


def linear_focal_loss(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    gamma: Any = DEFAULT_GAMMA,
    *,
    bias: Tensor | None = None,
    class_weight: Tensor | None = None,
    token_weight: Tensor | None = None,
    ignore_index: int = IGNORE_INDEX,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    accumulate: torch.dtype | None = None,
    chunk_bytes: int = CHUNK_BYTES,
) -> Tensor:
    """`focal_loss(F.linear(x, weight, bias), target, gamma)` without ever holding all logits.

    Gradients are computed with the value, by three products, and `loss.backward()` only returns
    them. With reduction "none", and in float16, where a loss scale arrives with the backward pass,
    the backward pass computes the logits again: four products. If the tokens' weights are
    known in advance, `token_weight` is cheaper than reduction "none".

    Args:
        x: (..., D), the last hidden states.
        weight: (V, D) of the output layer; may be float32 with x in half precision.
        target: labels (...).
        gamma: as in `focal_loss`, one number, steps, or one γ per label (...).
        bias: (V,).
        class_weight: (V,), the `weight` of `CrossEntropyLoss`.
        token_weight: (...), multiplies each token's loss; "mean" divides by the sum of weights.
        ignore_index, label_smoothing, reduction: as in `focal_loss`.
        accumulate: dtype in which the weight's gradient adds up over the chunks; None is the dtype
            of `weight`. Each product accumulates in float32 in any case; in bfloat16 the sum is
            rounded once per chunk. torch.float32 rounds only once, for 4 more bytes per weight.
        chunk_bytes: how much memory a chunk of logits may take.

    Returns:
        A scalar, or the labels' shape with reduction "none"; float32 (float64 for float64 input).

    Example:
        >>> x, weight = torch.randn(6, 4, requires_grad=True), torch.randn(9, 4)
        >>> linear_focal_loss(x, weight, torch.arange(6), gamma=3.0).backward()
        >>> x.grad.shape
        torch.Size([6, 4])

    Second derivatives are not available: use `focal_loss` on the logits for those.
    """
    check_reduction(reduction)
    check_tensors(x=x, weight=weight, target=target)
    if torch.is_autocast_enabled(x.device.type):
        x = x.to(torch.get_autocast_dtype(x.device.type))
    _check_layer(x, weight, bias, accumulate)
    for name, tensor in (("labels", target), ("token_weight", token_weight)):
        if tensor is not None and tensor.shape != x.shape[:-1]:
            raise InputError(
                f"expected {name} of shape {tuple(x.shape[:-1])} for x of shape "
                f"{tuple(x.shape)}, got {tuple(tensor.shape)}"
            )
    rows = x.reshape(-1, x.shape[-1])
    # Options are checked as in focal_loss, on logits that take no memory.
    problem = make_problem(
        rows.detach().new_empty(()).expand(len(rows), len(weight)),
        target.reshape(-1),
        weight=class_weight,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        integer_only="linear_focal_loss" if target.is_floating_point() else None,
    )
    kept = (~problem.ignored).to(problem.precision)
    if token_weight is not None:
        kept = kept * token_weight.detach().reshape(-1).to(kept)
    settings = _Settings(
        problem,
        check_gammas(gamma.reshape(-1) if isinstance(gamma, Tensor) else gamma, problem),
        kept,
        problem.weighted(kept).sum() if reduction == "mean" else 1.0,
        reduction,
        accumulate or weight.dtype,
        max(ROWS, chunk_bytes // (rows.element_size() * max(1, len(weight))) // ROWS * ROWS),
        torch.is_grad_enabled(),
    )
    apply = _LinearFocal.apply
    if torch.compiler.is_compiling():  # it launches kernels and fills buffers: a graph break
        apply = torch.compiler.disable(apply)
    value = apply(rows, weight, bias, settings)
    return value.reshape(target.shape) if reduction == "none" else value


class LinearFocalLoss(Loss):
    """The module of `linear_focal_loss`: `loss(hidden, head.weight, target, bias=head.bias)`.

    Args:
        gamma: a number > −1, 2 by default, or steps ((end, γ), ...).
        class_weight, accumulate, settings: as in the function.

    Example:
        >>> head = torch.nn.Linear(4, 9)
        >>> loss = LinearFocalLoss(gamma=3.0)
        >>> loss(torch.randn(2, 5, 4), head.weight, torch.zeros(2, 5).long(), bias=head.bias).shape
        torch.Size([])
    """

    shown = ("gamma", "accumulate")

    def __init__(
        self,
        gamma: Any = DEFAULT_GAMMA,
        *,
        class_weight: Tensor | None = None,
        accumulate: torch.dtype | None = None,
        **settings: Any,
    ) -> None:
        if "weight" in settings:
            raise InputError(
                "expected class weights as class_weight=, got weight=, which in a call is that of "
                "the output layer"
            )
        super().__init__(weight=class_weight, **settings)
        self.gamma: Gamma = check_one_gamma(gamma)
        self.accumulate = accumulate

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        weight: Tensor,
        target: Tensor,
        *,
        bias: Tensor | None = None,
        token_weight: Tensor | None = None,
    ) -> Tensor:
        return linear_focal_loss(
            x,
            weight,
            target,
            self.gamma,
            bias=bias,
            class_weight=self.weight,
            token_weight=token_weight,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            reduction=self.reduction,
            accumulate=self.accumulate,
        )


@dataclass(frozen=True)
class _Settings:
    problem: Problem  # its logits have a shape but no storage
    gamma: Gamma
    kept: Tensor  # the factor of each row besides its class weight, 0 where ignored
    total: Tensor | float  # divisor of the sum
    reduction: str
    accumulate: torch.dtype
    chunk: int  # rows
    differentiable: bool


class _LinearFocal(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        settings: _Settings,
    ) -> Tensor:
        factor = torch.where(settings.kept != 0, settings.kept / settings.total, 0.0)
        wanted = [need and settings.differentiable for need in ctx.needs_input_grad[:3]]
        ctx.later = any(wanted) and (settings.reduction == "none" or x.dtype == torch.float16)
        now = [False] * 3 if ctx.later else wanted
        values, ctx.gradients = _in_chunks(x, weight, bias, factor, settings, now)
        if ctx.later:
            ctx.save_for_backward(x, weight, bias, factor)
            ctx.settings, ctx.wanted = settings, wanted
        values = values * settings.kept
        return values if settings.reduction == "none" else values.sum() / settings.total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise InputError(
                "linear_focal_loss has no second derivatives (create_graph=True); "
                "use focal_loss on the logits"
            )
        if ctx.later:
            x, weight, bias, factor = ctx.saved_tensors
            _, gradients = _in_chunks(x, weight, bias, factor * grad, ctx.settings, ctx.wanted)
            return *gradients, None
        # Without a reference held here, autograd takes the buffers themselves, not copies.
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:
            raise InputError(
                "expected one backward pass per call of linear_focal_loss, whose gradients are "
                "computed with the value and returned once; call it again"
            )
        return *[None if g is None else _scaled(g, grad) for g in gradients], None


def _in_chunks(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    factor: Tensor,
    settings: _Settings,
    wanted: list[bool],
) -> tuple[Tensor, list[Tensor | None]]:
    """The loss of each row, and the gradients of Σ factor · loss for x, weight and bias."""
    kind = compute_dtype(x) if x.is_cpu else x.dtype  # float32 for half precision on a CPU
    matrix = weight.to(kind)
    shift = None if bias is None else bias.to(kind)
    values = torch.empty_like(factor)
    dx = torch.empty_like(x, dtype=kind) if wanted[0] else None
    dw = db = None
    if wanted[1]:
        dw = (
            torch.zeros_like(weight)
            if len(x) == 0
            else torch.empty_like(weight, dtype=kind if x.is_cpu else settings.accumulate)
        )
    if wanted[2]:
        db = torch.zeros_like(bias, dtype=factor.dtype)
    buffer = x.new_empty(min(len(x), settings.chunk), len(weight), dtype=kind)
    with torch.autocast(x.device.type, enabled=False):
        for start in range(0, len(x), settings.chunk):
            part = slice(start, start + settings.chunk)
            rows = x[part].to(kind)
            logits = buffer[: len(rows)]
            if shift is None:
                torch.mm(rows, matrix.T, out=logits)
            else:
                torch.addmm(shift, rows, matrix.T, out=logits)
            values[part] = _to_gradients(logits, part, factor, settings, any(wanted))
            if dx is not None:
                torch.mm(logits, matrix, out=dx[part])
            if dw is not None:
                _add_product(dw, logits.T, rows, beta=int(start > 0))
            if db is not None:
                db += logits.sum(0, dtype=db.dtype)
    found = zip((dx, dw, db), (x, weight, bias))
    return values, [None if g is None else g.to(like.dtype) for g, like in found]


def _to_gradients(
    logits: Tensor, part: slice, factor: Tensor, settings: _Settings, wanted: bool
) -> Tensor:
    """The loss of each row; the logits become factor · d(loss)/d(logits) in place if wanted."""
    problem, gamma = settings.problem, settings.gamma
    labels, factor = problem.labels[part].contiguous(), factor[part]
    gamma = gamma[part] if isinstance(gamma, Tensor) else gamma
    options = problem.weight, problem.ignore_index, problem.smoothing
    if can_fuse(logits, labels, gamma):
        from focalcal.losses import _triton

        fused = _triton.Settings(gamma, *options)
        values, scratch = _triton.launch_forward(logits, labels, fused)
        if wanted:
            _triton.launch_backward(logits, labels, scratch, factor, fused, out=logits)
        return values
    leaf = logits.detach().requires_grad_(wanted)
    with torch.set_grad_enabled(wanted):
        values = Problem(leaf, labels, None, *options).focal(gamma, "none")
    if wanted:
        logits.copy_(torch.autograd.grad(values, leaf, factor)[0])
    return values.detach()


def _add_product(total: Tensor, a: Tensor, b: Tensor, beta: int) -> None:
    """total ← beta · total + a @ b; CUDA adds products of half precision to a float32 total."""
    if total.dtype == a.dtype:
        torch.addmm(total, a, b, beta=beta, out=total)
    else:
        torch.addmm(total, a, b, out_dtype=total.dtype, beta=beta, out=total)


def _scaled(gradient: Tensor, grad: Tensor) -> Tensor:
    if gradient.is_cuda and gradient.dtype != torch.float64 and has_triton():
        from focalcal.losses._triton import scale_

        return scale_(gradient, grad)
    return gradient.mul_(grad)


def _check_layer(
    x: Tensor, weight: Tensor, bias: Tensor | None, accumulate: torch.dtype | None
) -> None:
    if not is_plain(weight) or weight.ndim != 2:
        raise InputError(
            f"expected the whole weight (V, D) as a plain tensor, got {type(weight).__name__} of "
            f"shape {tuple(weight.shape)}; where it is sharded, call the loss inside the forward "
            "of the module that owns it, where FSDP has gathered it"
        )
    if x.ndim < 1 or x.shape[-1] != weight.shape[1]:
        raise InputError(
            f"expected x (..., {weight.shape[1]}) for a weight of shape {tuple(weight.shape)}, "
            f"got {tuple(x.shape)}"
        )
    if not x.is_floating_point() or weight.dtype not in (x.dtype, compute_dtype(x)):
        raise InputError(
            "expected x and weight of one floating-point dtype, or a float32 weight with x in half "
            f"precision, got {x.dtype} and {weight.dtype}"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise InputError(f"expected bias ({len(weight)},), got {tuple(bias.shape)}")
    wide = compute_dtype(weight)
    if accumulate not in (None, weight.dtype, wide):
        raise InputError(f"expected accumulate {wide} or {weight.dtype}, got {accumulate}")
