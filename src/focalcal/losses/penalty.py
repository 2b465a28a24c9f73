"""A differentiable estimate of the Hessian trace, to be added to a training loss."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from focalcal.errors import InputError


def curvature_penalty(
    loss_value: Tensor,
    parameters: Iterable[Tensor],
    probes: int = 1,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Hutchinson's estimate of the trace of a loss' Hessian, itself differentiable.

    Tr(H) ≈ (1/M) Σ_m v_mᵀ H v_m with Rademacher v_m; unbiased in value and in gradient, since the
    probes do not depend on the parameters.

    Args:
        loss_value: a scalar whose graph is alive; its backward must be twice differentiable.
        parameters: the tensors θ the Hessian is taken over; those that the loss does not use, or
            that do not require a gradient, add nothing.
        probes: M, the number of probe vectors.
        generator: where the probes come from (any device); torch's default generator if None.

    Returns:
        A scalar tensor with a graph: `(loss + tau * penalty).backward()` works.

    Example:
        >>> import torch
        >>> theta = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> penalty = curvature_penalty((theta**4).sum(), [theta])
        >>> penalty.item(), torch.autograd.grad(penalty, theta)[0].tolist()
        (60.0, [24.0, 48.0])

    Reference: GEO Eq. 33.
    """
    probes = _check_probes(probes)
    if not isinstance(loss_value, Tensor) or loss_value.numel() != 1:
        shape = tuple(loss_value.shape) if isinstance(loss_value, Tensor) else type(loss_value)
        raise InputError(f"expected a scalar loss tensor, got {shape}; reduce it with mean or sum")
    if not loss_value.requires_grad:
        raise InputError(
            "expected a loss with a graph, got one that requires no gradient; "
            "compute it outside torch.no_grad() and do not detach it"
        )
    thetas = [p for p in parameters if p.requires_grad]
    if not thetas:
        raise InputError("expected at least one parameter that requires a gradient, got none")
    gradients = torch.autograd.grad(loss_value, thetas, create_graph=True, allow_unused=True)
    # A gradient without a graph is constant in θ: the loss is at most linear there.
    curved = [(p, g) for p, g in zip(thetas, gradients) if g is not None and g.requires_grad]
    if not curved:
        return loss_value.new_zeros(()) + 0.0 * loss_value.reshape(())
    used, gradients = zip(*curved)
    total = loss_value.new_zeros(())
    for _ in range(probes):
        vs = [rademacher(p, generator) for p in used]
        products = torch.autograd.grad(
            gradients, used, vs, create_graph=True, allow_unused=True, materialize_grads=True
        )
        for v, product in zip(vs, products):
            total = total + (v * product).sum().to(total.dtype)
    return total / probes


def rademacher(like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """±1 with equal odds, in the shape, dtype and device of `like`."""
    device = like.device if generator is None else generator.device
    bits = torch.randint(0, 2, like.shape, generator=generator, device=device)
    return (2 * bits - 1).to(device=like.device, dtype=like.dtype)


def _check_probes(probes: int) -> int:
    if int(probes) != probes or probes < 1:
        raise InputError(f"expected probes to be a whole number >= 1, got {probes}")
    return int(probes)
