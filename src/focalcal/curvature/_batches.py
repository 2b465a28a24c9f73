"""A network's loss on batches: checked data, chosen parameters, evaluation mode."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from focalcal.errors import InputError
from focalcal.losses import make_loss
from focalcal.losses.registry import CURVATURE

LossLike = str | Callable[[Tensor, Tensor], Tensor]
Batch = tuple[Any, Tensor, Tensor | None]


def resolve_loss(loss: LossLike) -> Callable[[Tensor, Tensor], Tensor]:
    """A loss by name with one value per sample ("ce", "fl-3", …), or any callable unchanged."""
    if isinstance(loss, str):
        if loss.strip().lower().endswith(CURVATURE):
            raise InputError(
                f"expected a loss without a curvature term, got {loss!r}; leave out {CURVATURE}"
            )
        if "none" not in make_loss(loss).reductions:
            raise InputError(f"expected a loss with a value per sample, got {loss!r}; use ce")
        return make_loss(loss, reduction="none")
    if not callable(loss):
        raise InputError(f"expected a loss name or a callable, got {type(loss).__name__}")
    if getattr(loss, "reduction", None) == "sum":
        raise InputError(
            "expected a loss with reduction 'none' or 'mean', got 'sum', whose Hessian grows with "
            "the batch; build it with reduction='none'"
        )
    return loss


def per_sample(values: Tensor, target: Tensor) -> Tensor:
    """The loss of each sample (N,); for dense targets, the sum over its positions."""
    if values.ndim == 0 or len(values) != len(target):
        raise InputError(
            f"expected a loss with one value per sample ({len(target)},), which norms and weighted "
            f"batches need, got {tuple(values.shape)}; build it with reduction='none'"
        )
    return values.reshape(len(target), -1).sum(1)


def weighted_loss(loss: Callable, logits: Tensor, target: Tensor, weight: Tensor | None) -> Tensor:
    """Σ_i w_i ℓ_i over the batch; without weights a scalar loss is the mean of its batch."""
    values = loss(logits, target)
    if weight is None and values.ndim == 0:
        return values * len(target)
    values = per_sample(values, target)
    return values.sum() if weight is None else (weight.to(values.dtype) * values).sum()


def read_batches(batches: Iterable, device: torch.device) -> Iterator[Batch]:
    """(inputs, target, weight or None) of every batch, on `device`."""
    batch = None
    for batch in batches:
        if not isinstance(batch, Sequence) or len(batch) not in (2, 3):
            raise InputError(
                "expected batches of (inputs, target) or (inputs, target, weight), "
                f"got {type(batch).__name__}"
            )
        inputs, target, weight = (*batch, None)[:3]
        target = target.to(device)
        if weight is not None:
            weight = weight.to(device)
            if weight.shape != target.shape[:1] or bool((weight < 0).any()):
                raise InputError(
                    f"expected weights >= 0 of shape {tuple(target.shape[:1])}, "
                    f"got shape {tuple(weight.shape)}"
                )
        yield (inputs.to(device) if hasattr(inputs, "to") else inputs), target, weight
    if batch is None:
        raise InputError("expected at least one batch, got none")


def chosen_parameters(
    model: nn.Module, parameters: Iterable[str | Tensor] | None
) -> dict[str, nn.Parameter]:
    """Parameters by name: all that require a gradient, or those named or given."""
    named = dict(model.named_parameters())
    if parameters is None:
        parameters = [p for p in named.values() if p.requires_grad]
    by_id = {id(p): name for name, p in named.items()}
    wanted = [p if isinstance(p, str) else by_id.get(id(p)) for p in parameters]
    unknown = [name for name in wanted if name not in named]
    if unknown:
        raise InputError(
            f"expected parameters of the model or their names, got {unknown[0]!r}; "
            f"the model has {', '.join(list(named)[:4])}, …"
        )
    if not wanted:
        raise InputError("expected at least one parameter that requires a gradient, got none")
    return {name: p for name, p in named.items() if name in wanted}


@contextlib.contextmanager
def evaluating(model: nn.Module, chosen: Iterable[nn.Parameter]) -> Iterator[None]:
    """Eval mode, with gradients for the chosen parameters only; every flag is restored."""
    modes = [(module, module.training) for module in model.modules()]
    flags = [(p, p.requires_grad) for p in model.parameters()]
    kept = {id(p) for p in chosen}
    try:
        model.eval()
        for p, _ in flags:
            p.requires_grad_(id(p) in kept)
        with torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode
        for p, flag in flags:
            p.requires_grad_(flag)
