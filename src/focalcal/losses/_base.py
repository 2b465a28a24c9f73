"""What every loss module has: the settings of CrossEntropyLoss and the hooks for trainers."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from focalcal.errors import InputError
from focalcal.losses._problem import (
    IGNORE_INDEX,
    REDUCTIONS,
    Problem,
    check_reduction,
    check_smoothing,
    make_problem,
)


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
                f"{type(self).__name__} takes one weight per class as weight=, like "
                "CrossEntropyLoss, and no alpha; SigmoidFocalLoss takes the alpha of yes/no tasks"
            )
        if unknown:
            raise TypeError(f"{type(self).__name__} got unexpected arguments {sorted(unknown)}")
        self.register_buffer("weight", None if weight is None else torch.as_tensor(weight))
        self.ignore_index = ignore_index
        self.label_smoothing = check_smoothing(label_smoothing)
        self.reduction = check_reduction(reduction, self.reductions)

    def start_epoch(self, epoch: int, epochs: int) -> None:
        """Called before each epoch (0-based) of a run of `epochs`; does nothing in most losses."""

    def problem(self, logits: Tensor, target: Tensor) -> Problem:
        return make_problem(
            logits,
            target,
            weight=self.weight,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            integer_only=type(self).__name__ if self.integer_only else None,
        )

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
