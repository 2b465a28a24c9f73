"""Cross-entropy with the kernel calibration error MMCE as a penalty."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from focalcal.errors import InputError
from focalcal.losses._base import Loss
from focalcal.losses.distributed import gather_rows

NORMALIZATIONS = ("published", "formula")


class MMCELoss(Loss):
    """CE + λ·MMCE, with the class-balanced MMCE_w on the confidences r of the batch.

    MMCE_w² = Σ_ij a_i a_j k(r_i, r_j), k = exp(−|r_i − r_j|/bandwidth), where a_i = (1−r_i)/m for
    the m correct samples and −r_i/n for the n wrong ones ("formula"). The published code divides
    twice, a_i = (1−r_i)/m² and −r_i/n², and is 0 unless both kinds occur ("published"); λ = 2 for
    images and 8 for text were tuned with that.

    strength: λ; bandwidth: of the Laplacian kernel; normalization: "published" or "formula"; sync:
    compute MMCE over the batches of all processes together (torch.distributed).

    Integer targets only. There is no value per sample, so reduction is "mean" or "sum" (the mean
    times its divisor). Memory grows with the square of the batch size.

    Example:
        >>> loss = MMCELoss(strength=2.0)
        >>> loss(torch.tensor([[2.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1]))
        tensor(2.0297)

    Kumar et al. 2018, Eq. 6.
    """

    shown = ("strength", "bandwidth", "normalization", "sync")
    integer_only = True
    reductions = ("mean", "sum")

    def __init__(
        self,
        strength: float = 2.0,
        *,
        bandwidth: float = 0.4,
        normalization: str = "published",
        sync: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        if normalization not in NORMALIZATIONS:
            raise InputError(f"expected normalization in {NORMALIZATIONS}, got {normalization!r}")
        if not bandwidth > 0:
            raise InputError(f"expected bandwidth > 0, got {bandwidth}")
        self.strength = float(strength)
        self.bandwidth = float(bandwidth)
        self.normalization = normalization
        self.sync = sync

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        problem = self.problem(logits, target)
        confidence, predicted = problem.logits.softmax(1).max(1)
        correct = (predicted == problem.labels).to(confidence.dtype)
        kept = (~problem.ignored).to(confidence.dtype)
        rows = torch.stack([confidence.flatten(), correct.flatten(), kept.flatten()], 1)
        if self.sync:
            rows = gather_rows(rows)
        penalty = self.strength * mmce(
            *rows.unbind(1), bandwidth=self.bandwidth, normalization=self.normalization
        )
        if self.reduction == "sum":
            penalty = penalty * problem.denominator()
        return problem.cross_entropy(self.reduction) + penalty


def mmce(
    confidence: Tensor,
    correct: Tensor,
    kept: Tensor,
    *,
    bandwidth: float = 0.4,
    normalization: str = "formula",
) -> Tensor:
    """MMCE_w of confidences (N,), correctness (N,) in {0, 1}, kept (N,) in {0, 1}."""
    right, wrong = kept * correct, kept * (1 - correct)
    n_right, n_wrong = right.sum().clamp(min=1), wrong.sum().clamp(min=1)
    if normalization == "published":
        n_right, n_wrong = n_right.square(), n_wrong.square()
    a = right * (1 - confidence) / n_right - wrong * confidence / n_wrong
    kernel = torch.exp(-(confidence[:, None] - confidence[None, :]).abs() / bandwidth)
    with torch.autocast(a.device.type, enabled=False):  # in half precision a/m² underflows
        square = a @ kernel @ a
    # The quadratic form may round below 0, and the square root has no derivative at 0.
    value = square.clamp(min=1e-12).sqrt()
    if normalization == "published":
        value = value * (right.sum() > 0) * (wrong.sum() > 0)
    return value
