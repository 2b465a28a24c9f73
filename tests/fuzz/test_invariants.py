"""What no calibrator may depend on, on tied data: order, a constant per row, types, precision."""

from __future__ import annotations

import warnings
from random import Random

import numpy as np
import pytest

from focalcal.calibrators import METHODS, make
from focalcal.calibrators.to_onnx import _run, build

from .conftest import count, run_cases

INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
TOLERANCE = {"isotonic": 5e-3, "auto": 1e-2}  # steep lines between close scores
QUANTILES = ("histogram", "bbq")  # of class 1, if there are two: ties fall to one side


def tied_problem(random: Random) -> tuple[np.ndarray, np.ndarray]:
    """Rounded logits, or the votes of a forest: many equal scores, N = 120."""
    rng = np.random.default_rng(random.getrandbits(63))
    n, k = 120, random.randint(2, 5)
    z = random.choice([1.0, 3.0]) * rng.normal(size=(n, k))
    y = np.argmax(z + rng.gumbel(size=z.shape), axis=1)
    if random.random() < 0.5:
        return np.round(2 * z) / 2, y
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    votes = np.stack([rng.multinomial(20, row) for row in p]) / 20
    return np.log(np.maximum(votes, 1e-4)), y


@pytest.mark.parametrize("method", METHODS)
def test_fits_to_tied_data(method):
    pytest.importorskip("onnx")
    torch = pytest.importorskip("torch")
    tolerance = TOLERANCE.get(method, 1e-4)

    def case(random: Random) -> None:
        z, y = tied_problem(random)
        given, labels = z.copy(), y.copy()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fitted = make(method).fit(z, y)
            expected = fitted.predict_proba(z)

            single = fitted.predict_proba(z.astype(np.float32))
            np.testing.assert_allclose(single, expected, atol=tolerance)
            dtype = random.choice(["float32", "float64"])
            exported = _run(build(fitted, dtype=dtype), z.astype(dtype))
            np.testing.assert_allclose(exported, expected, atol=tolerance)
            # One constant per row; multiples of a half leave tied scores tied.
            constant = np.array(random.choices([0.5, -8.0, 64.0], k=len(z)))[:, None]
            np.testing.assert_allclose(fitted.predict_proba(z + constant), expected, atol=tolerance)

            kind = random.choice(INTEGERS)
            typed = y.astype(kind)
            if random.random() < 0.5:
                again = make(method).fit(torch.as_tensor(z), torch.as_tensor(typed))
            else:
                again = make(method).fit(z, typed)
            np.testing.assert_allclose(again.predict_proba(z), expected, atol=tolerance)

            moved = make(method).fit(z + constant, y).predict_proba(z)
            np.testing.assert_allclose(moved, expected, atol=tolerance)
            if method not in QUANTILES or z.shape[1] > 2:
                order = list(range(z.shape[1]))
                random.shuffle(order)
                places = np.argsort(order)
                permuted = make(method).fit(z[:, order], places[y]).predict_proba(z[:, order])
                np.testing.assert_allclose(permuted[:, places], expected, atol=tolerance)
        np.testing.assert_array_equal(z, given)
        np.testing.assert_array_equal(y, labels)
        count(f"invariants of {method}", "held")

    run_cases(0.1 / len(METHODS), case)
