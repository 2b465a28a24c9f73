"""
Why focal loss is less sure of its mistakes
===========================================

Why focal loss is less confident in its mistakes, shown on a model with two parameters.

The data are two Gaussian clusters per class at the corners of a square, the classes side by side,
with 10 % of the labels flipped. Logistic regression without intercept (weights w_1, w_2) is trained
by cross-entropy and by focal loss with γ = 1 (Mukhoti et al. 2020, appendix G):

::

    python examples/appendix_g.py

Both find the same decision boundary. Focal loss stops at smaller weights, hence smaller logits,
so the flipped samples are misclassified with less confidence. (The paper's text states that the
norm is larger for focal loss; its figure and the mathematics show that it is smaller.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from focalcal.losses import focal_loss


@dataclass(frozen=True)
class Fit:
    """A trained model: its weights (2,) and its results on n samples."""

    weights: Tensor
    mean_logit_size: float
    confidence_when_wrong: float
    accuracy: float
    n: int

    @property
    def norm(self) -> float:
        return self.weights.norm().item()

    @property
    def angle(self) -> float:
        """Direction of the decision boundary's normal, in degrees."""
        return math.degrees(math.atan2(self.weights[1].item(), self.weights[0].item()))


def square(n_per_cluster: int = 500, flipped: float = 0.1, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Points (N, 2) and labels (N,) in {0, 1}: class 1 on the right side of the square."""
    generator = torch.Generator().manual_seed(seed)
    corners = torch.tensor([[-1.0, -1.0], [-1.0, 1.0], [1.0, -1.0], [1.0, 1.0]])
    noise = 0.3 * torch.randn(4, n_per_cluster, 2, generator=generator)
    points = (corners[:, None] + noise).reshape(-1, 2).double()
    labels = torch.tensor([0, 0, 1, 1]).repeat_interleave(n_per_cluster)
    # The same share of every cluster, so that only chance in the points tilts the boundary.
    flip = torch.arange(n_per_cluster) < round(flipped * n_per_cluster)
    return points, torch.where(flip.repeat(4), 1 - labels, labels)


def train(points: Tensor, labels: Tensor, gamma: float) -> Fit:
    """Minimise the mean loss over the two weights by L-BFGS."""
    weights = torch.zeros(2, dtype=points.dtype, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=200, line_search_fn="strong_wolfe")

    def logits() -> Tensor:
        score = points @ weights
        return torch.stack([torch.zeros_like(score), score], 1)

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = focal_loss(logits(), labels, gamma)
        value.backward()
        return value

    optimizer.step(closure)
    with torch.no_grad():
        confidence, predicted = logits().softmax(1).max(1)
        wrong = predicted != labels
        return Fit(
            weights=weights.detach(),
            mean_logit_size=(points @ weights).abs().mean().item(),
            confidence_when_wrong=confidence[wrong].mean().item(),
            accuracy=1 - wrong.double().mean().item(),
            n=len(labels),
        )


def main() -> None:
    points, labels = square()
    print(f"{'':>14}{'‖w‖':>8}{'angle':>9}{'|logit|':>9}{'conf. wrong':>13}{'accuracy':>10}")
    for name, gamma in [("cross-entropy", 0.0), ("focal, γ = 1", 1.0)]:
        fit = train(points, labels, gamma)
        print(
            f"{name:>14}{fit.norm:8.3f}{fit.angle:8.2f}°{fit.mean_logit_size:9.3f}"
            f"{fit.confidence_when_wrong:13.3f}{fit.accuracy:10.3f}"
        )


if __name__ == "__main__":
    main()

# sphinx_gallery_thumbnail_path = '_build/cards/appendix_g.png'
