"""The hand-written second derivatives against torch's own double backward, in float64."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from focalcal.curvature._second_order import cheap_second_order


def both_ways(function, tensors):
    """Hessian products of Σ sin(function) with and without the fast path."""
    g = torch.Generator().manual_seed(0)
    vs = [torch.randn(t.shape, generator=g, dtype=torch.float64) for t in tensors]

    def product():
        gradients = torch.autograd.grad(function().sin().sum(), tensors, create_graph=True)
        return torch.autograd.grad(gradients, tensors, vs)

    with cheap_second_order():
        fast = product()
    return fast, product()


def leaf(*shape, seed=1):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=g, dtype=torch.float64).requires_grad_()


@pytest.mark.parametrize(
    ("dims", "settings"),
    [
        (1, {}),
        (2, {"stride": 2, "padding": 1}),
        (2, {"padding": (1, 0), "dilation": (1, 2)}),
        (2, {"groups": 2, "padding": 1}),
        (2, {"padding": "same"}),
        (3, {"stride": (1, 2, 1)}),
    ],
)
@pytest.mark.parametrize("bias", [True, False])
def test_convolution(dims, settings, bias):
    function = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[dims]
    x = leaf(2, 4, *[6] * dims, seed=1)
    w = leaf(6, 4 // settings.get("groups", 1), *[3] * dims, seed=2)
    tensors = [x, w] + ([leaf(6, seed=3)] if bias else [])
    b = tensors[2] if bias else None
    fast, plain = both_ways(lambda: function(x, w, b, **settings), tensors)
    for a, e in zip(fast, plain):
        torch.testing.assert_close(a, e)


def test_convolution_of_constant_inputs():
    x, w = leaf(2, 3, 5, 5).detach(), leaf(4, 3, 3, 3)
    for a, e in zip(*both_ways(lambda: F.conv2d(x, w), [w])):
        torch.testing.assert_close(a, e)


def test_attention_is_that_of_plain_products():
    q, k, v = (leaf(2, 3, 4, seed=s) for s in range(3))
    us = [leaf(2, 3, 4, seed=s).detach() for s in range(3, 6)]
    plain = ((q @ k.mT) / 4**0.5).softmax(-1) @ v
    with cheap_second_order():
        fused = F.scaled_dot_product_attention(q, k, v)
    products = []
    for out in (fused, plain):
        gradients = torch.autograd.grad(out.sin().sum(), (q, k, v), create_graph=True)
        products.append(torch.autograd.grad(gradients, (q, k, v), us))
    torch.testing.assert_close(*products)


@pytest.mark.parametrize("dim", [0, 1, None])
def test_weight_normalisation(dim):
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3, bias=False).double(), dim=dim)
    x, parameters = leaf(5, 4).detach(), tuple(layer.parameters())

    def normalised(*values):
        return torch.func.functional_call(layer, dict(zip(names, values)), (x,)).sin()

    names = [name for name, _ in layer.named_parameters()]
    expected = normalised(*parameters)
    with cheap_second_order():
        torch.testing.assert_close(normalised(*parameters), expected)
        assert torch.autograd.gradgradcheck(normalised, parameters)


@pytest.mark.parametrize("shape", [(5, 3), (2, 3, 4, 4)])
def test_batch_norm(shape):
    x, w, b = leaf(*shape), leaf(3, seed=2), leaf(3, seed=3)
    mean, var = leaf(3, seed=4).detach(), leaf(3, seed=5).detach().abs() + 0.1
    fast, plain = both_ways(lambda: F.batch_norm(x, mean, var, w, b, False, 0.1, 1e-3), [x, w, b])
    for a, e in zip(fast, plain):
        torch.testing.assert_close(a, e)


def test_batch_norm_without_affine_or_in_training_is_left_alone():
    x = leaf(4, 3)
    mean, var = torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    for a, e in zip(*both_ways(lambda: F.batch_norm(x, mean, var), [x])):
        torch.testing.assert_close(a, e)
    for a, e in zip(*both_ways(lambda: F.batch_norm(x, None, None, training=True), [x])):
        torch.testing.assert_close(a, e)


def test_only_some_parameters():
    layer, norm = nn.Conv2d(2, 3, 3).double(), nn.BatchNorm2d(3).double().eval()
    x = leaf(2, 2, 5, 5).detach()
    for chosen in ([norm.weight], [norm.bias], [layer.weight], [layer.weight, norm.bias]):
        others = {*layer.parameters(), *norm.parameters()} - set(chosen)
        for p in others:
            p.requires_grad_(False)
        for a, e in zip(*both_ways(lambda: norm(layer(x)) ** 2, chosen)):
            torch.testing.assert_close(a, e)
        for p in others:
            p.requires_grad_(True)


def test_a_third_derivative_of_a_convolution_is_refused():
    x, w = leaf(1, 1, 4, 4), leaf(1, 1, 3, 3)
    with cheap_second_order():
        value = F.conv2d(x, w).sin().sum()
    (first,) = torch.autograd.grad(value, w, create_graph=True)
    with pytest.raises(RuntimeError, match="third"):
        torch.autograd.grad(first.sum(), w, create_graph=True)
