"""Matrices of second derivatives that are never formed: they provide only `@`.

Each product reads the batches once, computes in the parameters' precision and sums in float64.
A block of vectors shares the recorded gradient of every batch, so a product with k vectors costs
about 1 + 2k gradients instead of 3k.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Self

import torch
from torch import Tensor, nn

from focalcal.curvature._batches import (
    LossLike,
    chosen_parameters,
    evaluating,
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
        self.total_weight = self._total_weight()
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
        columns = vectors.detach().to(self.device).reshape(n, -1)
        probes = [self._split(column) for column in columns.unbind(1)]
        total = torch.zeros(columns.shape[1], n, dtype=torch.float64, device=self.device)
        with evaluating(self.model, self.parameters.values()):
            for inputs, target, weight in read_batches(self.batches, self.device):
                for row, product in zip(total, self._products(inputs, target, weight, probes)):
                    self._add(row, product)
        total = self.reduce(total) / self.total_weight
        return total.T.reshape(vectors.shape)

    def gradient(self) -> Tensor:
        """The loss' gradient (n,) over the data set, in float64."""
        return self.reduce(self._gradient_sums()[0]) / self.total_weight

    def block(self, names: str | Sequence[str]) -> Self:
        """The diagonal block of the named parameters, an operator of its own."""
        part = copy.copy(self)
        part._choose([names] if isinstance(names, str) else names)
        return part

    @abstractmethod
    def _products(
        self, inputs: Tensor, target: Tensor, weight: Tensor | None, probes: list[list[Tensor]]
    ) -> Iterable[Sequence[Tensor | None]]:
        """For each probe its product with the batch's *summed* matrix, by parameter; none if 0."""

    def _split(self, flat: Tensor) -> list[Tensor]:
        return [
            flat[s].view(p.shape).to(p.dtype)
            for s, p in zip(self.blocks.values(), self.parameters.values())
        ]

    def _add(self, total: Tensor, parts: Sequence[Tensor | None]) -> None:
        for s, part in zip(self.blocks.values(), parts):
            if part is not None:
                total[s] += part.detach().reshape(-1)

    def _total_weight(self) -> float:
        weights = [
            float(len(target)) if weight is None else float(weight.double().sum())
            for _, target, weight in read_batches(self.batches, self.device)
        ]
        total = torch.tensor([sum(weights)], dtype=torch.float64, device=self.device)
        value = float(self.reduce(total))
        if not value > 0:
            raise InputError("expected sample weights with a positive sum, got all zeros")
        return value

    def _gradient_sums(self) -> tuple[Tensor, float]:
        """The summed gradient (n,) of this process' data, and the sum of its batches' norms."""
        thetas = list(self.parameters.values())
        total = torch.zeros(self.shape[0], dtype=torch.float64, device=self.device)
        scale = 0.0
        with evaluating(self.model, thetas):
            for inputs, target, weight in read_batches(self.batches, self.device):
                value = weighted_loss(self.loss, self.model(inputs), target, weight)
                gradient = torch.autograd.grad(value, thetas, allow_unused=True)
                self._add(total, gradient)
                scale += float(sum(g.double().square().sum() for g in gradient if g is not None))
        return total, scale**0.5

    def _check_repeatable(self) -> None:
        """Two passes must give the same gradient, or each product is of another matrix."""
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
        parameters: names or tensors to differentiate by; all that require a gradient if None.
        reduce: sums a tensor over processes (`sum_over_processes`) when each holds its own data.
        check: compute the gradient twice first, and refuse random data and active dropout.

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
