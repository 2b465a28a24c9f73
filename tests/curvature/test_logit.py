"""GEO Eq. 28, corrected: closed form against autograd of the loss' definition, and the operator."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from focalcal.curvature import HessianOperator, binary_logit_curvature, focal_logit_hessian
from focalcal.errors import InputError


def focal(logits, target, gamma):
    log_p = F.log_softmax(logits, 1).gather(1, target[:, None])[:, 0]
    return -((1 - log_p.exp()) ** gamma) * log_p


@pytest.mark.parametrize("gamma", [-0.5, 0.0, 0.5, 1.0, 2.0, 3.0, 5.0])
def test_closed_form_equals_autograd(gamma):
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(20, 4, generator=g, dtype=torch.float64) * 2
    target = torch.randint(0, 4, (20,), generator=g)
    exact = torch.stack(
        [
            torch.autograd.functional.hessian(
                lambda z, y=y: focal(z[None], y[None], gamma).sum(), z
            )
            for z, y in zip(logits, target)
        ]
    )
    torch.testing.assert_close(focal_logit_hessian(logits, target, gamma), exact)


@pytest.mark.parametrize("gamma", [-0.5, 0.0, 0.5, 3.0])
def test_extreme_logits_stay_finite(gamma):
    logits = torch.tensor([[1e4, 0.0, -1e4], [-1e4, 0.0, 1e4], [40.0, 0.0, 0.0]])
    hessian = focal_logit_hessian(logits, torch.tensor([0, 0, 0]), gamma)
    assert torch.isfinite(hessian).all()


def test_the_papers_point():
    p = torch.tensor(0.27)
    values = [binary_logit_curvature(p, gamma).item() for gamma in (0, 3)]
    assert values == pytest.approx([0.197, 0.570], abs=5e-4)


@pytest.mark.parametrize("gamma", [1.0, 2.0, 3.0, 5.0])
def test_curvature_rises_at_low_p_and_falls_at_high_p(gamma):
    p = torch.linspace(0.02, 0.98, 200, dtype=torch.float64)
    focal_curve, ce_curve = binary_logit_curvature(p, gamma), binary_logit_curvature(p, 0.0)
    torch.testing.assert_close(ce_curve, p * (1 - p))
    ratio = focal_curve / ce_curve
    assert (ratio[p > 0.85] < 1).all()
    assert ratio.max() > 1.5
    assert p[ratio.argmax()] < 0.4
    assert binary_logit_curvature(torch.tensor(0.02), gamma) < 0


@pytest.mark.parametrize("gamma", [0.0, 3.0])
def test_the_operator_sees_the_same_curve(gamma):
    # One parameter, the logit itself: the Hessian is the second derivative in s.
    class Logit(nn.Module):
        def __init__(self, s):
            super().__init__()
            self.s = nn.Parameter(torch.tensor([s], dtype=torch.float64))

        def forward(self, x):
            return torch.stack([x[:, 0] * 0, self.s.expand(len(x))], 1)

    for p in (0.05, 0.27, 0.6, 0.95):
        s = torch.logit(torch.tensor(p, dtype=torch.float64)).item()
        data = [(torch.zeros(1, 1, dtype=torch.float64), torch.tensor([1]))]
        operator = HessianOperator(Logit(s), lambda z, y: focal(z, y, gamma), data)
        value = (operator @ torch.ones(1, dtype=torch.float64)).item()
        assert value == pytest.approx(
            binary_logit_curvature(torch.tensor(p), gamma).item(), rel=1e-6
        )


def test_refuses_bad_input():
    with pytest.raises(InputError, match="gamma"):
        binary_logit_curvature(torch.tensor(0.5), -1)
    with pytest.raises(InputError, match="strictly between"):
        binary_logit_curvature(torch.tensor([0.0]), 1)
    with pytest.raises(InputError, match="logits"):
        focal_logit_hessian(torch.zeros(2), torch.tensor([0]), 1)


@pytest.mark.parametrize("p", [1e-14, 0.3, 1 - 1e-13, 1 - 1e-15])
def test_binary_curvature_keeps_its_digits(p):
    p = torch.tensor([p], dtype=torch.float64)
    got = binary_logit_curvature(p, 0.0)
    torch.testing.assert_close(got, p * (1 - p), rtol=1e-13, atol=0)
