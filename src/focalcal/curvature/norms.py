"""Norms that go with curvature: gradients per sample, inputs' gradients, weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from focalcal.curvature._batches import (
    LossLike,
    chosen_parameters,
    evaluating,
    read_batches,
    resolve_loss,
)
from focalcal.errors import InputError


@dataclasses.dataclass(frozen=True)
class NormSummary:
    """Norms of n samples; the largest input gradient is a lower bound on the Lipschitz constant."""

    mean: float
    standard_error: float
    median: float
    q95: float
    largest: float
    n: int


def summarise_norms(norms: Tensor) -> NormSummary:
    """Mean with its standard error, median, 95 % quantile and maximum of per-sample norms (N,).

    >>> import torch
    >>> summarise_norms(torch.tensor([1.0, 2.0, 3.0])).median
    2.0
    """
    if norms.ndim != 1 or not len(norms):
        raise InputError(f"expected norms of shape (N,) with N >= 1, got {tuple(norms.shape)}")
    x = norms.double()
    n = len(x)
    error = float(x.std()) / n**0.5 if n > 1 else float("inf")
    return NormSummary(
        float(x.mean()), error, float(x.quantile(0.5)), float(x.quantile(0.95)), float(x.max()), n
    )


def last_layer_gradient_norms(model: nn.Module, loss: LossLike, batches: Iterable) -> Tensor:
    """‖∂ℓ_i/∂(W, b)‖ of each sample for the last linear layer, (N,) in float64.

    For logits z = Wh + b the gradient is δhᵀ and δ with δ = ∂ℓ/∂z (for the focal loss
    δ = g(p,γ)(q − y)), so its norm is ‖δ‖·√(‖h‖² + 1) and one forward pass is enough. A layer
    whose output is not the model's output falls back to a gradient per sample.

    Args:
        model: maps inputs to logits (N, K).
        loss: a name or a callable that gives one value per sample.
        batches: an iterable of (inputs, target).

    Example:
        >>> import torch
        >>> from focalcal.curvature import last_layer_gradient_norms
        >>> model = torch.nn.Linear(1, 2, bias=False)
        >>> _ = torch.nn.init.zeros_(model.weight)
        >>> ce = torch.nn.CrossEntropyLoss(reduction="none")
        >>> norms = last_layer_gradient_norms(model, ce, [(torch.ones(1, 1), torch.tensor([0]))])
        >>> round(norms.item(), 6)
        0.707107

    Reference: IE Fig. 4.
    """
    linear = [(name, m) for name, m in model.named_modules() if isinstance(m, nn.Linear)]
    if not linear:
        raise InputError("expected a model with a linear layer, got none; use gradient_norms")
    name, layer = linear[-1]
    loss = resolve_loss(loss)
    seen: list[tuple[Tensor, Tensor]] = []
    handle = layer.register_forward_hook(lambda _, inputs, out: seen.append((inputs[0], out)))
    norms: list[Tensor] = []
    try:
        with evaluating(model, ()), torch.no_grad():
            for inputs, target, _ in read_batches(batches, _device(model)):
                seen.clear()
                logits = model(inputs)
                if len(seen) != 1 or seen[0][0].ndim != 2 or seen[0][1] is not logits:
                    break
                delta = _logit_gradients(loss, logits, target)
                ones = float(layer.bias is not None)
                hidden = seen[0][0].double().square().sum(1) + ones
                norms.append(delta.double().norm(dim=1) * hidden.sqrt())
            else:
                return torch.cat(norms)
    finally:
        handle.remove()
    prefix = f"{name}." if name else ""
    return gradient_norms(
        model, loss, batches, [f"{prefix}{p}" for p, _ in layer.named_parameters()]
    )


def gradient_norms(
    model: nn.Module,
    loss: LossLike,
    batches: Iterable,
    parameters: Iterable[str | Tensor] | None = None,
) -> Tensor:
    """‖∂ℓ_i/∂θ‖ of each sample over any parameters (all by default), (N,) in float64.

    >>> import torch
    >>> from focalcal.curvature import gradient_norms
    >>> model = torch.nn.Linear(1, 2, bias=False)
    >>> _ = torch.nn.init.zeros_(model.weight)
    >>> ce = torch.nn.CrossEntropyLoss(reduction="none")
    >>> norms = gradient_norms(model, ce, [(torch.ones(1, 1), torch.tensor([0]))])
    >>> round(norms.item(), 6)
    0.707107
    """
    loss = resolve_loss(loss)
    chosen = chosen_parameters(model, parameters)
    frozen = {name: p.detach() for name, p in chosen.items()}

    def one(values: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        logits = functional_call(model, values, (x[None],))
        return loss(logits, y[None]).sum()

    norms = []
    with evaluating(model, ()):
        for inputs, target, _ in read_batches(batches, _device(model)):
            gradients = vmap(grad(one), (None, 0, 0))(frozen, inputs, target)
            squares = [g.detach().double().flatten(1).square().sum(1) for g in gradients.values()]
            norms.append(torch.stack(squares).sum(0).sqrt())
    return torch.cat(norms)


def input_gradient_norms(model: nn.Module, loss: LossLike, batches: Iterable) -> Tensor:
    """‖∂ℓ_i/∂x_i‖ of each sample, (N,) in float64: how fast the loss changes with the input.

    Their maximum is an empirical lower bound on the Lipschitz constant of the loss in the input.

    >>> import torch
    >>> from focalcal.curvature import input_gradient_norms
    >>> model = torch.nn.Linear(1, 2, bias=False)
    >>> _ = torch.nn.init.constant_(model.weight, 1.0)
    >>> ce = torch.nn.CrossEntropyLoss(reduction="none")
    >>> input_gradient_norms(model, ce, [(torch.ones(3, 1), torch.tensor([0, 1, 0]))]).tolist()
    [0.0, 0.0, 0.0]
    """
    loss = resolve_loss(loss)
    norms = []
    with evaluating(model, ()):
        for inputs, target, _ in read_batches(batches, _device(model)):
            if not inputs.is_floating_point():
                raise InputError(f"expected floating point inputs, got {inputs.dtype}")
            x = inputs.detach().requires_grad_()
            # In eval mode samples do not mix, so the sum's gradient holds one row per sample.
            (gradient,) = torch.autograd.grad(_per_sample(loss, model(x), target).sum(), x)
            norms.append(gradient.double().flatten(1).norm(dim=1))
    return torch.cat(norms)


def weight_norms(model: nn.Module) -> dict[str, float]:
    """‖θ‖ of each parameter tensor, by name.

    >>> import torch
    >>> layer = torch.nn.Linear(2, 2, bias=False)
    >>> _ = torch.nn.init.constant_(layer.weight, 1.0)
    >>> weight_norms(layer)
    {'weight': 2.0}
    """
    return {name: float(p.detach().double().norm()) for name, p in model.named_parameters()}


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


def _per_sample(loss: Callable, logits: Tensor, target: Tensor) -> Tensor:
    values = loss(logits, target)
    if values.shape != target.shape[:1]:
        raise InputError(
            f"expected a loss with one value per sample ({len(target)},), "
            f"got {tuple(values.shape)}; build it with reduction='none'"
        )
    return values


def _logit_gradients(loss: Callable, logits: Tensor, target: Tensor) -> Tensor:
    with torch.enable_grad():
        z = logits.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(_per_sample(loss, z, target).sum(), z)
    return gradient
