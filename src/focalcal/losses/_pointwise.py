"""The focal loss as a scalar function of a cross-entropy c = −ln p: f(c) = (1−e^{−c})^γ · c.

Every focal loss applies this function to PyTorch's own cross-entropy, so beyond the softmax it
costs only operations on one number per sample. The gradient with respect to the logits is
g(p_y, γ) · (softmax(z) − onehot(y)) with g = f′. The CUDA kernels are tested against it.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

Steps: TypeAlias = tuple[tuple[float, float], ...]
Gamma: TypeAlias = float | Tensor | Steps
"""γ: one number, one per sample, or ((end, γ), ...): the γ of the first end above p."""


def focal_value(ce: Tensor, gamma: Gamma, exact: bool = False) -> Tensor:
    """(1−p)^γ · ce with p = exp(−ce), element by element; γ is a constant in every derivative.

    Value and derivatives are finite for every ce ≥ 0 and γ > −1, even if p rounds to 1.
    `exact` means that ce is accurate there too, which that of log_softmax is not.
    """
    gamma = gamma_at(ce, gamma)
    if is_transformed():
        return value_and_slope(ce, gamma, exact)[0]
    return _FocalValue.apply(ce, gamma, exact)


def value_and_slope(
    ce: Tensor, gamma: float | Tensor, exact: bool = False
) -> tuple[Tensor, Tensor]:
    """f(c) and f′(c) = g(p, γ) = (1−p)^γ · (1 + γ·r), r = p·ce/(1−p); differentiable in ce."""
    # log_softmax cannot resolve 1−p below eps, and (1−p)^γ or its derivatives diverge at 0 for
    # γ < 1 while their product with dc/dz vanishes: at eps both are finite, and above √tiny the
    # second derivative of exact values. The upper limit is for ce = inf (a logit of −inf), where
    # p·ce would be 0·inf.
    limits = torch.finfo(ce.dtype)
    log_p = -ce.clamp(limits.tiny**0.5 if exact else limits.eps, limits.max)
    p_minus_1 = torch.expm1(log_p)
    power = (-p_minus_1) ** gamma
    # Not p = 1 + p_minus_1, which has no correct digit where p is small.
    r = torch.exp(log_p) * log_p / p_minus_1
    return power * ce, torch.addcmul(power, power, gamma * r)


def gamma_at(ce: Tensor, gamma: Gamma) -> float | Tensor:
    """γ at p = exp(−ce): steps become a tensor like ce."""
    if not isinstance(gamma, tuple):
        return gamma
    p = torch.exp(-ce.detach())
    result = torch.full_like(p, gamma[-1][1])
    for end, value in reversed(gamma[:-1]):
        result = torch.where(p < end, value, result)
    return result


def diverges(gamma: Gamma) -> bool:
    """Whether (1−p)^γ diverges as p → 1 (γ < 0 there), so that `cross_entropies` is needed.

    A tensor whose values cannot be read counts as γ ≥ 0.
    """
    if isinstance(gamma, Tensor):
        return values_are_visible(gamma) and bool((gamma < 0).any())
    return (gamma[-1][1] if isinstance(gamma, tuple) else gamma) < 0


def cross_entropies(logits: Tensor) -> Tensor:
    """−log_softmax over axis 1, accurate even for a class whose p rounds to 1."""
    top = logits.detach().argmax(1, keepdim=True)
    odds = (logits - logits.gather(1, top)).exp().scatter(1, top, 0.0).sum(1, keepdim=True)
    return (-F.log_softmax(logits, 1)).scatter(1, top, odds.log1p())


class _FocalValue(torch.autograd.Function):
    """Computes the slope with the value, so that the backward pass is one multiplication."""

    @staticmethod
    def forward(ctx: Any, ce: Tensor, gamma: float | Tensor, exact: bool) -> Tensor:
        value, slope = value_and_slope(ce, gamma, exact)
        ctx.gamma, ctx.exact = gamma, exact
        ctx.save_for_backward(ce, slope)
        return value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        ce, slope = ctx.saved_tensors
        if torch.is_grad_enabled():  # the backward pass is itself differentiated
            slope = value_and_slope(ce, ctx.gamma, ctx.exact)[1]
        return grad * slope, None, None


def is_transformed() -> bool:
    """Whether torch.compile, torch.func or forward-mode AD needs plain operations and no values."""
    return (
        torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or torch.autograd.forward_ad._current_level >= 0
    )


def values_are_visible(tensor: Tensor) -> bool:
    """Whether a tensor's values can be read without waiting for a device."""
    return tensor.device.type == "cpu" and not is_transformed()


def wants_plain_backward(grad: Tensor) -> bool:
    """Whether a backward pass is itself differentiated or batched, so needs differentiable ops."""
    return (
        torch.is_grad_enabled()
        or is_transformed()
        or torch._C._functorch.is_legacy_batchedtensor(grad)  # autograd.grad(is_grads_batched=True)
    )
