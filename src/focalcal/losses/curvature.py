"""Any loss plus τ times the trace of its Hessian, and the trace by itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from focalcal._checks import check_whole
from focalcal.errors import InputError
from focalcal.losses._base import Loss


class CurvatureRegularizedLoss(Loss):
    """L + τ·Tr(H), H the Hessian of L in the model's parameters, by Hutchinson's estimator.

    The logits must still have their graph. The trace is differentiable, so `.backward()` reduces
    curvature; τ = 0 is `base`.

    base: the loss L with reduction "mean" or "sum" (cross-entropy in the paper); parameters: the
    tensors that the Hessian is taken over; tau: τ; probes and generator: as in `curvature_penalty`.

    Example:
        >>> from focalcal.losses import FocalLoss
        >>> model = torch.nn.Linear(3, 2)
        >>> loss = CurvatureRegularizedLoss(FocalLoss(0.0), model.parameters(), tau=0.1)
        >>> loss(model(torch.ones(4, 3)), torch.tensor([0, 1, 0, 1])).backward()

    Kimura and Naganuma 2024, "Geometric Insights into Focal Loss", Eq. 33.
    """

    shown = ("tau", "probes")
    needs_parameters = True
    reductions = ("mean", "sum")

    def __init__(
        self,
        base: Loss,
        parameters: Iterable[Tensor],
        tau: float = 0.1,
        probes: int = 1,
        generator: torch.Generator | None = None,
    ) -> None:
        if not isinstance(base, Loss):
            raise InputError(
                f"expected a loss of focalcal.losses as base, got {type(base).__name__}; "
                "FocalLoss(0.0) is cross-entropy"
            )
        if base.reduction == "none":
            raise InputError(
                "the curvature penalty has no per-sample value: expected a base loss with "
                "reduction 'mean' or 'sum', got 'none'"
            )
        super().__init__(reduction=base.reduction)
        self.base = base
        # In a tuple, so that the model's parameters do not become the loss's own.
        self.over = _tensors(parameters)
        self.needs_validation = base.needs_validation
        self.tau, self.probes, self.generator = float(tau), probes, generator

    def start_epoch(self, epoch: int, epochs: int) -> None:
        self.base.start_epoch(epoch, epochs)

    def update(self, val_logits: Tensor, val_labels: Tensor) -> None:
        """Validation results for a base that `needs_validation`."""
        self.base.update(val_logits, val_labels)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        value = self.base(logits, target)
        # Under no_grad there is no graph to differentiate, and the loss is that of the base.
        if self.tau == 0 or not torch.is_grad_enabled():
            return value
        return value + self.tau * curvature_penalty(value, self.over, self.probes, self.generator)


def curvature_penalty(
    loss_value: Tensor,
    parameters: Iterable[Tensor],
    probes: int = 1,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Hutchinson's estimate of the trace of the Hessian of a loss, itself differentiable.

    Tr(H) ≈ (1/M) Σ_m v_mᵀ H v_m with Rademacher v_m; value and gradient are unbiased, since the
    probes do not depend on the parameters. Use it as `(loss + tau * penalty).backward()`.

    Args:
        loss_value: a scalar with its graph; its backward must be twice differentiable.
        parameters: the tensors that the Hessian is taken over; those that the loss does not use,
            or that do not require a gradient, contribute nothing.
        probes: M, the number of probe vectors.
        generator: source of the probes, on any device; torch's default generator if None.

    Example:
        >>> theta = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> penalty = curvature_penalty((theta**4).sum(), [theta])
        >>> penalty.item(), torch.autograd.grad(penalty, theta)[0].tolist()
        (60.0, [24.0, 48.0])

    Reference: GEO Eq. 33.
    """
    probes = check_whole(probes, "probes", 1)
    if not isinstance(loss_value, Tensor) or loss_value.numel() != 1:
        shape = tuple(loss_value.shape) if isinstance(loss_value, Tensor) else type(loss_value)
        raise InputError(f"expected a scalar loss tensor, got {shape}; reduce it with mean or sum")
    if not loss_value.requires_grad:
        raise InputError(
            "expected a loss with a graph, got one that requires no gradient; "
            "compute it outside torch.no_grad() and do not detach it"
        )
    thetas = [p for p in _tensors(parameters) if p.requires_grad]
    if not thetas:
        raise InputError("expected at least one parameter that requires a gradient, got none")
    _check_weight_norm(loss_value)
    total = 0.0 * loss_value.reshape(())  # has a graph even if there is no curvature
    signs = [[rademacher(p, generator) for p in thetas] for _ in range(probes)]
    for vs, products in zip(signs, hessian_products(loss_value, thetas, signs, create_graph=True)):
        found = [(v * product).sum() for v, product in zip(vs, products) if product is not None]
        total = total + sum(each.to(total.dtype) for each in found)
    return total / probes


def _check_weight_norm(loss_value: Tensor) -> None:
    """Refuse torch's weight normalisation: its second derivative treats the norms as constants."""
    seen, left = set(), [loss_value.grad_fn]
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        left.extend(before for before, _ in node.next_functions)
        if "WeightNorm" in node.name():
            raise InputError(
                "expected a loss whose second derivative PyTorch computes correctly, got one "
                "through its weight normalisation; use a parametrization that computes "
                "v * (g / torch.norm_except_dim(v, 2, 0)) itself"
            )


def _tensors(parameters: Iterable[Tensor]) -> tuple[Tensor, ...]:
    # Iterating over a single tensor gives its rows, on which the loss does not depend.
    single = isinstance(parameters, Tensor) or not isinstance(parameters, Iterable)
    found = () if single else tuple(parameters)
    if not found or not all(isinstance(p, Tensor) for p in found):
        raise InputError(
            "expected at least one parameter tensor in an iterable such as model.parameters(), "
            f"got {type(parameters).__name__} of {[type(p).__name__ for p in found[:3]]}"
        )
    return found


def hessian_products(
    value: Tensor, thetas: Sequence[Tensor], probes: Iterable, *, create_graph: bool = False
) -> Iterator[Sequence[Tensor | None]]:
    """For each probe (one tensor per θ), its Hessian product, one tensor per θ or None if 0.

    All probes share one recorded gradient; a loss without curvature yields nothing.
    """
    gradients = torch.autograd.grad(value, thetas, create_graph=True, allow_unused=True)
    if create_graph and all(g is None for g in gradients):  # for training, not only measuring
        raise InputError(
            "expected a loss that depends on the parameters, got one that uses none of them; pass "
            "those of the model that computed the logits, not of a copy"
        )
    # A gradient without a graph is constant in θ and has no second derivative.
    curved = [i for i, g in enumerate(gradients) if g is not None and g.requires_grad]
    outputs = [gradients[i] for i in curved]
    for probe in probes if curved else ():
        vectors = [probe[i] for i in curved]
        graphs = {"retain_graph": True, "create_graph": create_graph}
        try:
            yield torch.autograd.grad(outputs, thetas, vectors, **graphs, allow_unused=True)
        except RuntimeError as error:
            if "is not implemented" not in str(error):
                raise
            raise InputError(
                f"expected a loss that can be differentiated twice, but {error}; run a model with "
                "attention inside torch.nn.attention.sdpa_kernel(SDPBackend.MATH)"
            ) from error


def rademacher(like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """±1 with equal probability, with the shape, dtype and device of `like`."""
    device = like.device if generator is None else generator.device
    bits = torch.randint(0, 2, like.shape, generator=generator, device=device)
    return (2 * bits - 1).to(device=like.device, dtype=like.dtype)
