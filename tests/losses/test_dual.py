from __future__ import annotations

import pytest
import torch

from focalcal.errors import InputError
from focalcal.losses import DualFocalLoss, focal_loss
from losses.conftest import case, gradient


def by_loop(logits, labels, gamma):
    """The definition, sample by sample in probabilities, differentiated by autograd."""
    total = 0.0
    for row, label in zip(logits, labels):
        q = row.softmax(0)
        below = [p for p in q if p < q[label]]
        margin = 1 - q[label] + (max(below) if below else 0.0)
        total = total - margin**gamma * q[label].log()
    return total


@pytest.mark.parametrize("gamma", [0.5, 1.0, 5.0])
def test_value_and_gradient_follow_the_definition(gamma) -> None:
    logits, labels = case(n=30)
    value = DualFocalLoss(gamma, reduction="sum")(logits, labels)
    expected = by_loop(logits, labels, gamma)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradient(value, logits), gradient(expected, logits))


def test_without_a_class_below_it_is_focal_loss() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0], [1.0, 1.0, 1.0]])
    labels = torch.tensor([0, 1])
    torch.testing.assert_close(DualFocalLoss(2.0)(logits, labels), focal_loss(logits, labels, 2.0))


def test_gamma_is_checked() -> None:
    with pytest.raises(InputError, match="gamma"):
        DualFocalLoss(-1.0)
