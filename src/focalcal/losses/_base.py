"""Code common to the classification losses: targets, shapes, ignored labels, weights, reduction.

The conventions are those of `torch.nn.CrossEntropyLoss`. A loss supplies one value per sample;
shapes, ignored labels, weights and averages are handled here.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from focalcal.errors import InputError
from focalcal.losses._pointwise import (
    Gamma,
    cross_entropies,
    diverges,
    focal_value,
    is_transformed,
)
from focalcal.losses._targets import check_labels, check_soft, check_tensors, sums_to_one

REDUCTIONS = ("none", "mean", "sum")
IGNORE_INDEX = -100


class Loss(nn.Module):
    """Base of the loss modules: call `loss(logits, target)` as with `nn.CrossEntropyLoss`.

    A subclass implements the loss per sample (`values`); settings, shapes and reduction are here.
    A trainer calls `start_epoch` before each epoch, passes validation logits to `update` if
    `needs_validation`, and builds the loss with the model's parameters if `needs_parameters`.
    """

    needs_validation: ClassVar[bool] = False
    needs_parameters: ClassVar[bool] = False
    reductions: ClassVar[tuple[str, ...]] = REDUCTIONS
    integer_only: ClassVar[bool] = False
    shown: ClassVar[tuple[str, ...]] = ()
    """Attributes of the subclass that `repr` shows before the common settings."""

    def __init__(
        self,
        *,
        weight: Tensor | None = None,
        ignore_index: int = IGNORE_INDEX,
        label_smoothing: float = 0.0,
        reduction: str = "mean",
        **unknown: Any,
    ) -> None:
        super().__init__()
        if "alpha" in unknown:
            raise InputError(
                f"expected {type(self).__name__} with class weights as weight=, as in "
                "CrossEntropyLoss, got alpha; only SigmoidFocalLoss takes alpha"
            )
        if unknown:
            own = [*inspect.signature(type(self)).parameters][:-1]
            known = dict.fromkeys([*own, *inspect.signature(Loss).parameters][:-1])
            raise TypeError(
                f"{type(self).__name__} got unexpected arguments {sorted(unknown)}; "
                f"it takes {', '.join(known)}"
            )
        self.register_buffer("weight", None if weight is None else torch.as_tensor(weight))
        if not hasattr(ignore_index, "__index__"):
            raise InputError(f"expected ignore_index as a whole number, got {ignore_index!r}")
        self.ignore_index = ignore_index
        self.label_smoothing = check_smoothing(label_smoothing, self._name_if_integer_only)
        self.reduction = check_reduction(reduction, self.reductions)

    def start_epoch(self, epoch: int, epochs: int) -> None:
        """Called before each epoch (0-based) of a run of `epochs`; does nothing in most losses."""

    def update(self, val_logits: Tensor, val_labels: Tensor) -> None:
        """Called after each epoch if `needs_validation`; does nothing in the other losses."""

    def problem(self, logits: Tensor, target: Tensor) -> Problem:
        return make_problem(
            logits,
            target,
            weight=self.weight,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            integer_only=self._name_if_integer_only,
        )

    @property
    def _name_if_integer_only(self) -> str | None:
        return type(self).__name__ if self.integer_only else None

    def values(self, problem: Problem) -> Tensor:
        """The weighted loss of each sample (N, d1..dk), 0 where ignored."""
        raise NotImplementedError

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        problem = self.problem(logits, target)
        return problem.reduce(self.values(problem), self.reduction)

    def extra_repr(self) -> str:
        """Every setting that differs from CrossEntropyLoss's default, and the reduction."""
        shown = [f"{name}={getattr(self, name)!r}" for name in self.shown]
        if self.weight is not None:
            shown.append(f"weight={tuple(self.weight.shape)}")
        if self.ignore_index != IGNORE_INDEX:
            shown.append(f"ignore_index={self.ignore_index}")
        if self.label_smoothing:
            shown.append(f"label_smoothing={self.label_smoothing}")
        return ", ".join([*shown, f"reduction={self.reduction!r}"])


