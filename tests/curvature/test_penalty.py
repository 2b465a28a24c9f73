"""The penalty against the exact trace of a dense Hessian (plain autograd, no probes)."""

import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from focalcal.curvature import HessianOperator, curvature_penalty
from focalcal.errors import InputError


def exact_trace_and_gradient(problem):
    flat = problem.flat().requires_grad_()
    h = torch.autograd.functional.hessian(
        lambda t: problem.loss_of(nn.functional.cross_entropy, t), flat, create_graph=True
    )
    trace = h.diagonal().sum()
    return trace.detach(), torch.autograd.grad(trace, flat)[0]


def penalty_and_gradient(problem, probes, generator=None):
    parameters = list(problem.model.parameters())
    value = nn.functional.cross_entropy(problem.model(problem.x), problem.y)
    penalty = curvature_penalty(value, parameters, probes, generator)
    gradient = torch.autograd.grad(penalty, parameters, allow_unused=True, materialize_grads=True)
    return penalty.detach(), torch.cat([g.reshape(-1) for g in gradient])


def test_mean_over_all_sign_vectors_is_exact(monkeypatch):
    # With every one of the 2^n sign vectors used once the estimate has no noise left.
    from focalcal.losses import curvature as module

    g = torch.Generator().manual_seed(0)
    theta = torch.randn(4, generator=g, dtype=torch.float64, requires_grad=True)
    a = torch.randn(4, 4, generator=g, dtype=torch.float64)

    def f(t):
        return (a @ t).tanh().pow(2).sum() + (t**3).sum()

    signs = iter(torch.tensor(s, dtype=torch.float64) for s in itertools.product((-1, 1), repeat=4))
    monkeypatch.setattr(module, "rademacher", lambda like, generator: next(signs))
    estimate = curvature_penalty(f(theta), [theta], probes=16)
    exact = torch.autograd.functional.hessian(f, theta, create_graph=True).diagonal().sum()
    assert torch.allclose(estimate, exact, rtol=1e-12)
    torch.testing.assert_close(
        torch.autograd.grad(estimate, theta)[0], torch.autograd.grad(exact, theta)[0]
    )


def test_value_and_gradient_are_unbiased(problem):
    trace, gradient = exact_trace_and_gradient(problem)
    g = torch.Generator().manual_seed(3)
    runs = [penalty_and_gradient(problem, 4, g) for _ in range(100)]
    values = torch.stack([v for v, _ in runs])
    gradients = torch.stack([d for _, d in runs])
    assert abs(values.mean() - trace) < 4 * values.std() / 10
    error = (gradients.mean(0) - gradient).abs()
    spread = gradients.std(0) / 10
    # 4.5 standard errors for the worst of fewer than 400 coordinates.
    assert (error <= 4.5 * spread + 1e-12).all()


def test_gradient_is_that_of_the_same_probes(mlp):
    # Finite differences of the penalty with frozen probes: third derivatives of the loss.
    def value():
        g = torch.Generator().manual_seed(9)
        return curvature_penalty(
            nn.functional.cross_entropy(mlp.model(mlp.x), mlp.y), mlp.model.parameters(), 2, g
        )

    weight = mlp.model[0].weight
    gradient = torch.autograd.grad(value(), weight)[0]
    with torch.no_grad():
        weight[1, 2] += 1e-5
    up = value().item()
    with torch.no_grad():
        weight[1, 2] -= 2e-5
    assert (up - value().item()) / 2e-5 == pytest.approx(gradient[1, 2].item(), rel=1e-6)


def test_loss_plus_penalty_trains(mlp):
    value = nn.functional.cross_entropy(mlp.model(mlp.x), mlp.y)
    (value + 0.1 * curvature_penalty(value, mlp.model.parameters())).backward()
    assert all(torch.isfinite(p.grad).all() for p in mlp.model.parameters())


def test_a_linear_loss_and_unused_parameters_have_no_curvature():
    theta, unused = torch.ones(3, requires_grad=True), torch.ones(2, requires_grad=True)
    penalty = curvature_penalty(theta.sum(), [theta, unused])
    assert penalty.item() == 0.0
    (theta.sum() + penalty).backward()
    torch.testing.assert_close(theta.grad, torch.ones(3))


def test_refuses_what_it_cannot_differentiate():
    theta = torch.ones(2, requires_grad=True)
    with pytest.raises(InputError, match="scalar loss"):
        curvature_penalty(theta**2, [theta])
    with pytest.raises(InputError, match="graph"):
        curvature_penalty((theta**2).sum().detach(), [theta])
    with pytest.raises(InputError, match="at least one parameter"):
        curvature_penalty((theta**2).sum(), [theta.detach()])
    other = torch.ones(2, requires_grad=True)
    with pytest.raises(InputError, match=r"uses none of them; .* not of a copy"):
        curvature_penalty((theta**2).sum(), [other])
    attention = F.scaled_dot_product_attention(*[theta.view(1, 1, 2, 1)] * 3)
    with pytest.raises(InputError, match=r"is not implemented; .*SDPBackend\.MATH"):
        curvature_penalty(attention.square().sum(), [theta])
    with pytest.raises(InputError, match="whole number"):
        curvature_penalty((theta**2).sum(), [theta], probes=0)


class PlainWeightNorm(nn.Module):
    def forward(self, g, v):
        return v * (g / torch.norm_except_dim(v, 2, 0))

    def right_inverse(self, weight):
        return torch.norm_except_dim(weight, 2, 0), weight


def test_weight_normalisation(mlp):
    """PyTorch's own second derivative of it is wrong; the one that the message names is right."""
    first = mlp.model[0]
    nn.utils.parametrizations.weight_norm(first)
    with pytest.raises(InputError, match="weight normalisation"):
        penalty_and_gradient(mlp, 1)
    nn.utils.parametrize.remove_parametrizations(first, "weight")
    nn.utils.parametrize.register_parametrization(first, "weight", PlainWeightNorm())
    operator = HessianOperator(mlp.model, "ce", [(mlp.x, mlp.y)])
    exact = (operator @ torch.eye(operator.shape[0], dtype=torch.float64)).trace()
    torch.manual_seed(0)
    runs = torch.stack([penalty_and_gradient(mlp, 10)[0] for _ in range(100)])
    assert abs(runs.mean() - exact) < 4 * runs.std() / 10
