from __future__ import annotations

import pytest
import torch
from sklearn.metrics import brier_score_loss

from focalcal.losses import BrierLoss
from losses.conftest import case


def test_against_scikit_learn() -> None:
    logits, labels = case(n=40, n_classes=2)
    q = logits.detach().softmax(1)
    expected = 2 * brier_score_loss(labels.numpy(), q[:, 1].numpy())  # it counts one class
    assert BrierLoss()(logits, labels).item() == pytest.approx(expected, rel=1e-12)


def test_several_classes_against_the_sum_written_out() -> None:
    logits, labels = case()
    q = logits.detach().softmax(1)
    expected = sum((q[i, k] - float(k == labels[i])) ** 2 for i in range(9) for k in range(5))
    assert BrierLoss(reduction="sum")(logits, labels).item() == pytest.approx(expected.item())


def test_smoothing_only_rewrites_the_target() -> None:
    logits, labels = case()
    u = torch.nn.functional.one_hot(labels, 5) * 0.9 + 0.02
    smoothed = BrierLoss(label_smoothing=0.1)(logits, labels)
    torch.testing.assert_close(smoothed, BrierLoss()(logits, u.double()))
