"""Checks: what passes, what is refused, and where the message points."""

from __future__ import annotations

import numpy as np
import pytest

from focalcal._checks import check_gamma, check_labels, check_logits, check_probs, check_weights
from focalcal.errors import FocalcalError, InputError, InputWarning


@pytest.mark.parametrize("gamma", [-0.999, 0, 1, 5.5, np.float32(2)])
def test_gamma_passes(gamma):
    assert check_gamma(gamma) == float(gamma)
    assert type(check_gamma(gamma)) is float


@pytest.mark.parametrize("gamma", [-1, -2.0, np.nan, np.inf, -np.inf])
def test_gamma_is_refused(gamma):
    with pytest.raises(InputError, match="finite gamma > -1"):
        check_gamma(gamma)


@pytest.mark.parametrize("gamma", ["2", [1.0, 2.0], ((0.2, 5.0), (1.0, 3.0)), None, np.ones(3)])
def test_gamma_that_is_no_number(gamma):
    with pytest.raises(InputError, match=r"(?s)gamma as one number, .* SampleDependentFocalLoss"):
        check_gamma(gamma)


@pytest.mark.parametrize("shape", [(3,), (3, 1), (3, 2), (1, 1000)])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int32])
def test_logits_pass(shape, dtype):
    z = np.ones(shape, dtype)
    got = check_logits(z)
    assert got.shape == shape
    assert got.dtype == (np.float32 if dtype in (np.float16, np.float32) else np.float64)


def test_checked_arrays_are_not_copied_or_changed(rng):
    z = rng.normal(size=(4, 3))
    assert check_logits(z) is z
    p = np.full((4, 2), 0.5)
    assert check_probs(p) is p


@pytest.mark.parametrize(
    ("z", "message"),
    [
        (np.array([[0.0, 1.0], [np.nan, 0.0]]), "got nan at row 1, column 0"),
        (np.array([[0.0, np.inf]]), "got inf at row 0, column 1"),
        (np.array([0.0, -np.inf]), "got -inf at row 1;"),
        (np.zeros((0, 3)), "N >= 1"),
        (np.zeros((3, 0)), "N >= 1"),
        (np.zeros((2, 2, 2)), r"got \(2, 2, 2\)"),
        (np.float64(1.0), r"got \(\)"),
        (np.array([["a"]]), "expected numbers in logits"),
        (np.array([[None]], dtype=object), "dtype object"),
        (np.array([[1j]]), "expected numbers in logits"),
        (np.array(["2020-01-01"], dtype="datetime64[D]"), "expected numbers in logits"),
    ],
)
def test_logits_are_refused(z, message):
    with pytest.raises(InputError, match=message):
        check_logits(z)


def test_large_finite_logits_pass_though_their_sum_overflows():
    z = np.full((2, 3), 3e38, dtype=np.float32)
    with np.errstate(over="ignore"):
        assert check_logits(z) is z


