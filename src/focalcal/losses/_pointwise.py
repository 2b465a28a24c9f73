"""The focal loss as a scalar function of a cross-entropy c = −ln p: f(c) = (1−e^{−c})^γ · c.

Every focal loss applies this function to PyTorch's own cross-entropy, so that it costs operations
on one number per sample in addition to the softmax. Its slope is f′(c) = g(p, γ), and the gradient
dFL/dz = g(p_y, γ) · (softmax(z) − onehot(y)). The CUDA kernels are tested against it.
"""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

Steps: TypeAlias = tuple[tuple[float, float], ...]
Gamma: TypeAlias = float | Tensor | Steps
"""γ: one number, one per sample, or ((end, γ), ...): the γ of the first end above p."""


def focal_value(ce: Tensor, gamma: Gamma) -> Tensor:
    """(1−p)^γ · ce with p = exp(−ce), element by element; γ is a constant in every derivative.

    Value and derivatives are finite for every ce ≥ 0 and γ > −1, also where p rounds to 1.
    """
    # log_softmax cannot resolve 1−p below eps, and (1−p)^γ or its derivatives diverge at 0 for
    # γ < 1 while their product with dc/dz vanishes: at eps both are finite. The upper limit is for
    # ce = inf (a logit of −inf), where the power's derivative would be 0·inf.
    limits = torch.finfo(ce.dtype)
    one_minus_p = -torch.expm1(-ce.clamp(limits.eps, limits.max))
    return one_minus_p ** gamma_at(ce, gamma) * ce


def gamma_at(ce: Tensor, gamma: Gamma) -> float | Tensor:
    """γ at p = exp(−ce): steps become a tensor like ce."""
    if not isinstance(gamma, tuple):
        return gamma
    p = torch.exp(-ce.detach())
    result = torch.full_like(p, gamma[-1][1])
    for end, value in reversed(gamma[:-1]):
        result = torch.where(p < end, value, result)
    return result


def is_transformed() -> bool:
    """Whether torch.compile or torch.func is tracing: only differentiable operations, no values."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def wants_plain_backward(grad: Tensor) -> bool:
    """Whether a backward pass is itself differentiated or batched: needs differentiable ops."""
    return (
        torch.is_grad_enabled()
        or is_transformed()
        or torch._C._functorch.is_legacy_batchedtensor(grad)  # autograd.grad(is_grads_batched=True)
    )
