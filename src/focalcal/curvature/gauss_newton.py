"""Gauss–Newton and Fisher matrices, as operators that provide only `@`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor, nn

from focalcal.curvature._batches import LossLike, per_sample, weighted_loss
from focalcal.curvature._second_order import cheap_second_order
from focalcal.curvature.operators import BatchOperator, Reduce
from focalcal.errors import InputError


class GGNOperator(BatchOperator):
    """The generalised Gauss–Newton matrix, G = Σ_i w_i J_iᵀ (∇²_z ℓ_i) J_i / Σ_i w_i.

    J_i is the Jacobian of the logits z. G is positive semi-definite for cross-entropy; a focal
    loss is not convex in z, so its G may have negative eigenvalues. Arguments as HessianOperator.

    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> G = GGNOperator(model, torch.nn.functional.mse_loss, [(torch.eye(2), torch.ones(2, 1))])
    >>> (G @ torch.tensor([1.0, 2.0])).tolist()
    [1.0, 2.0]

    Reference: Schraudolph 2002; Martens 2020.
    """

    def _curve(
        self, outputs: Tensor, target: Tensor, weight: Tensor | None, tangents: list[Tensor]
    ) -> list[Tensor]:
        """The outputs' Hessian of the summed loss, applied to each tangent."""
        z = outputs.detach().requires_grad_()
        value = weighted_loss(self.loss, z, target, weight)
        (gradient,) = torch.autograd.grad(value, z, create_graph=True)
        if not gradient.requires_grad:
            return [torch.zeros_like(z) for _ in tangents]
        return [torch.autograd.grad(gradient, z, t, retain_graph=True)[0] for t in tangents]

    def _products(self, inputs, target, weight, probes):
        thetas = list(self.parameters.values())
        with cheap_second_order():
            outputs = self.model(inputs)
        # Jᵀu is linear in u, so its derivative in u, applied to a probe v, is Jv.
        u = torch.zeros_like(outputs, requires_grad=True)
        pulled = torch.autograd.grad(outputs, thetas, u, create_graph=True, allow_unused=True)
        used = [i for i, part in enumerate(pulled) if part is not None]
        pulled = [pulled[i] for i in used]
        tangents = [
            torch.autograd.grad(pulled, u, [probe[i] for i in used], retain_graph=True)[0]
            for probe in probes
        ]
        for curved in self._curve(outputs, target, weight, tangents):
            yield torch.autograd.grad(outputs, thetas, curved, retain_graph=True, allow_unused=True)


class FisherOperator(GGNOperator):
    """The Fisher matrix of a softmax classifier over a data set.

    kind="true": E_x E_{y~p(y|x)} [∇log p ∇log pᵀ], the expectation over the model's own labels,
    which equals the Gauss–Newton matrix of cross-entropy. kind="empirical": E_(x,y) [∇ℓ ∇ℓᵀ] with
    the data's labels and the named loss; it needs one loss value per sample.

    >>> model = torch.nn.Linear(1, 2, bias=False)
    >>> _ = torch.nn.init.zeros_(model.weight)
    >>> data = [(torch.ones(1, 1), torch.tensor([0]))]
    >>> (FisherOperator(model, data) @ torch.tensor([1.0, 0.0])).tolist()
    [0.25, -0.25]

    Reference: Kunstner et al. 2019 on the difference; GEO Eq. 20.
    """

    def __init__(
        self,
        model: nn.Module,
        batches: Iterable,
        parameters: Iterable[str | Tensor] | None = None,
        *,
        kind: Literal["true", "empirical"] = "true",
        loss: LossLike | None = None,
        reduce: Reduce | None = None,
        check: bool = True,
    ) -> None:
        if kind not in ("true", "empirical"):
            raise InputError(f"expected kind 'true' or 'empirical', got {kind!r}")
        if kind == "true" and loss is not None:
            raise InputError(
                "expected no loss for the true Fisher matrix, which depends on the model's "
                "probabilities alone; drop `loss` or pass kind='empirical'"
            )
        self.kind = kind
        super().__init__(model, loss or "ce", batches, parameters, reduce=reduce, check=check)

    def _curve(
        self, outputs: Tensor, target: Tensor, weight: Tensor | None, tangents: list[Tensor]
    ) -> list[Tensor]:
        if self.kind == "true":
            return super()._curve(outputs, target, weight, tangents)
        z = outputs.detach().requires_grad_()
        # ∇ℓ_i = J_iᵀ δ_i, so the matrix between the Jacobians is w_i δ_i δ_iᵀ.
        (delta,) = torch.autograd.grad(per_sample(self.loss(z, target), target).sum(), z)
        delta = delta.flatten(1)
        right = delta if weight is None else weight.to(z.dtype)[:, None] * delta
        products = [(delta * t.flatten(1)).sum(1, keepdim=True) * right for t in tangents]
        return [product.view_as(z) for product in products]
