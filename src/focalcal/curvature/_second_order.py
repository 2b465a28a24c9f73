"""Convolution and eval-mode batch normalisation whose *second* derivative is cheap.

torch differentiates a convolution's backward with convolutions whose kernels are as large as the
images, and batch normalisation's with a chain of a dozen element-wise kernels; together they make
a Hessian product cost about six gradients. Written out by hand, both second derivatives are made
of the very kernels that training uses. `cheap_second_order()` swaps the two functions in while a
graph is recorded; no module is touched. A third derivative through them is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

_DIMENSIONS: dict[Callable, int] = {torch.conv1d: 1, torch.conv2d: 2, torch.conv3d: 3}


class cheap_second_order(TorchFunctionMode):
    """Inside, convolutions and eval-mode batch norms record a twice-differentiable fast path."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in _DIMENSIONS:
            return _convolution(func, *args, **kwargs)
        if func is F.batch_norm:
            return _batch_norm(*args, **kwargs)
        return func(*args, **kwargs)


def _convolution(
    func: Callable,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    dims = _DIMENSIONS[func]
    if isinstance(padding, str) or input.ndim != dims + 2:
        return func(input, weight, bias, stride, padding, dilation, groups)
    geometry = (*(_each(value, dims) for value in (stride, padding, dilation)), groups)
    out = _Convolution.apply(input, weight, geometry)
    return out if bias is None else out + bias.view(-1, *[1] * dims)


def _refuse_third_derivative() -> None:
    # Gradients are recorded here only if someone asked for a graph of the second derivative.
    if torch.is_grad_enabled():
        raise RuntimeError(
            "expected at most two derivatives inside cheap_second_order(), got a request for a "
            "third; record the graph outside it"
        )


def _each(value: Any, dims: int) -> list[int]:
    values = [value] * dims if isinstance(value, int) else list(value)
    return values * dims if len(values) == 1 else values


def _conv(x: Tensor, w: Tensor, geometry: tuple) -> Tensor:
    stride, padding, dilation, groups = geometry
    zeros = [0] * len(stride)
    return torch.ops.aten.convolution(x, w, None, stride, padding, dilation, False, zeros, groups)


def _conv_backward(
    dy: Tensor, x: Tensor, w: Tensor, geometry: tuple, mask: tuple[bool, bool]
) -> tuple[Tensor | None, Tensor | None]:
    """(dx, dw); of `x` and `w` only the shape matters for the one that is being solved for."""
    stride, padding, dilation, groups = geometry
    zeros = [0] * len(stride)
    dx, dw, _ = torch.ops.aten.convolution_backward(
        dy, x, w, None, stride, padding, dilation, False, zeros, groups, [*mask, False]
    )
    return dx, dw


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, geometry):
        ctx.save_for_backward(x, w)
        ctx.geometry = geometry
        return _conv(x, w, geometry)

    @staticmethod
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        mask = ctx.needs_input_grad[:2]
        return *_ConvolutionBackward.apply(dy, x, w, ctx.geometry, mask), None


class _ConvolutionBackward(torch.autograd.Function):
    """(dy, x, w) → (dx, dw); bilinear in (dy, w) and in (dy, x)."""

    @staticmethod
    def forward(ctx, dy, x, w, geometry, mask):
        ctx.save_for_backward(dy, x, w)
        ctx.geometry = geometry
        ctx.set_materialize_grads(False)
        return _conv_backward(dy, x, w, geometry, mask)

    @staticmethod
    def backward(ctx, u, v):
        """Cotangents u of dx and v of dw."""
        _refuse_third_derivative()
        dy, x, w = ctx.saved_tensors
        of_dy, of_x, of_w = ctx.needs_input_grad[:3]
        grad_dy = grad_x = grad_w = None
        if of_dy:
            parts = [_conv(u, w, ctx.geometry)] if u is not None else []
            if v is not None:
                parts.append(_conv(x, v, ctx.geometry))
            grad_dy = parts[0].add_(parts[1]) if len(parts) == 2 else (parts or [None])[0]
        if of_x and v is not None:
            grad_x, _ = _conv_backward(dy, x, v, ctx.geometry, (True, False))
        if of_w and u is not None:
            _, grad_w = _conv_backward(dy, u, w, ctx.geometry, (False, True))
        return grad_dy, grad_x, grad_w, None, None


def _batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if training or running_mean is None or running_var is None or weight is None or bias is None:
        return F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    return _BatchNorm.apply(input, weight, bias, running_mean, running_var, eps)


def _affine(
    x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor, eps: float
) -> Tensor:
    """(x − mean)/√(var + eps) · weight + bias per channel, in one kernel."""
    return torch.ops.aten.native_batch_norm(x, weight, bias, mean, var, False, 0.0, eps)[0]


def _affine_backward(
    dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, var: Tensor, eps: float, mask: list[bool]
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `_affine` for x, weight and bias, those that `mask` asks for."""
    # CUDA wants the saved statistics to be tensors; empty ones mean "take the running ones".
    none = mean.new_empty(0)
    return torch.ops.aten.native_batch_norm_backward(
        dy, x, weight, mean, var, none, none, False, eps, mask
    )


class _BatchNorm(torch.autograd.Function):
    """Running statistics are constants here, so this is y = (x − μ)·r·w + b with r = 1/√(σ²+ε)."""

    @staticmethod
    def forward(ctx, x, w, b, mean, var, eps):
        ctx.save_for_backward(x, w, mean, var)
        ctx.eps = eps
        return _affine(x, w, b, mean, var, eps)

    @staticmethod
    def backward(ctx, dy):
        x, w, mean, var = ctx.saved_tensors
        mask = ctx.needs_input_grad[:3]
        return *_BatchNormBackward.apply(dy, x, w, mean, var, ctx.eps, mask), None, None, None


class _BatchNormBackward(torch.autograd.Function):
    """(dy, x, w) → (dx = dy·w·r, dw = Σ dy·x̂, db = Σ dy)."""

    @staticmethod
    def forward(ctx, dy, x, w, mean, var, eps, mask):
        ctx.save_for_backward(dy, x, w, mean, var)
        ctx.eps = eps
        ctx.set_materialize_grads(False)
        return _affine_backward(dy, x, w, mean, var, eps, list(mask))

    @staticmethod
    def backward(ctx, u, a, c):
        """Cotangents u of dx, a of dw, c of db: both results below reuse the training kernels."""
        _refuse_third_derivative()
        dy, x, w, mean, var = ctx.saved_tensors
        of_dy, of_x, of_w = ctx.needs_input_grad[:3]
        zero = torch.zeros_like(mean)
        a_ = zero if a is None else a
        grad_dy = grad_x = grad_w = None
        if of_dy:
            # u·w·r + a·x̂ + c, the last two being an affine map of x.
            grad_dy = _affine(x, a_, zero if c is None else c, mean, var, ctx.eps)
            if u is not None:
                scale = w * torch.rsqrt(var + ctx.eps)
                grad_dy.addcmul_(u, scale.view(-1, *[1] * (x.ndim - 2)))
        mask = [of_x and a is not None, of_w and u is not None, False]
        if any(mask):
            grad_x, grad_w, _ = _affine_backward(
                dy, x if u is None else u, a_, zero, var, ctx.eps, mask
            )
            grad_x = grad_x if mask[0] else None
            grad_w = grad_w if mask[1] else None
        return grad_dy, grad_x, grad_w, None, None, None, None
