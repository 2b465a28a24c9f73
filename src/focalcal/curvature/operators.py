"""Matrices of second derivatives that are never formed: they provide only `@`.

Each product reads the batches once, computes in the parameters' precision and sums in float64.
A block of vectors shares the recorded gradient of every batch, so a product with k vectors costs
about 1 + 2k gradients instead of 3k.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, Self

import torch
from torch import Tensor, nn

from focalcal.curvature._batches import (
    LossLike,
    chosen_parameters,
    evaluating,
    per_sample,
    read_batches,
    resolve_loss,
    weighted_loss,
)
from focalcal.curvature._second_order import cheap_second_order
from focalcal.errors import InputError
from focalcal.losses.curvature import hessian_products

Reduce = Callable[[Tensor], Tensor]
"""Sums a float64 tensor over all processes and returns the sum."""

REPEATABLE = 1e-4
"""Largest difference between the gradients of two passes, relative to the batches' norms."""


def sum_over_processes(values: Tensor) -> Tensor:
    """The sum of `values` over the default process group: pass it as an operator's `reduce`."""
    total = values.clone()
    torch.distributed.all_reduce(total)
    return total


class BatchOperator(ABC):
    """A symmetric (n, n) matrix of a model's loss over a data set, known by its products.

    The matrix is Σ_i w_i M_i / Σ_i w_i, where M_i is that of sample i. `blocks` maps the name of
    each parameter to its slice of the flat vector, in the order of `model.named_parameters()`.
    """

    dtype = torch.float64

    def __init__(
        self,
        model: nn.Module,
        loss: LossLike,
        batches: Iterable,
        parameters: Iterable[str | Tensor] | None = None,
        *,
        reduce: Reduce | None = None,
        check: bool = True,
    ) -> None:
        self.model = model
        self.loss = resolve_loss(loss)
        if iter(batches) is batches:
            raise InputError(
                "expected batches that can be read again for every product, got a one-shot "
                "iterator; pass a list or a DataLoader"
            )
        self.batches = batches
        self.reduce = reduce or (lambda values: values)
        self._choose(parameters)
        weights = [
            float(len(target)) if weight is None else float(weight.double().sum())
            for _, target, weight in read_batches(batches, self.device)
        ]
        total = torch.tensor([sum(weights)], dtype=torch.float64, device=self.device)
        self.total_weight = float(self.reduce(total))
        if not self.total_weight > 0:
            raise InputError("expected sample weights with a positive sum, got all zeros")
        if check:
            self._check_repeatable()

    def _choose(self, parameters: Iterable[str | Tensor] | None) -> None:
        self.parameters = chosen_parameters(self.model, parameters)
        self.blocks: dict[str, slice] = {}
        start = 0
        for name, p in self.parameters.items():
            self.blocks[name] = slice(start, start + p.numel())
            start += p.numel()
        self.shape = (start, start)
        self.device = next(iter(self.parameters.values())).device

    def __matmul__(self, vectors: Tensor) -> Tensor:
        """The product with (n,) or (n, k) vectors, in float64, of the same shape."""
        n = self.shape[0]
        if not isinstance(vectors, Tensor) or vectors.ndim not in (1, 2) or len(vectors) != n:
            got = tuple(vectors.shape) if isinstance(vectors, Tensor) else type(vectors).__name__
            raise InputError(f"expected a tensor of shape ({n},) or ({n}, k), got {got}")
        columns = vectors.detach().to(self.device).reshape(n, -1).T
        layout = list(zip(self.blocks.values(), self.parameters.values()))
        probes = [[column[s].view(p.shape).to(p.dtype) for s, p in layout] for column in columns]
        with evaluating(self.model, self.parameters.values()):
            total = torch.zeros(columns.shape, dtype=torch.float64, device=self.device)
            for inputs, target, weight in read_batches(self.batches, self.device):
                for row, product in zip(total, self._products(inputs, target, weight, probes)):
                    self._add(row, product)
        total = self.reduce(total) / self.total_weight
        return total.T.reshape(vectors.shape)

    def gradient(self) -> Tensor:
        """The loss' gradient (n,) over the data set, in float64."""
        return self.reduce(self._gradient_sums()[0]) / self.total_weight

    def block(self, names: str | Sequence[str]) -> Self:
        """The diagonal block of the named parameters, as an operator."""
        part = copy.copy(self)
        part._choose([names] if isinstance(names, str) else names)
        return part

    @abstractmethod
    def _products(
        self, inputs: Tensor, target: Tensor, weight: Tensor | None, probes: list[list[Tensor]]
    ) -> Iterable[Sequence[Tensor | None]]:
        """Each probe's product with the batch's *summed* matrix, per parameter; empty if 0."""

    def _add(self, total: Tensor, parts: Sequence[Tensor | None]) -> None:
        for s, part in zip(self.blocks.values(), parts):
            if part is not None:
                total[s] += part.detach().reshape(-1)

    def _gradient_sums(self) -> tuple[Tensor, float]:
        """The summed gradient (n,) of this process' data, and the sum of its batches' norms."""
        thetas = list(self.parameters.values())
        scale = 0.0
        with evaluating(self.model, thetas):
            total = torch.zeros(self.shape[0], dtype=torch.float64, device=self.device)
            for inputs, target, weight in read_batches(self.batches, self.device):
                value = weighted_loss(self.loss, self.model(inputs), target, weight)
                gradient = torch.autograd.grad(value, thetas, allow_unused=True)
                self._add(total, gradient)
                scale += float(sum(g.double().square().sum() for g in gradient if g is not None))
        return total, scale**0.5

    def _check_repeatable(self) -> None:
        """Two passes must give the same gradient, or each product uses a different matrix."""
        first, scale = self._gradient_sums()
        second, _ = self._gradient_sums()
        if not bool(torch.isfinite(first).all()):
            raise InputError("expected a finite gradient, got NaN or infinity; check the inputs")
        difference = float((first - second).norm())
        if difference > REPEATABLE * scale:
            raise InputError(
                "expected the same gradient from two passes over the data in eval mode, got a "
                f"relative difference of {difference / max(scale, 1e-300):.2g}; switch off random "
                "augmentation, and dropout that ignores model.eval()"
            )


