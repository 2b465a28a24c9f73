"""The focal loss as a scalar function of a cross-entropy c = −ln p: f(c) = (1−e^{−c})^γ · c.

Every focal loss here is this function applied to PyTorch's own cross-entropy, so its cost beside
the softmax is that of a vector with one number per sample, and f′(c) = g(p, γ) is all the gradient
needs: dFL/dz = g(p_y, γ) · (softmax(z) − onehot(y)).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def focal_value(ce: Tensor, gamma: float | Tensor) -> Tensor:
    """(1−p)^γ · ce with p = exp(−ce), element by element; γ is a constant in every derivative.

    Value and derivatives are finite for every ce ≥ 0 and γ > −1, also where p rounds to 1.
    """
    if is_transformed():
        return _safe(ce)[1] ** gamma * ce
    return _FocalValue.apply(ce, gamma)


def is_transformed() -> bool:
    """Whether torch.compile or torch.func is at work, which want plain operations and no values."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


class _FocalValue(torch.autograd.Function):
    """The value, and the slope with it: the first backward pass is then one multiplication.

    A backward pass that is itself differentiated recomputes the slope with autograd's own
    operations, which carry every higher derivative.
    """

    @staticmethod
    def forward(ctx: Any, ce: Tensor, gamma: float | Tensor) -> Tensor:
        safe, one_minus_p = _safe(ce)
        power = one_minus_p**gamma
        if ctx.needs_input_grad[0]:
            # r in the form with the fewest operations; its derivative would overflow, r does not.
            r = safe / torch.expm1(safe)
            scaled, factor = (power * gamma, 1) if isinstance(gamma, Tensor) else (power, gamma)
            ctx.gamma = gamma
            ctx.save_for_backward(ce, torch.addcmul(power, scaled, r, value=factor))
        return power * ce

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        ce, slope = ctx.saved_tensors
        if torch.is_grad_enabled():
            slope = gradient_factor(ce, ctx.gamma)
        return grad * slope, None


def gradient_factor(ce: Tensor, gamma: float | Tensor) -> Tensor:
    """g(p, γ) = (1−p)^γ · (1 + γ·r), r = p·ce/(1−p), of p = exp(−ce); differentiable in ce."""
    safe, one_minus_p = _safe(ce)
    # exp(−ce) is taken anew: 1 − one_minus_p has no correct digit left where p is small.
    return one_minus_p**gamma * (1 + gamma * (torch.exp(-safe) * safe / one_minus_p))


def _safe(ce: Tensor) -> tuple[Tensor, Tensor]:
    # log_softmax cannot resolve 1−p below eps, and (1−p)^γ or its derivatives diverge at 0 for
    # γ < 1 while their product with dc/dz vanishes: stop at eps, where both are finite. The upper
    # end is for ce = inf (a logit of −inf), whose p·ce would be 0·inf.
    limits = torch.finfo(ce.dtype)
    safe = ce.clamp(limits.eps, limits.max)
    return safe, -torch.expm1(-safe)
