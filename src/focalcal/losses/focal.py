"""Focal losses that are a function of −ln p alone, for softmax and sigmoid outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from focalcal._checks import check_gamma
from focalcal.errors import InputError
from focalcal.losses._base import (
    IGNORE_INDEX,
    Loss,
    Problem,
    can_fuse,
    check_reduction,
    compute_dtype,
    make_problem,
)
from focalcal.losses._pointwise import Gamma, Steps, focal_value, values_are_visible
from focalcal.losses._targets import check_tensors

DEFAULT_GAMMA = 2.0
"""Lin et al.'s; Mukhoti et al. prefer 3 for calibration."""
STEPS_53: Steps = ((0.2, 5.0), (1.0, 3.0))
STEPS_532: Steps = ((0.2, 5.0), (0.5, 3.0), (1.0, 2.0))
SCHEDULE_531: Steps = ((100 / 350, 5.0), (250 / 350, 3.0), (1.0, 1.0))
SCHEDULE_532: Steps = ((100 / 350, 5.0), (250 / 350, 3.0), (1.0, 2.0))


def focal_loss(
    logits: Tensor,
    target: Tensor,
    gamma: float | Tensor | Sequence[tuple[float, float]] = DEFAULT_GAMMA,
    *,
    weight: Tensor | None = None,
    ignore_index: int = IGNORE_INDEX,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Tensor:
    """Focal loss, a drop-in for `torch.nn.functional.cross_entropy` (γ = 0 is cross-entropy).

    FL = (1−p_y)^γ · (−ln p_y); with probability targets u, FL = Σ_k u_k (1−q_k)^γ (−ln q_k).
    `mean` divides as cross_entropy does, never by the focal factor.

    Args:
        logits: (N, C), (N, C, d1..dk) or (C,); float16 and bfloat16 are computed in float32.
        target: labels (N, d1..dk), or probabilities of the logits' shape.
        gamma: γ > −1: one number (2 by default), a tensor of the labels' shape, or steps
            ((end, γ), ...) as in `SampleDependentFocalLoss`; a constant in the backward pass.
            γ < 0 uses a slower path that is accurate down to 1−p = 1e-19 in float32, except as a
            tensor on a CUDA device, where accuracy is lost below 1−p = 1e-6.
        weight: (C,), multiplies the term of each class.
        ignore_index: label whose samples are left out.
        label_smoothing: share of the target spread evenly over the classes.
        reduction: "none", "mean" or "sum".

    Returns:
        A scalar, or the labels' shape with reduction "none". On a CUDA device a label out of range
        gives NaN instead of an error.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0, -1.0]])
        >>> round(focal_loss(logits, torch.tensor([0]), gamma=2.0).item(), 6)
        0.004144

    Lin et al. 2017; gradient g(p_y, γ)(softmax − onehot): Mukhoti et al. 2020, Prop. 1.
    """
    check_reduction(reduction)
    problem = make_problem(
        logits, target, weight=weight, ignore_index=ignore_index, label_smoothing=label_smoothing
    )
    return _focal(problem, check_gammas(gamma, problem), reduction)


class _FocalBase(Loss):
    """The focal loss of `self.gamma`, which a subclass sets."""

    shown = ("gamma",)
    gamma: Gamma

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return _focal(self.problem(logits, target), self.gamma, self.reduction)


class FocalLoss(_FocalBase):
    """Focal loss: the module of `focal_loss`.

    Args:
        gamma: γ > −1, 2 by default as in Lin et al. 2017; Mukhoti et al. 2020 train with 3 for
            calibration. 0 is cross-entropy.
        settings: weight (C,), ignore_index, label_smoothing and reduction of `CrossEntropyLoss`.

    Example:
        >>> loss = FocalLoss(gamma=3.0, label_smoothing=0.05)
        >>> loss(torch.zeros(4, 10), torch.arange(4)).shape
        torch.Size([])
    """

    def __init__(self, gamma: float = DEFAULT_GAMMA, **settings: Any) -> None:
        super().__init__(**settings)
        self.gamma = check_gamma(gamma)


class LabelSmoothingLoss(_FocalBase):
    """Cross-entropy with smoothed labels: u = (1−ε)·onehot + ε/C (Müller et al. 2019)."""

    def __init__(self, smoothing: float = 0.05, **settings: Any) -> None:
        super().__init__(label_smoothing=smoothing, **settings)
        self.gamma = 0.0


class SampleDependentFocalLoss(_FocalBase):
    """Focal loss whose γ depends on the probability it is applied to (FLSD-53, called FLA-53 too).

    γ is the value of the first step whose threshold lies above p, a constant in the backward pass;
    with probability targets it is chosen per class k at q_k.

    Args:
        steps: ((threshold, γ), ...) with rising thresholds, the last 1; 53 by default.

    Example:
        >>> loss = SampleDependentFocalLoss(((0.25, 5.0), (1.0, 3.0)))
        >>> loss(torch.zeros(1, 10), torch.tensor([0]))  # p = 0.1: γ = 5, .9⁵·ln 10
        tensor(1.3597)

    Mukhoti et al. 2020, section 4; their code puts the first threshold at 0.2, their text at 0.19.
    """

    def __init__(self, steps: Sequence[tuple[float, float]] = STEPS_53, **settings: Any) -> None:
        super().__init__(**settings)
        self.gamma = self.steps = check_steps(steps, "steps")


class ScheduledFocalLoss(_FocalBase):
    """Focal loss whose γ falls in steps over the run (FLS-531, FLS-532).

    Args:
        schedule: ((share of the run, γ), ...) with rising shares, the last 1; by default γ = 5 for
            the first 100 of 350 epochs, 3 for the next 150, then 1, in proportion for other runs.

    Example:
        >>> loss = ScheduledFocalLoss()
        >>> loss.start_epoch(3, epochs=7)
        >>> loss.gamma
        3.0

    Mukhoti et al. 2020, appendix. γ is part of `state_dict`.
    """

    shown = ("schedule", "gamma")

    def __init__(
        self, schedule: Sequence[tuple[float, float]] = SCHEDULE_531, **settings: Any
    ) -> None:
        self.schedule = check_steps(schedule, "schedule")
        super().__init__(**settings)
        self.gamma = self.schedule[0][1]

    def start_epoch(self, epoch: int, epochs: int) -> None:
        if not 0 <= epoch < epochs:
            raise InputError(f"expected 0 <= epoch < epochs, got epoch {epoch} of {epochs}")
        self.gamma = next(gamma for share, gamma in self.schedule if epoch / epochs < share)

    def get_extra_state(self) -> Tensor:
        return torch.tensor(self.gamma, dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        self.gamma = check_gamma(float(state))


def sigmoid_focal_loss(
    logits: Tensor,
    target: Tensor,
    gamma: float = DEFAULT_GAMMA,
    *,
    alpha: float | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Focal loss of independent yes/no problems, one logit each.

    t·α·(1−p)^γ(−ln p) + (1−t)·(1−α)·p^γ(−ln(1−p)), p = sigmoid(logit); without α both weigh 1.

    Args:
        logits: any shape.
        target: the same shape, in [0, 1] (bool, integer or float; fractions are soft labels).
        gamma: γ > −1; 0 without α is binary cross-entropy.
        alpha: weight of the positive class in [0, 1], or None.
        reduction: "none", "mean" (over every element, as BCEWithLogitsLoss) or "sum".

    Returns:
        A scalar, or the logits' shape with reduction "none".

    Example:
        >>> sigmoid_focal_loss(torch.tensor([0.0]), torch.tensor([1.0]))  # .25·ln 2
        tensor(0.1733)

    Lin et al. 2017, Eq. 5.
    """
    check_reduction(reduction)
    gamma = check_gamma(gamma)
    _check_alpha(alpha)
    check_tensors(logits=logits, target=target)
    if not logits.is_floating_point():
        raise InputError(f"expected floating-point logits, got {logits.dtype}")
    if target.shape != logits.shape:
        raise InputError(
            f"expected one target per logit, shape {tuple(logits.shape)}, got "
            f"{tuple(target.shape)}; for class labels use F.one_hot or FocalLoss"
        )
    if values_are_visible(target) and ((target < 0) | (target > 1)).any():
        raise InputError(
            f"expected targets in [0, 1], got {float(target.min())} to {float(target.max())}; "
            "leave elements without a label out of logits and target"
        )
    logits = logits.to(compute_dtype(logits))
    target = target.to(logits.dtype)
    positive, negative = (1.0, 1.0) if alpha is None else (alpha, 1 - alpha)
    values = positive * target * focal_value(-F.logsigmoid(logits), gamma, True)
    values = values + negative * (1 - target) * focal_value(-F.logsigmoid(-logits), gamma, True)
    if reduction == "none":
        return values
    return values.mean() if reduction == "mean" else values.sum()


class SigmoidFocalLoss(Loss):
    """The module of `sigmoid_focal_loss`; no class weights, smoothing or ignored labels."""

    shown = ("gamma", "alpha")

    def __init__(
        self, gamma: float = DEFAULT_GAMMA, alpha: float | None = None, *, reduction: str = "mean"
    ) -> None:
        super().__init__(reduction=reduction)
        self.gamma = check_gamma(gamma)
        self.alpha = _check_alpha(alpha)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return sigmoid_focal_loss(
            logits, target, self.gamma, alpha=self.alpha, reduction=self.reduction
        )


def _focal(problem: Problem, gamma: Gamma, reduction: str) -> Tensor:
    if not isinstance(gamma, (Tensor, tuple)) and gamma == 0:
        return problem.cross_entropy(reduction)
    fused = problem.soft is None and problem.batched
    if fused and can_fuse(problem.given, problem.labels, gamma):
        from focalcal.losses._triton import fused_focal

        options = problem.weight, problem.ignore_index, problem.smoothing, reduction
        return fused_focal(problem.given, problem.labels, gamma, *options)
    return problem.focal(gamma, reduction)


def check_gammas(gamma: Any, problem: Problem) -> Gamma:
    """γ as a number, as steps, or as one value per label on the device of the logits."""
    if not isinstance(gamma, Tensor):
        return check_one_gamma(gamma)
    logits = problem.given
    shape = logits.shape[:1] + logits.shape[2:]
    if gamma.ndim == 0:
        gamma = gamma.expand(shape)
    if gamma.shape != shape:
        raise InputError(
            f"expected gamma as one number or of the labels' shape {tuple(shape)}, "
            f"got {tuple(gamma.shape)}"
        )
    gamma = gamma.detach().to(logits.device, problem.precision)
    if values_are_visible(gamma) and not ((gamma > -1) & gamma.isfinite()).all():
        raise InputError("expected every gamma to be finite and > -1; clamp it first")
    return gamma


def check_one_gamma(gamma: Any) -> float | Steps:
    """γ that is the same for every sample: a number or steps."""
    return check_steps(gamma, "gamma") if isinstance(gamma, Sequence) else check_gamma(gamma)


def check_steps(steps: Sequence[tuple[float, float]], name: str) -> Steps:
    try:
        given = [(float(at), gamma) for at, gamma in steps]
    except (TypeError, ValueError):  # not pairs
        given = []
    ends = [at for at, _ in given]
    if not ends or ends != sorted(set(ends)) or ends[0] <= 0 or ends[-1] != 1:
        raise InputError(
            f"expected {name} ((end, gamma), ...) with rising ends in (0, 1], the last 1, "
            f"got {steps}"
        )
    return tuple((at, check_gamma(gamma)) for at, gamma in given)


def _check_alpha(alpha: float | None) -> float | None:
    if alpha is not None and not 0 <= alpha <= 1:
        raise InputError(f"expected alpha in [0, 1] or None, got {alpha}")
    return alpha