class HessianOperator(BatchOperator):
    """The Hessian of a loss over a data set, H = Σ_i w_i ∇²ℓ_i / Σ_i w_i.

    Args:
        model: maps inputs to logits; put in eval mode for each product and restored after.
        loss: a name ("ce", "fl-3") or a callable (logits, target) giving one value per sample,
            or a scalar that is the mean of its batch.
        batches: a re-readable iterable of (inputs, target) or (inputs, target, weight).
        parameters: names or tensors to differentiate with respect to; all that require a gradient
            if None.
        reduce: sums a tensor over processes (`sum_over_processes`) when each holds its own data.
        check: compute the gradient twice first, to detect random data and active dropout.

    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> x, y = torch.eye(2), torch.zeros(2, 1)
    >>> H = HessianOperator(model, torch.nn.functional.mse_loss, [(x, y)])
    >>> (H @ torch.tensor([1.0, 2.0])).tolist()
    [1.0, 2.0]

    Reference: Pearlmutter 1994; GEO §3.2.
    """

    def _products(self, inputs, target, weight, probes):
        thetas = list(self.parameters.values())
        with cheap_second_order():
            value = weighted_loss(self.loss, self.model(inputs), target, weight)
        return hessian_products(value, thetas, probes)


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
        """The summed loss's Hessian in the outputs, applied to each tangent; empty if it is 0."""
        z = outputs.detach().requires_grad_()
        value = weighted_loss(self.loss, z, target, weight)
        return [curved for [curved] in hessian_products(value, [z], [[t] for t in tangents])]

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
