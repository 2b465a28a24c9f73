"""The inverse map against Ψ, against direct minimisation of the risk, and through autograd."""

from __future__ import annotations

import doctest

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

import focalcal.maps.inverse as module
from focalcal.errors import InputError
from focalcal.maps import (
    focal_log_map,
    focal_loss_value,
    focal_map,
    focal_risk,
    inverse_focal_log_map,
    inverse_focal_map,
    properized_focal_loss,
)

GAMMAS = [-0.99, -0.5, -0.1, 0.0, 0.01, 1.0, 3.0, 5.0, 20.0, 100.0]


@pytest.mark.parametrize(
    ("top", "gamma", "expected"),
    [(0.9, 1, 0.7744), (0.9, 3, 0.6471), (0.9, 5, 0.5974), (0.8, 2, 0.6266)],
)
def test_check_values_of_two_classes(top, gamma, expected):
    assert inverse_focal_map([top, 1 - top], gamma)[0] == pytest.approx(expected, abs=5e-5)


def test_check_value_of_a_thousand_classes_is_over_confident():
    p = np.full(1000, 0.95 / 999)
    p[0] = 0.05
    assert inverse_focal_map(p, 3.0)[0] == pytest.approx(0.0622, abs=5e-5)


# For γ near −1 the answer underflows as a probability; the test on log-probabilities has it.
@pytest.mark.parametrize("gamma", GAMMAS[1:])
@pytest.mark.parametrize("n_classes", [2, 3, 10, 1000])
def test_map_of_inverse_is_the_identity(gamma, n_classes):
    rng = np.random.default_rng(n_classes)
    p = np.concatenate([rng.dirichlet(np.full(n_classes, a), size=8) for a in (0.1, 1.0, 10.0)])
    q = inverse_focal_map(p, gamma)
    np.testing.assert_allclose(q.sum(1), 1, rtol=1e-12)
    np.testing.assert_allclose(focal_map(q, gamma), p, rtol=0, atol=1e-12)


@pytest.mark.parametrize("gamma", [300.0, 1e3, 1e4, 1e6])
@pytest.mark.parametrize("n_classes", [2, 3, 100, 1000])
def test_large_gamma(gamma, n_classes):
    """Plain Newton steps overshot: q > 1 or NaN from γ = 300 on."""
    rng = np.random.default_rng(n_classes)
    logits = np.concatenate([s * rng.normal(size=(20, n_classes)) for s in (0.1, 5, 20, 60, 300)])
    log_q = inverse_focal_log_map(logits, gamma)
    assert (log_q <= 0).all()
    np.testing.assert_allclose(np.exp(log_q).sum(1), 1, rtol=1e-12)
    expected = np.exp(focal_log_map(logits, 0.0))
    back = np.exp(focal_log_map(log_q, gamma))
    np.testing.assert_allclose(back, expected, rtol=0, atol=1e-15 * gamma + 1e-12)


def test_empty_batches():
    for shape in ((0, 3), (2, 0, 4)):
        p = np.zeros(shape)
        for got in (inverse_focal_map(p, 2.0), inverse_focal_log_map(p, 2.0), focal_map(p, 2.0)):
            assert got.shape == shape
        assert properized_focal_loss(p, np.zeros(shape[:-1], int), 2.0).shape == shape[:-1]
        z = torch.zeros(shape, requires_grad=True)
        inverse_focal_log_map(z, 2.0).sum().backward()
        assert z.grad.shape == shape


