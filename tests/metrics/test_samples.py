"""The fast way to (confidence, correct) against NumPy's own reductions, which work row by row."""

import numpy as np
import pytest

from focalcal.errors import InputError
from focalcal.metrics._samples import row_maximum, top_label


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("k", [*range(2, 18), 31, 33, 63, 64, 65, 100])
def test_top_label_equals_numpy_s_max_and_first_argmax(k, dtype, rng):
    # Rounded to few digits so that ties, also of the largest, are common.
    p = np.round(rng.dirichlet(np.full(k, 0.5), 5_000) * 8) + 1e-3
    p = (p / p.sum(axis=1, keepdims=True)).astype(dtype)
    y = rng.integers(0, k, len(p))
    confidence, correct = top_label(y, p)
    np.testing.assert_array_equal(confidence, p.max(axis=1))
    np.testing.assert_array_equal(correct, p.argmax(axis=1) == y)


@pytest.mark.parametrize("n", [1, 127, 128, 129, 30_000, 130_001])
def test_top_label_at_the_ends_of_blocks(n, rng):
    p = rng.dirichlet(np.ones(10), n)
    y = rng.integers(0, 10, n)
    for q in (p, np.asfortranarray(p), p[:, ::-1]):
        confidence, correct = top_label(y, q)
        np.testing.assert_array_equal(confidence, q.max(axis=1))
        np.testing.assert_array_equal(correct, q.argmax(axis=1) == y)


def test_two_classes_at_exactly_one_half():
    p = np.tile([0.5, 0.5], (1000, 1))
    y = np.arange(1000) % 2
    assert (top_label(y, p)[1] == (y == 0)).all()


@pytest.mark.parametrize("k", range(1, 20))
def test_row_maximum_does_not_mix_rows(k):
    rows = np.arange(6.0 * k)[::-1].reshape(6, k).copy()
    np.testing.assert_array_equal(
        row_maximum(rows, np.empty(6), np.empty((2, 6 * k))), rows.max(axis=1)
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64, ">f4", ">f8"])
@pytest.mark.parametrize("bad", [-0.25, -0.06, np.nan, np.inf, -np.inf, 1.5])
def test_one_bad_value_among_many_is_found(dtype, bad, rng):
    p = rng.dirichlet(np.ones(10), 3_000)
    p[1234, 7] += bad
    with pytest.raises(InputError, match="row 1234"):
        top_label(rng.integers(0, 10, len(p)), p.astype(dtype))


@pytest.mark.parametrize("dtype", [np.float32, ">f4", ">f8", np.float16, np.longdouble])
def test_negative_zeros_and_other_byte_orders_and_precisions(dtype, rng):
    p = np.round(rng.dirichlet(np.ones(4), 500) * 8) / 8
    p[:, 3] = 1 - p[:, :3].sum(axis=1)
    p = np.where(p == 0, -0.0, p).clip(-0.0, 1).astype(dtype)
    p = p[abs(p.sum(axis=1) - 1) < 1e-6]
    assert np.signbit(p).any()
    y = rng.integers(0, 4, len(p))
    confidence, correct = top_label(y, p)
    np.testing.assert_array_equal(confidence, p.max(axis=1))
    np.testing.assert_array_equal(correct, p.argmax(axis=1) == y)


def test_no_digit_is_lost_in_the_other_byte_order():
    p = np.array([[0.5 - 1e-10, 0.5 + 1e-10]], dtype=">f8")
    confidence, correct = top_label([1], p)
    assert confidence.dtype == np.float64
    assert confidence[0] == 0.5 + 1e-10
    assert correct[0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("first", [1.25, 1.001])
def test_a_row_that_sums_to_one_may_still_be_bad(dtype, first, rng):
    p = rng.dirichlet(np.ones(10), 300)
    p[123] = [first, 1 - first, *[0] * 8]
    with pytest.raises(InputError, match="row 123"):
        top_label(rng.integers(0, 10, len(p)), p.astype(dtype))
