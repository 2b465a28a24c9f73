"""AdaFocal: one γ per confidence bin, adapted to the calibration on a validation set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from focalcal.bins import bin_between, bin_samples, check_bins, equal_mass_edges
from focalcal.errors import InputError
from focalcal.losses._base import Loss, Problem
from focalcal.losses._pointwise import focal_value
from focalcal.losses.distributed import gather_rows

SWITCH = 0.2
"""Below this |γ| the loss switches between focal and inverse focal."""
GAMMA_RANGE = (-2.0, 20.0)


class AdaFocalLoss(Loss):
    """Focal loss whose γ follows the gap of the validation bin that p_y falls in.

    γ ≥ 0: (1−p)^γ · (−ln p); γ < 0 (inverse focal): (1+p)^|γ| · (−ln p). γ is a constant in the
    backward pass. After each epoch, per equal-mass bin of validation confidence,
    γ ← γ·e^gap (γ > 0) or γ·e^−gap (γ ≤ 0), gap = confidence − accuracy; |γ| < 0.2 flips to ∓0.2;
    γ stays in [−2, 20]. The γ > −1 rule of the other losses does not apply to this signed number.

    bins: number of equal-mass bins; with fewer distinct confidences the last bins are empty, and
    an empty bin keeps its γ. start: γ of every bin before the first update.

    `edges` (the bins − 1 inner ones) and `gammas` (bins,) are part of `state_dict`. Integer targets
    only.

    Example:
        >>> loss = AdaFocalLoss(bins=2)
        >>> confident = torch.tensor([[9.0, 0.0], [8.0, 0.0]])
        >>> loss.update(confident, torch.tensor([1, 0]))  # the more confident one is wrong
        >>> [round(g, 2) for g in loss.gammas.tolist()]
        [1.0, 2.72]

    Ghosh et al. 2022, Algorithm 1.
    """

    shown = ("bins",)
    needs_validation = True
    integer_only = True
    edges: Tensor
    gammas: Tensor

    def __init__(self, bins: int = 15, start: float = 1.0, **settings: Any) -> None:
        super().__init__(**settings)
        self.bins = bins = check_bins(bins)
        low, high = GAMMA_RANGE
        if not low <= start <= high:
            raise InputError(f"expected start in [{low}, {high}], got {start}")
        self.register_buffer("edges", torch.arange(1, bins, dtype=torch.float32) / bins)
        self.register_buffer("gammas", torch.full((bins,), float(start)))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> AdaFocalLoss:
        super()._apply(fn, recurse)
        # A model in half precision takes its loss along, and small steps of γ would round to none.
        self.edges, self.gammas = self.edges.float(), self.gammas.float()
        return self

    def values(self, problem: Problem) -> Tensor:
        return problem.pointwise(self._value)

    def _value(self, ce: Tensor) -> Tensor:
        p = torch.exp(-ce).masked_fill(ce.isinf(), 0.0)  # else the gradient is 0·∞
        gamma = self.gammas[bin_between(p.detach().float(), self.edges)].to(ce.dtype)
        inverse = (1 + p) ** (-gamma).clamp(min=0) * ce
        return torch.where(gamma >= 0, focal_value(ce, gamma.clamp(min=0)), inverse)

    @torch.no_grad()
    def update(self, val_logits: Tensor, val_labels: Tensor) -> None:
        """Update every γ from the gap of its bin on validation logits (N, C) and labels (N,).

        Under torch.distributed each process passes its share, and all get the same γ.
        """
        problem = self.problem(val_logits, val_labels)
        confidence, predicted = problem.logits.softmax(1).max(1)
        correct = (predicted == problem.labels).to(confidence.dtype)
        rows = torch.stack([confidence, correct], -1)[~problem.ignored]
        samples = gather_rows(rows).cpu().numpy()
        if len(samples) == 0:
            raise InputError("expected at least one validation sample, got none")
        edges = equal_mass_edges(samples[:, 0], len(self.gammas))
        gap = bin_samples(samples[:, 0], samples[:, 1], edges).gap
        gammas = self.gammas.double().cpu().numpy()
        gammas[: len(gap)] = next_gammas(gammas[: len(gap)], gap)
        inner = np.full(len(self.edges), np.inf)
        inner[: len(edges) - 2] = edges[1:-1]
        self.edges.copy_(torch.from_numpy(inner))
        self.gammas.copy_(torch.from_numpy(gammas))


def next_gammas(gammas: np.ndarray, gap: np.ndarray) -> np.ndarray:
    """One step of the rule; where the gap is NaN (an empty bin), γ stays."""
    moved = gammas * np.exp(np.where(gammas > 0, gap, -gap))
    moved = np.where(np.abs(moved) < SWITCH, np.where(moved > 0, -SWITCH, SWITCH), moved)
    return np.where(np.isnan(gap), gammas, np.clip(moved, *GAMMA_RANGE))