@dataclass(frozen=True)
class Problem:
    """Checked logits and targets of one call.

    given: logits (N, C, d1..dk) in the caller's precision.
    labels: (N, d1..dk) int64, or None with probability targets.
    soft: (N, C, d1..dk) smoothed probabilities, or None with integer targets.
    """

    given: Tensor
    labels: Tensor | None
    soft: Tensor | None
    weight: Tensor | None
    ignore_index: int
    smoothing: float
    batched: bool = True

    @property
    def precision(self) -> torch.dtype:
        return compute_dtype(self.given)

    @property
    def logits(self) -> Tensor:
        """The logits in float32 or float64: half precision is widened."""
        return self.given.to(self.precision)

    @property
    def n_classes(self) -> int:
        return self.given.shape[1]

    @property
    def ignored(self) -> Tensor:
        return self.labels == self.ignore_index

    def safe_labels(self) -> Tensor:
        """Labels with the ignored ones replaced with 0, so that they can index."""
        return self.labels.masked_fill(self.ignored, 0)

    def distribution(self) -> Tensor:
        """The smoothed target probabilities u (N, C, d1..dk); arbitrary in ignored rows."""
        if self.soft is not None:
            return self.soft
        # Not F.one_hot, which reads its input's values and so fails under vmap.
        onehot = torch.zeros_like(self.given, dtype=self.precision)
        return smoothed(onehot.scatter(1, self.safe_labels().unsqueeze(1), 1.0), self.smoothing)

    def row_weights(self) -> Tensor | None:
        """Weight of each sample, w_y or Σ_k u_k w_k, 0 where ignored; None if all weigh 1."""
        if self.weight is None:
            return None
        if self.soft is not None:
            return self.expected(torch.ones_like(self.soft))
        # Clamped for CUDA, where labels are not checked; the loss of a wrong label is NaN anyway.
        classes = self.safe_labels().clamp(0, self.n_classes - 1)
        return self.weight[classes].masked_fill(self.ignored, 0)

    def weighted(self, values: Tensor) -> Tensor:
        """Each sample's value times its weight."""
        weight = self.row_weights()
        return values if weight is None else values * weight

    def per_sample(self, values: Tensor) -> Tensor:
        """Values that are not a sum over classes, times the weights; 0 where ignored."""
        values = self.weighted(values)
        return values if self.soft is not None else values.masked_fill(self.ignored, 0)

    def expected(self, terms: Tensor) -> Tensor:
        """Σ_k u_k w_k terms_k per sample, 0 where ignored; terms has the shape of the logits."""
        scaled = terms
        if self.weight is not None:
            scaled = terms * self.weight.view(-1, *[1] * (terms.ndim - 2))
        if self.soft is not None:
            return (scaled * self.soft).sum(1)
        value = scaled.gather(1, self.safe_labels().unsqueeze(1)).squeeze(1)
        if self.smoothing:
            # Two terms, as in CrossEntropyLoss, instead of a dense u.
            spread = scaled.sum(1) * (self.smoothing / self.n_classes)
            value = (1 - self.smoothing) * value + spread
        return value.masked_fill(self.ignored, 0)

    def pointwise(self, function: Callable[[Tensor], Tensor], exact: bool = False) -> Tensor:
        """Σ_k u_k w_k function(−ln q_k) per sample, for a function with function(0) = 0."""
        if exact:
            return self.expected(function(cross_entropies(self.logits)))
        if self.soft is None and not self.smoothing:
            ce = F.cross_entropy(
                self.logits, self.labels, ignore_index=self.ignore_index, reduction="none"
            )
            return self.weighted(function(ce))
        return self.expected(function(-F.log_softmax(self.logits, 1)))

    def focal(self, gamma: Gamma, reduction: str) -> Tensor:
        """The focal loss in plain PyTorch operations: the reference for the fused kernels."""
        exact = diverges(gamma)
        if isinstance(gamma, Tensor) and (self.soft is not None or self.smoothing or exact):
            gamma = gamma.unsqueeze(1)
        values = self.pointwise(lambda ce: focal_value(ce, gamma, exact), exact)
        return self.reduce(values, reduction)

    def cross_entropy(self, reduction: str) -> Tensor:
        """PyTorch's cross-entropy with every option of this call."""
        value = F.cross_entropy(
            self.logits,
            self.labels if self.soft is None else self.soft,
            weight=self.weight,
            ignore_index=self.ignore_index,
            label_smoothing=self.smoothing,
            reduction=reduction,
        )
        return value if reduction != "none" or self.batched else value.squeeze(0)

    def denominator(self) -> Tensor | int:
        """The divisor of `mean`: Σ w_y over the kept samples.

        With probability targets it is the number of samples, weighted or not, as in
        CrossEntropyLoss.
        """
        if self.labels is None:
            return self.given.numel() // self.n_classes
        weight = self.row_weights()
        return (self.labels != self.ignore_index).sum() if weight is None else weight.sum()

    def reduce(self, values: Tensor, reduction: str) -> Tensor:
        """Reduces weighted per-sample values."""
        if reduction == "none":
            return values if self.batched else values.squeeze(0)
        total = values.sum()
        return total if reduction == "sum" else total / self.denominator()


