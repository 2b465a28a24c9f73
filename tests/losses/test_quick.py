"""The short way gives what the general way gives, and leaves to it what it cannot do."""

from __future__ import annotations

import itertools

import pytest
import torch

from focalcal.losses import FocalLoss, focal_loss
from focalcal.losses._quick import quick_focal
from losses.conftest import case, gradient


def general(logits, labels, gamma, **settings):
    """Labels of 32 bits are not for the short way."""
    return focal_loss(logits, labels.int(), gamma, **settings)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("gamma", [-0.9, 0.3, 1, 3.0, 8.5, "per sample"])
def test_both_ways_agree(gamma, dtype) -> None:
    logits, labels = case(n=200, n_classes=7, scale=4.0, dtype=dtype)
    gamma = torch.linspace(-0.5, 6, 200, dtype=dtype) if isinstance(gamma, str) else gamma
    eps = torch.finfo(dtype).eps
    weight = torch.rand(7, dtype=dtype)
    for w, reduction in itertools.product((None, weight), ("mean", "sum", "none")):
        settings = {"weight": w, "reduction": reduction}
        short = quick_focal(logits, labels, gamma, w, -100, 0.0, reduction)
        assert short is not None
        long = general(logits, labels, gamma, **settings)
        torch.testing.assert_close(short, long, rtol=100 * eps, atol=eps)
        outer = torch.rand(200, dtype=dtype) if short.ndim else torch.tensor(0.7, dtype=dtype)
        got, wanted = (torch.autograd.grad(value, logits, outer)[0] for value in (short, long))
        torch.testing.assert_close(got, wanted, rtol=1e3 * eps, atol=10 * eps)


def test_the_module_and_any_leaf_take_it() -> None:
    logits, labels = case(dtype=torch.float32)
    leaf = torch.nn.Parameter(logits.detach())
    FocalLoss(2.0)(leaf, labels).backward()
    torch.testing.assert_close(leaf.grad, gradient(general(logits, labels, 2.0), logits))


@pytest.mark.parametrize(
    "change",
    [
        {"gamma": 0.0},
        {"gamma": torch.full((9,), -1.0)},
        {"gamma": torch.full((9,), torch.inf)},
        {"gamma": torch.full((9,), torch.nan)},
        {"gamma": torch.ones(8)},
        {"gamma": -1.0},
        {"target": torch.zeros(9, dtype=torch.int32)},
        {"target": torch.full((9,), 5)},
        {"target": torch.full((9,), -100)},
        {"target": torch.zeros(8, dtype=torch.long)},
        {"weight": torch.ones(4)},
        {"ignore_index": 2},
        {"label_smoothing": 0.1},
        {"reduction": "average"},
        {"logits": torch.zeros(9, 5, dtype=torch.bfloat16)},
        {"logits": torch.zeros(9, 5, 1)},
    ],
)
def test_unusual_calls_are_left_to_the_general_way(change) -> None:
    usual = {
        "logits": torch.zeros(9, 5),
        "target": torch.zeros(9, dtype=torch.long),
        "gamma": 2.0,
        "weight": None,
        "ignore_index": -100,
        "label_smoothing": 0.0,
        "reduction": "mean",
    }
    assert quick_focal(**usual) is not None
    assert quick_focal(**{**usual, **change}) is None


def test_a_label_that_is_ruled_out_costs_infinity_with_a_finite_gradient() -> None:
    logits = torch.tensor([[-torch.inf, 0.0, 1.0], [0.0, 1.0, 2.0]], requires_grad=True)
    value = focal_loss(logits, torch.tensor([0, 1]), 2.0)
    assert value == torch.inf
    assert gradient(value, logits).isfinite().all()


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_backward_twice_and_in_batches(reduction) -> None:
    logits, labels = case()
    value = focal_loss(logits, labels, 2.0, reduction=reduction)
    outer = torch.rand(3, *value.shape, dtype=torch.float64)
    each = [torch.autograd.grad(value, logits, o, retain_graph=True)[0] for o in outer]
    again = torch.autograd.grad(value, logits, outer[0], retain_graph=True)[0]
    assert torch.equal(each[0], again)
    (together,) = torch.autograd.grad(value, logits, outer, is_grads_batched=True)
    torch.testing.assert_close(together, torch.stack(each))
