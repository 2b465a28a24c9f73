"""Ψ^γ and g against arbitrary precision, at extremes, and through autograd."""

from __future__ import annotations

import doctest
import subprocess
import sys

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import focalcal.maps.focal as module
from focalcal.errors import InputError
from focalcal.maps import binary_focal_map, focal_log_map, focal_map, gradient_factor
from maps.oracles import exact_gradient_factor, exact_log_map

GAMMAS = [-0.99, -0.9, -0.5, 0.0, 0.3, 1.0, 3.0, 5.0, 20.0, 100.0]


def rows(n_classes: int, scale: float, seed: int) -> list[np.ndarray]:
    """Spread out; a near tie at the top; one class far above the rest."""
    rng = np.random.default_rng(seed)
    spread, tie, certain = rng.uniform(-scale, scale, (3, n_classes))
    tie[:2] = scale, scale - 1e-3 * rng.random()
    certain[0], certain[1:] = scale, rng.uniform(-scale, 1 - scale, n_classes - 1)
    return [spread, tie, certain]


def errors(got, exact) -> tuple[float, float]:
    """Largest error of log p over 1 + |log p|, and relative to |log p| above the subnormals."""
    mixed = relative = 0.0
    for value, truth in zip(np.asarray(got, dtype=float), exact):
        error = abs(mpmath.mpf(float(value)) - truth)
        mixed = max(mixed, float(error / (1 + abs(truth))))
        if abs(truth) > np.finfo(np.asarray(got).dtype).tiny / np.finfo(np.asarray(got).dtype).eps:
            relative = max(relative, float(error / abs(truth)))
    return mixed, relative


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("scale", [0.01, 1.0, 5.0, 60.0])
def test_log_map_equals_arbitrary_precision_for_logits_to_60(gamma, scale):
    for n_classes in (2, 3, 10):
        for row in rows(n_classes, scale, seed=n_classes):
            mixed, relative = errors(focal_log_map(row, gamma), exact_log_map(row, gamma))
            assert mixed <= 1e-14
            assert relative <= 1e-13
            single = row.astype(np.float32)
            mixed, relative = errors(focal_log_map(single, gamma), exact_log_map(single, gamma))
            assert mixed <= 1e-6
            assert relative <= 1e-5


@pytest.mark.parametrize(("gamma", "scale"), [(-0.5, 60.0), (3.0, 5.0), (100.0, 1.0)])
def test_log_map_equals_arbitrary_precision_for_a_thousand_classes(gamma, scale):
    row = rows(1000, scale, seed=1)[0]
    mixed, relative = errors(focal_log_map(row, gamma), exact_log_map(row, gamma))
    assert mixed <= 1e-14
    assert relative <= 1e-13


@pytest.mark.parametrize("gamma", [-0.99, -0.5, 0.3, 3.0, 100.0])
def test_log_map_equals_arbitrary_precision_for_logits_to_1e4(gamma):
    for row in (*rows(3, 1e4, seed=2)[1:], np.array([1e4, 1e4 - 1e-3, -1e4])):
        assert errors(focal_log_map(row, gamma), exact_log_map(row, gamma))[0] <= 1e-14
        single = row.astype(np.float32)
        assert errors(focal_log_map(single, gamma), exact_log_map(single, gamma))[0] <= 1e-6


@pytest.mark.parametrize("gamma", GAMMAS)
def test_torch_equals_numpy(gamma):
    logits = np.random.default_rng(0).normal(size=(7, 5)) * 8
    for dtype in (torch.float64, torch.float32):
        tensor = torch.tensor(logits, dtype=dtype)
        out = focal_log_map(tensor, gamma)
        assert out.dtype == dtype
        tolerance = 1e-13 if dtype == torch.float64 else 1e-6
        expected = focal_log_map(tensor.numpy(), gamma)
        np.testing.assert_allclose(out.numpy(), expected, rtol=tolerance)


def test_gamma_zero_is_softmax():
    logits = np.random.default_rng(1).normal(size=(20, 6)) * 5
    expected = torch.log_softmax(torch.tensor(logits), -1).numpy()
    np.testing.assert_allclose(focal_log_map(logits, 0.0), expected, rtol=1e-13)
    p = np.exp(expected)
    np.testing.assert_allclose(focal_map(p, 0.0), p, rtol=1e-13)


