"""Gauss–Newton and Fisher matrices, as operators that promise only `@`."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, jvp

from focalcal.curvature._batches import LossLike, weighted_loss
from focalcal.curvature.operators import BatchOperator, Reduce
from focalcal.errors import InputError


class GGNOperator(BatchOperator):
    """The generalised Gauss–Newton matrix, G = Σ_i w_i J_iᵀ (∇²_z ℓ_i) J_i / Σ_i w_i.

    J_i is the Jacobian of the logits z. G is positive semi-definite for cross-entropy; a focal
    loss is not convex in z, so its G may have negative eigenvalues. Arguments as HessianOperator.

    Example:
        >>> import torch
        >>> from focalcal.curvature import GGNOperator
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
        thetas = self.parameters
        outputs = self.model(inputs)
        frozen = {name: p.detach() for name, p in thetas.items()}

        def logits(values: dict[str, Tensor]) -> Tensor:
            return functional_call(self.model, values, (inputs,))

        with warnings.catch_warnings():
            # torch's own forward mode warns about its own use of torch.jit when it first loads.
            warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)
            tangents = [
                jvp(logits, (frozen,), (dict(zip(frozen, probe)),))[1].detach() for probe in probes
            ]
        for i, curved in enumerate(self._curve(outputs, target, weight, tangents), 1):
            yield torch.autograd.grad(
                outputs,
                list(thetas.values()),
                curved,
                retain_graph=i < len(probes),
                allow_unused=True,
            )


class FisherOperator(GGNOperator):
    """The Fisher matrix of a softmax classifier over a data set.

    kind="true": E_x E_{y~p(y|x)} [∇log p ∇log pᵀ], the expectation over the model's own labels,
    which equals the Gauss–Newton matrix of cross-entropy. kind="empirical": E_(x,y) [∇ℓ ∇ℓᵀ] with
    the data's labels and the named loss; it needs one loss value per sample.

    Example:
        >>> import torch
        >>> from focalcal.curvature import FisherOperator
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
        super().__init__(
            model, loss or _cross_entropy, batches, parameters, reduce=reduce, check=check
        )

    def block(self, names):
        names = [names] if isinstance(names, str) else list(names)
        loss = self.loss if self.kind == "empirical" else None
        return FisherOperator(
            self.model,
            self.batches,
            names,
            kind=self.kind,
            loss=loss,
            reduce=self.reduce,
            check=False,
        )

    def _curve(
        self, outputs: Tensor, target: Tensor, weight: Tensor | None, tangents: list[Tensor]
    ) -> list[Tensor]:
        if self.kind == "true":
            return super()._curve(outputs, target, weight, tangents)
        z = outputs.detach().requires_grad_()
        losses = self.loss(z, target)
        if losses.shape != target.shape[:1]:
            raise InputError(
                f"expected a loss with one value per sample ({len(target)},), "
                f"got {tuple(losses.shape)}; build it with reduction='none'"
            )
        # ∇ℓ_i = J_iᵀ δ_i, so the matrix between the Jacobians is w_i δ_i δ_iᵀ.
        (delta,) = torch.autograd.grad(losses.sum(), z)
        scale = 1.0 if weight is None else weight.to(z.dtype)
        return [((delta * t).sum(1) * scale)[:, None] * delta for t in tangents]


def _cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits, target, reduction="none")