@pytest.mark.parametrize("gamma", GAMMAS)
def test_log_map_of_inverse_is_the_identity_for_logits_to_1e4(gamma):
    rng = np.random.default_rng(5)
    for scale in (1e-3, 5.0, 60.0, 1e4):
        logits = rng.uniform(-scale, scale, (16, 4))
        logits[:4, 0] = logits[:4].max(1)  # ties
        expected = focal_log_map(logits, 0.0)
        round_trip = focal_log_map(inverse_focal_log_map(logits, gamma), gamma)
        np.testing.assert_allclose(round_trip, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("gamma", [0.5, 2.0, 7.0])
def test_inverse_minimises_the_focal_risk(gamma):
    """The oracle minimises the risk over softmax logits: it never sees h, c or Ψ."""
    p = np.array([0.55, 0.25, 0.15, 0.05])

    def risk(z):
        q = np.exp(z - z.max())
        q /= q.sum()
        return float(np.sum(p * (1 - q) ** gamma * -np.log(q)))

    best = minimize(risk, np.log(p), method="BFGS", options={"gtol": 1e-10})
    q = np.exp(best.x) / np.exp(best.x).sum()
    np.testing.assert_allclose(inverse_focal_map(p, gamma), q, atol=1e-5)
    assert focal_risk(p, inverse_focal_map(p, gamma), gamma) <= best.fun + 1e-14


@pytest.mark.parametrize("gamma", [-0.99, -0.5, 0.5, 3.0, 100.0])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_tied_classes_stay_tied_and_on_top(gamma, dtype):
    """Rounding put another of several equal classes first."""
    rng = np.random.default_rng(0)
    for k in (2, 3, 10, 100):
        z = np.round(2 * rng.normal(size=(300, k))).astype(dtype)
        top = z == z.max(1, keepdims=True)
        p = np.exp(z - z.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        for got in (
            focal_log_map(z, gamma),
            inverse_focal_log_map(z, gamma),
            focal_map(p, gamma),
            inverse_focal_map(p, gamma),
            focal_log_map(torch.as_tensor(z), gamma).numpy(),
        ):
            np.testing.assert_array_equal(got == got.max(1, keepdims=True), top)


def test_argmax_is_kept():
    p = np.random.default_rng(6).dirichlet(np.ones(7), size=300)
    for gamma in GAMMAS:
        np.testing.assert_array_equal(inverse_focal_map(p, gamma).argmax(1), p.argmax(1))


def test_h_has_its_maximum_at_0_736_for_gamma_minus_one_half():
    q = np.linspace(0.01, 0.99, 9801)
    h = q / ((1 - q) ** -0.5 * (1 - 0.5 * -q * np.log(q) / (1 - q)))
    assert q[h.argmax()] == pytest.approx(0.736, abs=5e-4)
    top = np.array([0.9, 0.06, 0.04])  # beyond that maximum, the other branch
    np.testing.assert_allclose(inverse_focal_map(focal_map(top, -0.5), -0.5), top, atol=1e-12)


@pytest.mark.parametrize("gamma", GAMMAS)
def test_exact_zeros_and_ones_stay(gamma):
    p = np.array([[1.0, 0.0, 0.0], [0.0, 0.25, 0.75]])
    q = inverse_focal_map(p, gamma)
    np.testing.assert_array_equal(q[0], p[0])
    assert q[1, 0] == 0
    np.testing.assert_allclose(q[1, 1:], inverse_focal_map(p[1, 1:], gamma), rtol=1e-12)


def test_exact_zeros_take_no_mass_at_a_large_gamma():
    """The stand-in for zero, 1e-290, is in proportion to e^(γ ln 2) of the other classes."""
    q = inverse_focal_map([0.0, 0.833, 0.167], 1000.0)
    np.testing.assert_allclose(q, [0, *inverse_focal_map([0.833, 0.167], 1000.0)], rtol=1e-12)


@pytest.mark.parametrize("kind", [np.array, torch.tensor])
@pytest.mark.parametrize("gamma", [-0.5, 0.0, 3.0])
def test_impossible_classes_stay_impossible_in_log_space(kind, gamma):
    out = inverse_focal_log_map(kind([1.0, -np.inf, 0.0]), gamma)
    assert out[1] == -np.inf
    np.testing.assert_allclose(
        out[[0, 2]], inverse_focal_log_map(kind([1.0, 0.0]), gamma), rtol=1e-12
    )


@pytest.mark.parametrize("kind", [np.array, torch.tensor])
def test_properized_loss_of_an_impossible_label_is_infinite(kind):
    for gamma in (0.0, 1.0, 3.0):
        loss = properized_focal_loss(kind([[0.0, 1.0], [0.0, 1.0]]), [0, 1], gamma)
        assert loss[0] == np.inf
        assert float(loss[1]) == pytest.approx(0, abs=1e-200)


def test_torch_equals_numpy_and_keeps_the_dtype():
    p = np.random.default_rng(7).dirichlet(np.ones(5), size=6)
    expected = inverse_focal_map(p, 2.0)
    np.testing.assert_allclose(inverse_focal_map(torch.tensor(p), 2.0), expected, rtol=1e-12)
    single = inverse_focal_map(torch.tensor(p, dtype=torch.float32), 2.0)
    assert single.dtype == torch.float32
    np.testing.assert_allclose(single, expected, rtol=1e-5)
    assert inverse_focal_map(p.astype(np.float32), 2.0).dtype == np.float32


@pytest.mark.parametrize("gamma", [-0.9, -0.5, 0.5, 3.0])
def test_gradients_pass_torch_gradcheck(gamma):
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(2, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 2])
    assert torch.autograd.gradcheck(lambda z: inverse_focal_log_map(z, gamma), logits)
    assert torch.autograd.gradcheck(lambda z: inverse_focal_map(z.softmax(-1), gamma), logits)
    loss = lambda z: properized_focal_loss(z.softmax(-1), labels, gamma)  # noqa: E731
    assert torch.autograd.gradcheck(loss, logits)
    assert torch.autograd.gradgradcheck(loss, logits)


@pytest.mark.parametrize("gamma", GAMMAS)
def test_gradients_are_finite_at_saturation(gamma):
    logits = torch.tensor([[1e4, -1e4, 0.0], [0.0, 0.0, -1e4], [60.0, 0.0, -60.0]])
    for column in range(3):
        z = logits.clone().requires_grad_()
        out = inverse_focal_log_map(z, gamma)
        out[:, column].sum().backward()
        assert torch.isfinite(out).all()
        assert torch.isfinite(z.grad).all()
    p = torch.tensor([[1.0, 0.0], [0.25, 0.75]], requires_grad=True)
    loss = properized_focal_loss(p, torch.tensor([0, 1]), gamma)
    loss.sum().backward()
    assert torch.isfinite(loss).all()
    assert torch.isfinite(p.grad).all()


@pytest.mark.parametrize("gamma", [0.0, 1.0, 4.0])
def test_properized_loss_is_proper(gamma):
    """Its risk under p is smallest at p among random predictions; focal loss's is not."""
    rng = np.random.default_rng(8)
    p = np.array([0.7, 0.2, 0.1])
    others = rng.dirichlet(np.ones(3), size=400)
    near = p + 0.01 * (others - p)

    def risk(q):
        losses = [properized_focal_loss(q, np.full(len(q), k), gamma) for k in range(3)]
        return sum(w * loss for w, loss in zip(p, losses))

    own = risk(p[None])[0]
    assert (risk(others) >= own).all()
    assert (risk(near) >= own).all()
    if gamma:
        assert focal_risk(p, near, gamma).min() < focal_risk(p, p, gamma)


def test_properized_loss_is_the_focal_loss_of_the_inverse():
    p = np.random.default_rng(9).dirichlet(np.ones(4), size=5)
    labels = np.array([0, 1, 2, 3, 0])
    q = inverse_focal_map(p, 2.0)
    expected = focal_loss_value(q[np.arange(5), labels], 2.0)
    np.testing.assert_allclose(properized_focal_loss(p, labels, 2.0), expected, rtol=1e-11)
    np.testing.assert_allclose(
        properized_focal_loss(p, labels, 0.0), -np.log(p[np.arange(5), labels]), rtol=1e-12
    )


@pytest.mark.parametrize("labels", [[0], [0.0, 1.0]])
def test_labels_are_checked(labels):
    with pytest.raises(InputError, match="integer labels"):
        properized_focal_loss([[0.5, 0.5], [0.5, 0.5]], labels, 1.0)
    for label in (-1, 2):
        with pytest.raises(InputError, match=r"labels in 0\.\.1"):
            properized_focal_loss([[0.5, 0.5]], [label], 1.0)


def test_gamma_and_shape_are_checked():
    for call in (inverse_focal_map, inverse_focal_log_map):
        with pytest.raises(InputError, match="gamma > -1"):
            call([0.5, 0.5], -1.0)
        with pytest.raises(InputError, match="two or more classes"):
            call([[0.5]], 1.0)


def test_examples():
    assert doctest.testmod(module).failed == 0