@pytest.mark.parametrize("gamma", GAMMAS)
def test_argmax_is_kept_and_rows_sum_to_one(gamma):
    logits = np.random.default_rng(2).normal(size=(500, 8)) * 3
    p = np.exp(focal_log_map(logits, gamma))
    np.testing.assert_array_equal(p.argmax(1), logits.argmax(1))
    np.testing.assert_allclose(p.sum(1), 1, rtol=1e-13)


def test_below_minus_0_885_the_map_raises_confidence_near_one_half():
    q = np.array([0.51, 0.49])
    assert focal_map(q, -0.88)[0] < 0.51
    assert focal_map(q, -0.89)[0] > 0.51


@pytest.mark.parametrize("gamma", GAMMAS)
def test_map_of_probabilities_equals_map_of_logits(gamma):
    logits = np.random.default_rng(3).normal(size=(50, 4)) * 10
    p = np.exp(focal_log_map(logits, 0.0))
    np.testing.assert_allclose(focal_map(p, gamma), np.exp(focal_log_map(logits, gamma)), 1e-12)


@pytest.mark.parametrize("gamma", [-0.99, -0.5, 0.0, 2.0, 100.0])
def test_exact_zeros_and_ones_stay(gamma):
    p = np.array([[1.0, 0.0, 0.0], [0.0, 0.25, 0.75]])
    out = focal_map(p, gamma)
    np.testing.assert_array_equal(out[0], p[0])
    assert out[1, 0] == 0
    np.testing.assert_allclose(out[1, 1:], focal_map(p[1, 1:], gamma), rtol=1e-14)


def test_impossible_classes_are_minus_infinity():
    out = focal_log_map(np.array([[0.0, -np.inf, -np.inf], [0.0, 1.0, -np.inf]]), 2.0)
    np.testing.assert_array_equal(out[0], [0.0, -np.inf, -np.inf])
    np.testing.assert_allclose(out[1, :2], focal_log_map(np.array([0.0, 1.0]), 2.0), rtol=1e-15)


def test_blocks_of_rows_equal_one_pass_and_leave_the_input_alone():
    logits = np.random.default_rng(4).normal(size=(300, 1000))
    logits.setflags(write=False)
    out = focal_log_map(logits, 2.0)
    each = np.stack([focal_log_map(row, 2.0) for row in logits])
    np.testing.assert_array_equal(out, each)
    every_other = focal_log_map(logits[:, ::2], 2.0)
    np.testing.assert_array_equal(every_other[5], focal_log_map(logits[5, ::2], 2.0))


def test_half_precision_and_lists_are_accepted():
    assert focal_map(np.array([0.75, 0.25], dtype=np.float16), 1.0).dtype == np.float32
    assert focal_map([1, 0], 1.0).dtype == np.float64
    assert focal_map(torch.tensor([0.75, 0.25], dtype=torch.bfloat16), 1.0).dtype == torch.float32


@given(st.floats(-40, 40), st.floats(-0.99, 100))
@settings(max_examples=100, deadline=None)
def test_binary_map_equals_two_classes(s, gamma):
    log_p = focal_log_map(np.array([s, 0.0]), gamma)
    expected = log_p[0] - log_p[1]
    assert binary_focal_map(s, gamma) == pytest.approx(expected, rel=1e-12, abs=1e-13)
    assert binary_focal_map(-s, gamma) == pytest.approx(-binary_focal_map(s, gamma), abs=1e-15)


@pytest.mark.parametrize("gamma", GAMMAS)
def test_gradient_factor_equals_arbitrary_precision(gamma):
    p = np.array([0.0, 1e-9, 0.3, 0.5, 0.7, 1 - 2**-20])
    for values, tolerance in ((p, 2e-14), (p.astype(np.float32), 1e-6)):
        with mpmath.workdps(400):
            exact = [exact_gradient_factor(mpmath.mpf(float(v)), gamma) for v in values[1:6]]
        got = gradient_factor(values, gamma)[1:6]
        exact = np.array(exact, dtype=float)
        np.testing.assert_allclose(got, exact, rtol=tolerance, atol=np.finfo(got.dtype).tiny)


