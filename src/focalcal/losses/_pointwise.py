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
    return _FocalValue.apply(ce, gamma)[0]


class _FocalValue(torch.autograd.Function):
    """The value, and the slope with it: the first backward pass is then one multiplication.

    A backward pass that is itself differentiated recomputes the slope with autograd's own
    operations, which carry every higher derivative.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(ce: Tensor, gamma: float | Tensor) -> tuple[Tensor, Tensor]:
        safe, one_minus_p = _safe(ce)
        power = one_minus_p**gamma
        return power * ce, power * _bracket(safe, one_minus_p, gamma)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
        ce, gamma = inputs
        slope = output[1]
        ctx.mark_non_differentiable(slope)
        ctx.is_tensor = isinstance(gamma, Tensor)
        ctx.gamma = None if ctx.is_tensor else gamma
        ctx.save_for_backward(ce, slope, *([gamma] if ctx.is_tensor else []))

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Tensor, None]:
        ce, slope, *rest = ctx.saved_tensors
        if torch.is_grad_enabled():
            slope = gradient_factor(ce, rest[0] if ctx.is_tensor else ctx.gamma)
        return grad * slope, None


def gradient_factor(ce: Tensor, gamma: float | Tensor) -> Tensor:
    """g(p, γ) = (1−p)^γ · (1 + γ·r), r = p·ce/(1−p), of p = exp(−ce); differentiable in ce."""
    safe, one_minus_p = _safe(ce)
    return one_minus_p**gamma * _bracket(safe, one_minus_p, gamma)


def _safe(ce: Tensor) -> tuple[Tensor, Tensor]:
    # log_softmax cannot resolve 1−p below eps, and (1−p)^γ or its derivatives diverge at 0 for
    # γ < 1 while their product with dc/dz vanishes: stop at eps, where both are finite.
    safe = ce.clamp(min=torch.finfo(ce.dtype).eps)
    return safe, -torch.expm1(-safe)


def _bracket(safe: Tensor, one_minus_p: Tensor, gamma: float | Tensor) -> Tensor:
    # exp(−ce) is taken anew: 1 − one_minus_p has no correct digit left where p is small.
    # ce = inf (a logit of −inf) would give 0·inf; its r is 0.
    largest = torch.finfo(safe.dtype).max
    return 1 + gamma * (torch.exp(-safe) * safe.clamp(max=largest) / one_minus_p)