@pytest.mark.parametrize("order", ["C", "F", "strided"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_one_bad_number_in_any_layout(order, value, rng):
    z = rng.normal(size=(30_000, 3)).astype(np.float32)
    z[29_999, 1] = value
    if order == "strided":
        z = np.repeat(z, 2, axis=0)[::2]
    with pytest.raises(InputError, match=f"got {value} at row 29999, column 1"):
        check_logits(np.asarray(z, order=None if order == "strided" else order))
    z[29_999, 1] = 1e30  # its square overflows
    assert check_logits(z).shape == (30_000, 3)


def test_torch_logits_keep_kind_and_are_refused_by_row():
    torch = pytest.importorskip("torch")
    z = torch.zeros(2, 3, dtype=torch.bfloat16)
    assert check_logits(z).dtype == torch.float32
    z[1, 2] = float("nan")
    with pytest.raises(InputError, match="row 1, column 2"):
        check_logits(z)
    with pytest.raises(InputError, match="expected numbers"):
        check_logits(torch.zeros(2, dtype=torch.complex64))


@pytest.mark.parametrize("p", [[[0.2, 0.8]], [0.3], [[1.0, 0.0]], [0, 1], [True, False]])
def test_probabilities_pass(p):
    assert check_probs(p).shape == np.shape(p)


def test_rounding_beyond_the_range_is_clipped():
    p = check_probs(np.array([[1 + 5e-7, -5e-7]]))
    np.testing.assert_array_equal(p, [[1.0, 0.0]])


@pytest.mark.parametrize(
    ("p", "message"),
    [
        ([[0.5, 0.5], [0.5, 0.4]], "sum to 1, got 0.9 at row 1"),
        ([[0.5, 0.5], [1.2, -0.2]], r"in \[0, 1\], got 1.2 at row 1, column 0"),
        ([0.5, -0.1], r"in \[0, 1\], got -0.1 at row 1;"),
        ([[0.5, np.nan]], "got nan at row 0, column 1"),
        ([[np.inf, 0.0]], "got inf at row 0, column 0"),
        (np.zeros((0, 2)), "N >= 1"),
        (np.zeros((1, 1, 1)), "shape"),
        ([["x", "y"]], "expected numbers in y_prob"),
    ],
)
def test_probabilities_are_refused(p, message):
    with pytest.raises(InputError, match=message):
        check_probs(p)


def test_sums_of_multilabel_rows_are_free():
    p = np.array([[0.9, 0.9], [0.1, 0.1]])
    assert check_probs(p, sums=False) is p


@pytest.mark.parametrize(("dtype", "off"), [(np.float64, 5e-6), (np.float32, 5e-5)])
def test_sums_within_the_precision_are_left_alone(dtype, off):
    p = np.array([[0.5, 0.5 - off]]).astype(dtype)
    assert check_probs(p) is p


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("k", "off"), [(2, 1e-3), (2, 1.9e-2), (10, 4.9e-2), (1000, 4.9e-2)])
def test_rounded_rows_are_rescaled_and_said(dtype, k, off):
    p = np.zeros((2, k), dtype)
    p[:, 0], p[0, 1], p[1, 1] = 0.5, 0.5, 0.5 - off
    with pytest.warns(InputWarning, match="rescaled to sum to 1"):
        got = check_probs(p)
    wide = p.astype(np.float64)
    np.testing.assert_allclose(got, wide / wide.sum(axis=1, keepdims=True), rtol=1e-6)
    assert p[1, 1] == dtype(0.5 - off)


@pytest.mark.parametrize(("k", "off"), [(2, 2.1e-2), (3, 3.1e-2), (10, 5.1e-2), (1000, 5.1e-2)])
def test_rows_beyond_rounding_are_refused(k, off):
    p = np.zeros((1, k))
    p[0, :2] = 0.5, 0.5 - off
    with pytest.raises(InputError, match="sum to 1"):
        check_probs(p)


@pytest.mark.parametrize("order", ["C", "F"])
def test_long_rows_are_not_rescaled_for_the_rounding_of_their_own_sum(order):
    p = np.full((3, 200_000), 0.3 / 199_999, np.float32, order=order)
    p[:, 0] = 0.7
    assert p.sum(axis=1, dtype=np.float64) == pytest.approx(1, abs=1e-7)
    assert check_probs(p) is p


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_half_precision_is_rescaled_and_said(kind, rng):
    torch = pytest.importorskip("torch")
    p = torch.tensor(rng.dirichlet(np.ones(5), 50)).to(getattr(torch, kind))
    with pytest.warns(InputWarning, match="half precision"):
        got = check_probs(p)
    torch.testing.assert_close(got.sum(dim=1), torch.ones(50), atol=1e-4, rtol=0)


def test_every_part_of_a_stream_is_told_the_same(rng):
    """The command line prints a warning once; its text must not depend on the part."""
    texts = set()
    for decimals in (2, 3):
        with pytest.warns(InputWarning) as said:
            check_probs(rng.dirichlet(np.ones(5), 50).round(decimals))
        texts |= {str(w.message) for w in said}
    assert len(texts) == 1


def test_rounded_torch_rows_are_rescaled():
    torch = pytest.importorskip("torch")
    with pytest.warns(InputWarning, match="rescaled"):
        got = check_probs(torch.tensor([[0.33, 0.33, 0.33]]))
    torch.testing.assert_close(got, torch.full((1, 3), 1 / 3))


@pytest.mark.parametrize("k", [10, 1000, 20_000])
def test_float32_softmax_of_many_classes_sums_to_one(k, rng):
    z = rng.normal(size=(20, k)).astype(np.float32)
    e = np.exp(z)
    check_probs(e / e.sum(axis=1, keepdims=True))


INTEGERS = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("n_classes", [2, 200, 100_000])
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_labels_pass(dtype, n_classes, kind):
    y = np.array([0, 1, 1], dtype)
    if kind == "torch":
        y = pytest.importorskip("torch").as_tensor(y)
    got = check_labels(y, 3, n_classes)
    assert got.tolist() == [0, 1, 1]
    assert str(got.dtype).endswith("int64")


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([0, 1], r"shape \(3,\), got \(2,\)"),
        ([[0], [1], [0]], r"shape \(3,\), got \(3, 1\)"),
        ([0.0, 1.0, 1.0], "integer y_true, got dtype float64"),
        ([0, 1, 2], r"in 0..1, got 2 at row 2"),
        ([0, -1, 1], r"in 0..1, got -1 at row 1"),
        (np.array([0, 255, 1], np.uint8), r"in 0..1, got 255 at row 1"),
        (np.array([0, 1, 2**64 - 1], np.uint64), r"in 0..1, got 18446744073709551615 at row 2"),
        (["a", "b", "c"], "2 different y_true, one per class, got 3: a, b, c"),
        (["a", 1, None], "expected integer y_true"),
        (np.array([0, None, 1], dtype=object), "dtype object"),
    ],
)
def test_labels_are_refused(y, message):
    with pytest.raises(InputError, match=message):
        check_labels(y, 3, 2)


def test_weights():
    np.testing.assert_array_equal(check_weights([1, 0, 2], 3), [1.0, 0.0, 2.0])


@pytest.mark.parametrize(
    ("w", "message"),
    [
        ([1.0, 2.0], r"shape \(3,\), got \(2,\)"),
        ([1.0, -0.5, 1.0], ">= 0, got -0.5 at row 1"),
        ([1.0, np.nan, 1.0], "got nan at row 1"),
        ([1.0, np.inf, 1.0], "got inf at row 1"),
        ([0.0, 0.0, 0.0], "positive sum"),
    ],
)
def test_weights_are_refused(w, message):
    with pytest.raises(InputError, match=message):
        check_weights(w, 3)


def test_errors_are_value_errors_of_this_package():
    assert issubclass(InputError, ValueError)
    assert issubclass(InputError, FocalcalError)


@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_infinite_logits_are_better_given_as_probabilities(value):
    with pytest.raises(InputError, match="remove such rows, or give probabilities instead"):
        check_logits(np.array([[0.0, value]]))
    with pytest.raises(InputError, match=r"remove such rows$"):
        check_logits(np.array([[0.0, np.nan]]))
