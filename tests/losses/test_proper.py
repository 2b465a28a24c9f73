from __future__ import annotations

import pytest
import torch
from scipy.optimize import minimize
from torch._dynamo.testing import CompileCounter

from focalcal.errors import InputError
from focalcal.losses import ProperFocalLoss, focal_loss
from focalcal.maps import focal_log_map
from losses.conftest import case


@pytest.mark.parametrize("gamma", [0.5, 3.0])
def test_it_is_focal_loss_before_the_map(gamma) -> None:
    """L*(Ψ(q)) = FL(q): the forward map, which shares no code with the solver, undoes it."""
    logits, labels = case(n=20)
    mapped = focal_log_map(logits.detach(), gamma)
    for target in (labels, logits.detach().roll(1, 0).softmax(1)):
        for smoothing in (0.0, 0.1):
            ours = ProperFocalLoss(gamma, label_smoothing=smoothing)(mapped, target)
            expected = focal_loss(logits, target, gamma, label_smoothing=smoothing)
            torch.testing.assert_close(ours, expected.detach(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("gamma", [1.0, 3.0])
def test_it_is_proper_and_focal_loss_is_not(gamma) -> None:
    """The expected loss under p, minimised numerically over logits, is least at p itself."""
    p = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)

    def best(loss):
        def objective(z):
            z = torch.tensor(z, requires_grad=True)
            value = loss(z[None], p[None])
            value.backward()
            return value.item(), z.grad.numpy()

        found = minimize(objective, [0.0, 0.0, 0.0], jac=True, options={"gtol": 1e-9})
        return torch.tensor(found.x).softmax(0)

    torch.testing.assert_close(best(ProperFocalLoss(gamma)), p, rtol=0, atol=1e-6)
    assert (best(lambda z, u: focal_loss(z, u, gamma)) - p).abs().max() > 0.05


def test_gamma_zero_is_cross_entropy() -> None:
    logits, labels = case()
    torch.testing.assert_close(
        ProperFocalLoss(0.0)(logits, labels), focal_loss(logits, labels, 0.0)
    )


def test_negative_gamma_is_refused() -> None:
    with pytest.raises(InputError, match="gamma >= 0"):
        ProperFocalLoss(-0.5)


def test_empty_batch_follows_pytorch() -> None:
    logits = torch.zeros(0, 3, requires_grad=True)
    labels = torch.zeros(0, dtype=torch.long)
    assert ProperFocalLoss(2.0)(logits, labels).isnan()
    total = ProperFocalLoss(2.0, reduction="sum")(logits, labels)
    assert total == 0
    total.backward()
    assert logits.grad.shape == (0, 3)


def test_torch_compile_leaves_out_the_iteration() -> None:
    logits, labels = case()
    logits = logits.detach()  # Dynamo reads .grad of what passes a graph break, which warns
    loss, graphs = ProperFocalLoss(2.0), CompileCounter()
    compiled = torch.compile(loss, backend=graphs)
    torch.testing.assert_close(compiled(logits, labels), loss(logits, labels))
    assert graphs.frame_count <= 5  # 20 if each step of the iteration is a graph break
