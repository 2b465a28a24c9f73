"""f(c) = (1−e^{−c})^γ·c against mpmath at 60 digits: independent arithmetic, no shared code."""

from __future__ import annotations

import mpmath as mp
import pytest
import torch

from focalcal.losses._pointwise import focal_value, value_and_slope

GAMMAS = [-0.99, -0.5, 0.05, 0.5, 1.0, 2.5, 10.0]
CES = [1e-15, 1e-8, 1e-3, 0.1, 0.7, 3.0, 30.0, 2e4]


def exact(gamma: float, order: int) -> list[float]:
    with mp.workdps(60):
        f = lambda c: (1 - mp.exp(-c)) ** mp.mpf(gamma) * c  # noqa: E731
        points = [mp.mpf(c) for c in CES]
        return [float(mp.diff(f, c, order, h=c * mp.mpf(10) ** -20)) for c in points]


@pytest.mark.parametrize("gamma", GAMMAS)
def test_value_and_first_three_derivatives(gamma: float) -> None:
    ce = torch.tensor(CES, dtype=torch.float64, requires_grad=True)
    got = focal_value(ce, gamma)
    for order in range(4):
        expected = torch.tensor(exact(gamma, order), dtype=torch.float64)
        # Beyond the first, derivatives are differences of terms that cancel near c = 0.
        rtol = 1e-13 if order < 2 else 1e-6
        floor = 1e-15 * (1 + CES[0] ** (gamma + 1 - order))
        torch.testing.assert_close(got, expected, rtol=rtol, atol=floor if order >= 2 else 1e-300)
        if order < 3:
            (got,) = torch.autograd.grad(got.sum(), ce, create_graph=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("gamma", [*GAMMAS, 0.0])
def test_finite_at_certainty_and_at_impossibility(gamma: float, dtype: torch.dtype) -> None:
    ce = torch.tensor([0.0, 1e-30, 1e4, 1e30], dtype=dtype, requires_grad=True)
    value = focal_value(ce, gamma)
    first = torch.autograd.grad(value.sum(), ce, create_graph=True)[0]
    assert value.isfinite().all()
    assert first.isfinite().all()
    assert value[0] == 0
    if gamma:
        second = torch.autograd.grad(first.sum(), ce)[0]
        assert second.isfinite().all()


def test_impossible_class_has_infinite_loss_and_unit_slope() -> None:
    ce = torch.tensor([torch.inf], requires_grad=True)
    value = focal_value(ce, 2.0)
    value.backward()
    assert value.item() == torch.inf
    assert ce.grad.item() == 1.0


def test_the_saved_and_the_differentiable_slope_are_one() -> None:
    ce = torch.linspace(0, 20, 101, dtype=torch.float64, requires_grad=True)
    gamma = torch.linspace(-0.9, 9, 101, dtype=torch.float64)
    (plain,) = torch.autograd.grad(focal_value(ce, gamma).sum(), ce)
    (graphed,) = torch.autograd.grad(focal_value(ce, gamma).sum(), ce, create_graph=True)
    torch.testing.assert_close(plain, graphed.detach(), rtol=1e-14, atol=0)
    assert torch.equal(graphed, value_and_slope(ce, gamma)[1])