def make_problem(
    logits: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    ignore_index: int = IGNORE_INDEX,
    label_smoothing: float = 0.0,
    integer_only: str | None = None,
) -> Problem:
    """Checked logits and targets; `integer_only` names a loss that refuses soft targets."""
    check_tensors(logits=logits, target=target)
    if not logits.is_floating_point() or logits.ndim == 0:
        raise InputError(
            "expected floating-point logits (N, C) or (N, C, d1..dk), got "
            f"{logits.dtype} of shape {tuple(logits.shape)}"
        )
    soft = target.is_floating_point()
    batched = logits.ndim > 1
    n_classes = logits.shape[int(batched)]
    # One logit per sample is a yes/no problem, whose softmax would be 1 whatever the logit.
    if n_classes < 2 or (logits.ndim == target.ndim == 1 and not sums_to_one(target)):
        raise InputError(
            "expected one logit for each of 2 or more classes, (N, C) or (C,), got "
            f"{tuple(logits.shape)} with targets {tuple(target.shape)}; for one logit per yes/no "
            "decision use SigmoidFocalLoss or sigmoid_focal_loss"
        )
    if not batched:
        logits, target = logits.unsqueeze(0), target.unsqueeze(0)
    smoothing = check_smoothing(label_smoothing, None if soft else integer_only)
    precision = compute_dtype(logits)
    if weight is not None:
        weight = torch.as_tensor(weight).to(logits.device, precision)
        if weight.shape != (n_classes,):
            raise InputError(
                f"expected one weight per class, shape ({n_classes},), got {tuple(weight.shape)}"
            )
    if soft:
        check_soft(logits, target, ignore_index, integer_only)
        target = smoothed(target.to(precision), smoothing)
        return Problem(logits, None, target, weight, ignore_index, 0.0, batched)
    check_labels(logits, target, ignore_index)
    return Problem(logits, target.long(), None, weight, ignore_index, smoothing, batched)


def smoothed(distribution: Tensor, smoothing: float) -> Tensor:
    """Each distribution (N, C, d1..dk) mixed with a share `smoothing` of the uniform one."""
    if not smoothing:
        return distribution
    return distribution * (1 - smoothing) + smoothing / distribution.shape[1]


def compute_dtype(logits: Tensor) -> torch.dtype:
    """float64 for float64 logits, float32 for all others."""
    return torch.float64 if logits.dtype == torch.float64 else torch.float32


def check_reduction(reduction: str, allowed: tuple[str, ...] = REDUCTIONS) -> str:
    if reduction not in allowed:
        raise InputError(f"expected reduction in {allowed}, got {reduction!r}")
    return reduction


def check_smoothing(label_smoothing: float, integer_only: str | None = None) -> float:
    if not 0.0 <= label_smoothing <= 1.0:
        raise InputError(f"expected label_smoothing in [0, 1], got {label_smoothing}")
    if integer_only and label_smoothing:
        raise InputError(f"{integer_only} takes no label smoothing, got {label_smoothing}")
    return float(label_smoothing)


def can_fuse(logits: Tensor, labels: Tensor, gamma: Gamma) -> bool:
    """Whether the CUDA kernel supports these; tracing and torch.func need plain operations."""
    return (
        logits.is_cuda
        and not diverges(gamma)
        and labels.get_device() == logits.get_device()
        and is_plain(logits)
        and logits.ndim == 2
        and logits.numel() > 0
        and logits.dtype != torch.float64
        and logits.is_contiguous()
        and not is_transformed()
        and has_triton()
    )


def is_plain(tensor: Tensor) -> bool:
    """Whether it is not a Tensor subclass such as a sharded DTensor."""
    return type(tensor) is Tensor or type(tensor) is nn.Parameter


@cache
def has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None
