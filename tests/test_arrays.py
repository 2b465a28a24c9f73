"""The array seam: same kind out as in, stable reductions, NumPy and torch alike."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special

from focalcal._arrays import (
    as_array,
    as_float,
    is_torch,
    like,
    log_softmax,
    logsumexp,
    namespace,
    softmax,
    to_numpy,
)
from focalcal.errors import InputError

torch = pytest.importorskip("torch")


def test_arrays_pass_untouched_and_lists_become_numpy():
    x, t = np.ones(2), torch.ones(2)
    assert as_array(x) is x
    assert as_array(t) is t
    assert isinstance(as_array([1, 2]), np.ndarray)
    assert is_torch(t)
    assert not is_torch(x)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("float16", "float32"),
        ("float32", "float32"),
        ("float64", "float64"),
        ("int32", "float64"),
        ("uint8", "float64"),
        ("bool", "float64"),
    ],
)
def test_float_widths(given, expected):
    x = np.ones(3, given)
    assert str(as_float(x).dtype) == expected
    assert str(as_float(torch.ones(3, dtype=getattr(torch, given))).dtype) == f"torch.{expected}"


def test_other_float_widths():
    assert as_float(torch.ones(2, dtype=torch.bfloat16)).dtype == torch.float32
    assert as_float(np.ones(2, np.longdouble)).dtype == np.float64


def test_to_numpy_detaches_and_shares():
    t = torch.ones(3, requires_grad=True)
    assert isinstance(to_numpy(t), np.ndarray)
    assert to_numpy(torch.ones(2, dtype=torch.bfloat16)).dtype == np.float32
    x = np.ones(3)
    assert to_numpy(x) is x


def test_like_takes_kind_and_precision():
    assert like([1.5], np.ones(1, np.float32)).dtype == np.float32
    assert like([1.5], np.ones(1, np.int64)).dtype == np.float64
    t = like(np.array([1.5]), torch.ones(1, dtype=torch.float32))
    assert t.dtype == torch.float32
    assert like(np.array([1.5]), torch.ones(1, dtype=torch.int64)).dtype == torch.float64


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("scale", [1.0, 1e4, 1e300])
def test_reductions_are_stable(kind, scale, rng):
    x = scale * rng.uniform(-1, 1, size=(5, 7))
    a = x if kind == "numpy" else torch.tensor(x)
    np.testing.assert_allclose(to_numpy(logsumexp(a)), special.logsumexp(x, axis=-1), rtol=1e-14)
    np.testing.assert_allclose(
        to_numpy(log_softmax(a)), special.log_softmax(x, axis=-1), rtol=1e-12, atol=1e-14
    )
    np.testing.assert_allclose(to_numpy(softmax(a)), special.softmax(x, axis=-1), atol=1e-15)
    np.testing.assert_allclose(to_numpy(softmax(a)).sum(axis=-1), 1, rtol=1e-14)


@pytest.mark.parametrize("order", ["C", "F"])
def test_long_rows_of_float32_lose_no_digits_in_any_memory_order(order):
    x = np.full((2, 50_000), np.log(4e-6), np.float32)
    x[:, 0] = np.log(0.8)
    given, exact = np.asarray(x, order=order), x.astype(np.float64)
    np.testing.assert_allclose(softmax(given), special.softmax(exact, axis=1), rtol=2e-6)
    assert softmax(given).dtype == np.float32
    np.testing.assert_allclose(log_softmax(given), special.log_softmax(exact, axis=1), atol=2e-6)
    np.testing.assert_allclose(logsumexp(given), special.logsumexp(exact, axis=1), atol=2e-6)


def test_logsumexp_axes_and_empty_rows():
    x = np.log(np.array([[1.0, 2.0], [3.0, 4.0]]))
    np.testing.assert_allclose(logsumexp(x, axis=0), np.log([4, 6]))
    assert logsumexp(x, axis=1, keepdims=True).shape == (2, 1)
    with np.errstate(divide="ignore"):
        assert logsumexp(np.full((1, 2), -np.inf))[0] == -np.inf


def test_gradients_pass_through():
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(log_softmax, x)


def test_namespace_is_shared():
    assert namespace(np.ones(1)).__name__.endswith("numpy")
    assert namespace(torch.ones(1)).__name__.endswith("torch")


def test_matrices_and_masked_arrays_are_plain_arrays_or_refused():
    x = np.arange(6.0).reshape(3, 2)
    for given in (x.view(np.matrix), np.ma.masked_array(x)):
        assert type(as_array(given)) is np.ndarray
        np.testing.assert_array_equal(as_array(given), x)
    with pytest.raises(InputError, match="without masked values"):
        as_array(np.ma.masked_array(x, mask=x == 2))
