"""Operations whose *second* derivative is cheap or correct where torch's is not.

torch differentiates a convolution's backward with convolutions whose kernels are as large as the
images, and batch normalisation's with a dozen element-wise kernels; together they make a Hessian
product cost about six gradients. Here the second derivative of a convolution consists of ordinary
convolutions, and batch normalisation is the affine map that it is in eval mode. torch's fused
attention has no second derivative, and that of its weight normalisation is wrong (torch 2.13 treats
the norms as constants): both are replaced by plain operations.
`cheap_second_order()` replaces the functions while a graph is recorded; no module is changed.
A third derivative through a convolution raises an error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

_DIMENSIONS: dict[Callable, int] = {torch.conv1d: 1, torch.conv2d: 2, torch.conv3d: 3}


@contextlib.contextmanager
def cheap_second_order() -> Iterator[None]:
    """Inside, these operations record graphs whose second derivatives are correct and fast."""
    with sdpa_kernel(SDPBackend.MATH), _Replaced():
        yield


class _Replaced(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in _DIMENSIONS:
            return _convolution(func, *args, **kwargs)
        if func is F.batch_norm:
            return _batch_norm(*args, **kwargs)
        if func is torch._weight_norm:
            return _weight_norm(*args, **kwargs)
        return func(*args, **kwargs)


def _weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    return v * (g / torch.norm_except_dim(v, 2, dim))


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
    scale = weight * torch.rsqrt(running_var + eps)
    shape = (-1, *[1] * (input.ndim - 2))
    return torch.addcmul((bias - running_mean * scale).view(shape), input, scale.view(shape))


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
    each = ([v] * dims if isinstance(v, int) else v for v in (stride, padding, dilation))
    geometry = (*each, False, [0] * dims, groups)  # not transposed, no output padding
    out = _Convolution.apply(input, weight, geometry)
    return out if bias is None else out + bias.view(-1, *[1] * dims)


def _conv(x: Tensor, w: Tensor, geometry: tuple) -> Tensor:
    return torch.ops.aten.convolution(x, w, None, *geometry)


def _conv_backward(
    dy: Tensor, x: Tensor, w: Tensor, geometry: tuple, mask: tuple[bool, bool]
) -> tuple[Tensor | None, Tensor | None]:
    """(dx, dw) as selected by `mask`; dx uses only the shape of x, dw only that of w."""
    return torch.ops.aten.convolution_backward(dy, x, w, None, *geometry, [*mask, False])[:2]


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
        # Gradients are recorded here only if a graph of the second derivative was requested.
        if torch.is_grad_enabled():
            raise RuntimeError(
                "expected at most two derivatives inside cheap_second_order(), got a request for a "
                "third; record the graph outside it"
            )
        dy, x, w = ctx.saved_tensors
        of_dy, of_x, of_w = ctx.needs_input_grad[:3]
        grad_dy = grad_x = grad_w = None
        if of_dy and u is not None:
            grad_dy = _conv(u, w, ctx.geometry)
        if of_dy and v is not None:
            through_w = _conv(x, v, ctx.geometry)
            grad_dy = through_w if grad_dy is None else grad_dy.add_(through_w)
        if of_x and v is not None:
            grad_x, _ = _conv_backward(dy, x, v, ctx.geometry, (True, False))
        if of_w and u is not None:
            _, grad_w = _conv_backward(dy, u, w, ctx.geometry, (False, True))
        return grad_dy, grad_x, grad_w, None, None
