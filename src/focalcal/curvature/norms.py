"""Norms related to curvature: of per-sample gradients, input gradients and weights."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from focalcal.curvature._batches import (
    LossLike,
    chosen_parameters,
    evaluating,
    per_sample,
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
    """‖∂ℓ_i/∂(W, b)‖ of each sample for the linear layer that is called last, (N,) in float64.

    For outputs Wh + b the gradient is δhᵀ and δ with δ = ∂ℓ/∂(Wh + b), for the focal loss on the
    logits δ = g(p,γ)(q − y). Its norm is ‖δ‖·√(‖h‖² + 1): no gradient of W is formed.

    model: maps inputs to logits (N, K); loss: a name or a callable that gives one value per
    sample; batches: an iterable of (inputs, target).

    >>> model = torch.nn.Linear(1, 2, bias=False)
    >>> _ = torch.nn.init.zeros_(model.weight)
    >>> norms = last_layer_gradient_norms(model, "ce", [(torch.ones(1, 1), torch.tensor([0]))])
    >>> round(norms.item(), 6)
    0.707107

    Reference: IE Fig. 4.
    """
    linear = [m for m in model.modules() if isinstance(m, nn.Linear)]
    none = InputError("expected a model that calls a linear layer, got none; use gradient_norms")
    if not linear:
        raise none
    loss = resolve_loss(loss)
    calls: list[tuple[Tensor, Tensor]] = []
    layer, norms = None, []
    with contextlib.ExitStack() as stack:
        for inputs, target, _ in read_batches(batches, _device(model)):
            if layer is None:  # found first, so that earlier layers record no graph
                layer = _last_called(model, linear, inputs)
                if layer is None:
                    raise none
                hook = layer.register_forward_hook(
                    lambda _, given, out: calls.append((given[0], out))
                )
                stack.enter_context(hook)
                stack.enter_context(evaluating(model, layer.parameters()))
            calls.clear()
            value = per_sample(loss(model(inputs), target), target).sum()
            deltas = torch.autograd.grad(value, [out for _, out in calls])
            # A layer that is called more than once, or on many positions, adds up its terms.
            delta = _positions(deltas, len(target))
            hidden = _positions([h for h, _ in calls], len(target))
            inner = hidden @ hidden.mT + float(layer.bias is not None)
            norms.append(((delta @ delta.mT) * inner).sum((1, 2)).clamp_min(0).sqrt())
    return torch.cat(norms)


def _last_called(model: nn.Module, layers: Sequence[nn.Linear], inputs: Tensor) -> nn.Linear | None:
    called: list[nn.Linear] = []
    with contextlib.ExitStack() as stack:
        for layer in layers:
            stack.enter_context(layer.register_forward_hook(lambda m, *_: called.append(m)))
        stack.enter_context(evaluating(model, ()))
        model(inputs)
    return called[-1] if called else None


def _positions(parts: Sequence[Tensor], n: int) -> Tensor:
    """Tensors whose rows belong to n samples, joined as (n, positions, width) in float64."""
    return torch.cat([x.detach().double().reshape(n, -1, x.shape[-1]) for x in parts], 1)


def gradient_norms(
    model: nn.Module,
    loss: LossLike,
    batches: Iterable,
    parameters: Iterable[str | Tensor] | None = None,
) -> Tensor:
    """‖∂ℓ_i/∂θ‖ of each sample over any parameters (all by default), (N,) in float64.

    >>> model = torch.nn.Linear(1, 2, bias=False)
    >>> _ = torch.nn.init.zeros_(model.weight)
    >>> norms = gradient_norms(model, "ce", [(torch.ones(1, 1), torch.tensor([0]))])
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
            try:
                gradients = vmap(grad(one), (None, 0, 0))(frozen, inputs, target)
            except RuntimeError:  # vmap lacks some operations, such as a GRU
                each = [grad(one)(frozen, x, y) for x, y in zip(inputs, target)]
                gradients = {name: torch.stack([g[name] for g in each]) for name in frozen}
            squares = [g.detach().double().flatten(1).square().sum(1) for g in gradients.values()]
            norms.append(torch.stack(squares).sum(0).sqrt())
    return torch.cat(norms)


def input_gradient_norms(model: nn.Module, loss: LossLike, batches: Iterable) -> Tensor:
    """‖∂ℓ_i/∂x_i‖ of each sample, (N,) in float64: how fast the loss changes with the input.

    Their maximum is an empirical lower bound on the Lipschitz constant of the loss in the input.

    >>> model = torch.nn.Linear(1, 2, bias=False)
    >>> _ = torch.nn.init.constant_(model.weight, 1.0)
    >>> input_gradient_norms(model, "ce", [(torch.ones(3, 1), torch.tensor([0, 1, 0]))]).tolist()
    [0.0, 0.0, 0.0]
    """
    loss = resolve_loss(loss)
    norms = []
    with evaluating(model, ()):
        for inputs, target, _ in read_batches(batches, _device(model)):
            if not inputs.is_floating_point():
                raise InputError(f"expected floating point inputs, got {inputs.dtype}")
            x = inputs.detach().requires_grad_()
            # In eval mode samples are independent, so the sum's gradient has one row per sample.
            value = per_sample(loss(model(x), target), target).sum()
            (gradient,) = torch.autograd.grad(value, x)
            norms.append(gradient.double().flatten(1).norm(dim=1))
    return torch.cat(norms)


def weight_norms(model: nn.Module) -> dict[str, float]:
    """‖θ‖ of each parameter tensor, by name.

    >>> layer = torch.nn.Linear(2, 2, bias=False)
    >>> _ = torch.nn.init.constant_(layer.weight, 1.0)
    >>> weight_norms(layer)
    {'weight': 2.0}
    """
    return {name: float(p.detach().double().norm()) for name, p in model.named_parameters()}


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device