def test_gradient_factor_at_the_ends():
    np.testing.assert_array_equal(gradient_factor([0.0, 1.0], 2.0), [1, 0])
    np.testing.assert_array_equal(gradient_factor([0.0, 1.0], 0.0), [1, 1])
    np.testing.assert_array_equal(gradient_factor([0.0, 1.0], -0.5), [1, np.inf])


@pytest.mark.parametrize("gamma", [-0.9, 0.0, 0.5, 1.0, 5.0])
def test_gradients_pass_torch_gradcheck(gamma):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda z: focal_log_map(z, gamma), logits)
    assert torch.autograd.gradcheck(lambda z: focal_map(z.softmax(-1), gamma), logits)
    assert torch.autograd.gradcheck(lambda z: gradient_factor(z.softmax(-1), gamma), logits)
    assert torch.autograd.gradcheck(lambda z: binary_focal_map(z, gamma), logits)
    assert torch.autograd.gradgradcheck(lambda z: focal_log_map(z, gamma), logits)


def test_gradient_at_a_tie_goes_to_both_classes():
    tie = torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda z: focal_log_map(z, 2.0), tie)
    zero = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda z: binary_focal_map(z, 2.0), zero)


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_finite_at_saturation(gamma, dtype):
    logits = torch.tensor(
        [[1e4, -1e4, 0.0], [0.0, 0.0, -1e4], [1e4, 1e4, 1e4], [60.0, 0.0, -60.0]], dtype=dtype
    )
    for column in range(3):
        z = logits.clone().requires_grad_()
        out = focal_log_map(z, gamma)
        out[:, column].sum().backward()
        assert torch.isfinite(out).all()
        assert torch.isfinite(z.grad).all()
        np.testing.assert_allclose(z.grad.sum(1), 0, atol=1e-4 * float(z.grad.abs().max() + 1))
    p = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]], dtype=dtype, requires_grad=True)
    focal_map(p, gamma)[:, 0].sum().backward()
    assert torch.isfinite(p.grad[1]).all()
    # Beside a certain class Ψ_k grows as p_k^(1+γ): for γ < 0 its slope at zero is infinite.
    assert torch.isfinite(p.grad).all() if gamma >= 0 else not torch.isnan(p.grad).any()
    p = torch.tensor([0.0, 0.5, 1.0], dtype=dtype, requires_grad=True)
    gradient_factor(p, max(gamma, 0.0)).sum().backward()
    assert torch.isfinite(p.grad).all()


def test_gradient_at_an_exact_zero_is_the_limit():
    """Against a one-sided difference quotient, which never evaluates the derivative formulas."""
    p = torch.tensor([0.6, 0.4, 0.0], dtype=torch.float64, requires_grad=True)
    focal_map(p, 2.0)[2].backward()
    step = torch.tensor([0.0, 0.0, 1e-9], dtype=torch.float64)
    quotient = focal_map(p.detach() + step, 2.0)[2] / 1e-9
    assert float(p.grad[2]) == pytest.approx(float(quotient), rel=1e-6)


@pytest.mark.parametrize("gamma", [-1.0, -2.0, float("nan"), float("inf")])
def test_gamma_must_be_above_minus_one(gamma):
    for call in (
        lambda: focal_map([0.5, 0.5], gamma),
        lambda: focal_log_map([0.5, 0.5], gamma),
        lambda: gradient_factor([0.5], gamma),
        lambda: binary_focal_map([0.5], gamma),
    ):
        with pytest.raises(InputError, match="gamma > -1"):
            call()


@pytest.mark.parametrize("shape", [(), (3, 1)])
def test_one_class_is_an_error(shape):
    with pytest.raises(InputError, match="two or more classes"):
        focal_map(np.ones(shape), 1.0)


def test_examples():
    assert doctest.testmod(module).failed == 0


def test_maps_import_no_torch():
    code = "import sys, focalcal.maps; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
