from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from focalcal.errors import InputError
from focalcal.losses import SigmoidFocalLoss, focal_loss, sigmoid_focal_loss
from losses.conftest import gradient


def multi_label():
    torch.manual_seed(0)
    logits = (3 * torch.randn(6, 4, dtype=torch.float64)).requires_grad_()
    return logits, torch.randint(2, (6, 4))


def test_gamma_zero_is_binary_cross_entropy() -> None:
    logits, target = multi_label()
    for reduction in ("none", "mean", "sum"):
        ours = sigmoid_focal_loss(logits, target, 0.0, reduction=reduction)
        theirs = F.binary_cross_entropy_with_logits(logits, target.double(), reduction=reduction)
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("alpha", [None, 0.25])
def test_against_the_formula_in_probabilities(alpha) -> None:
    logits, target = multi_label()
    p = logits.sigmoid()
    p_t = torch.where(target == 1, p, 1 - p)
    a_t = 1.0 if alpha is None else torch.where(target == 1, alpha, 1 - alpha)
    expected = (a_t * (1 - p_t) ** 2 * -p_t.log()).mean()
    value = SigmoidFocalLoss(2.0, alpha)(logits, target)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradient(value, logits), gradient(expected, logits))


def test_two_classes_by_softmax_are_one_logit_by_sigmoid() -> None:
    logits, target = multi_label()
    s = logits[:, 0]
    two = torch.stack([torch.zeros_like(s), s], 1)
    expected = focal_loss(two, target[:, 0], 1.5)
    torch.testing.assert_close(sigmoid_focal_loss(s, target[:, 0], 1.5), expected)


def test_soft_targets_mix_and_derivatives_hold() -> None:
    logits, _ = multi_label()
    target = torch.rand(6, 4, dtype=torch.float64)
    ones, zeros = torch.ones_like(target), torch.zeros_like(target)
    mixed = sigmoid_focal_loss(logits, target, reduction="none")
    yes = sigmoid_focal_loss(logits, ones, reduction="none")
    no = sigmoid_focal_loss(logits, zeros, reduction="none")
    torch.testing.assert_close(mixed, target * yes + (1 - target) * no)
    assert torch.autograd.gradcheck(lambda z: sigmoid_focal_loss(z, target, 0.5), logits)
    assert torch.autograd.gradgradcheck(lambda z: sigmoid_focal_loss(z, target, 0.5), logits)


@pytest.mark.parametrize("gamma", [-0.99, 0.05, 0.5, 10.0])
def test_extremes_are_finite(gamma) -> None:
    logits = torch.tensor([1e4, -1e4, 50.0, -50.0, 0.0], requires_grad=True)
    for target in (torch.zeros(5), torch.ones(5)):
        value = sigmoid_focal_loss(logits, target, gamma)
        (first,) = torch.autograd.grad(value, logits, create_graph=True)
        assert value.isfinite()
        assert first.isfinite().all()
        assert gradient(first.square().sum(), logits).isfinite().all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.zeros(3), torch.zeros(4)), "one target per logit"),
        ((torch.zeros(3, dtype=torch.long), torch.zeros(3)), "floating-point"),
        ((torch.zeros(3), torch.zeros(3), -1.0), "gamma"),
        ((torch.zeros(3), torch.tensor([0, 1, -100])), r"in \[0, 1\], got -100\.0 to 1\.0"),
        ((torch.zeros(3), [0, 1, 1]), "target as a tensor, got list"),
    ],
)
def test_bad_input_is_named(arguments, message) -> None:
    with pytest.raises(InputError, match=message):
        sigmoid_focal_loss(*arguments)


def test_alpha_out_of_range_is_refused() -> None:
    with pytest.raises(InputError, match="alpha"):
        SigmoidFocalLoss(2.0, alpha=1.5)
