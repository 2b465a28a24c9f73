"""What no metric may depend on: order of rows and classes, a constant per row, types, precision."""

from __future__ import annotations

import numpy as np
import pytest

from focalcal import metrics
from focalcal.metrics import METRICS, Sample

INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]


def problem(seed, n=120, k=4):
    """Rows that occur three times each, so that confidences tie.

    Different rows with the same logits in another order tie only up to rounding, and metrics of
    order may then depend on the order of the classes: docs/RELIABILITY.md.
    """
    rng = np.random.default_rng(seed)
    z = np.repeat(np.round(2000 * rng.normal(size=(n // 3, k))) / 1024, 3, axis=0)
    return z, np.argmax(z + rng.gumbel(size=z.shape), axis=1), rng


def check(measure):
    """`measure(y, logits=…)` of the same predictions in other forms."""
    torch = pytest.importorskip("torch")
    for seed in range(5):
        z, y, rng = problem(seed)
        given = z.copy(), y.copy()
        expected = measure(y, logits=z)

        def same(value, expected=expected, **tolerance):
            assert value == pytest.approx(expected, nan_ok=True, **({"abs": 1e-9} | tolerance))

        rows, classes = rng.permutation(len(z)), rng.permutation(z.shape[1])
        same(measure(y[rows], logits=z[rows]))
        same(measure(np.argsort(classes)[y], logits=z[:, classes]))
        same(measure(y, logits=z + rng.choice([0.5, -8.0, 64.0], (len(z), 1))))
        same(measure(y, logits=z.astype(np.float32)), abs=2e-6)
        same(measure(y, logits=np.asfortranarray(z)))
        same(measure(y, np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)))
        for kind in INTEGERS:
            same(measure(y.astype(kind), logits=z))
            same(measure(torch.as_tensor(y.astype(kind)), logits=torch.as_tensor(z)))
        np.testing.assert_array_equal(z, given[0])
        np.testing.assert_array_equal(y, given[1])


def of_declaration(name):
    def measure(y, p=None, **given):
        m = METRICS[name]
        return float(m.of(Sample.read(y, p, m.needs, **given).stats()))

    return measure


@pytest.mark.parametrize("name", METRICS)
def test_every_declared_metric(name):
    check(getattr(metrics, name, None) or of_declaration(name))


@pytest.mark.parametrize(
    "broken",
    [
        lambda y, p=None, logits=None: float((logits if p is None else p)[0][0]),  # row order
        lambda y, p=None, logits=None: float((np.asarray(y) == 0).mean()),  # class order
        lambda y, p=None, logits=None: 0.0 if logits is None else float(logits.sum()),  # constant
        lambda y, p=None, logits=None: float(np.asarray(y).dtype.itemsize),  # type of the labels
    ],
)
def test_the_check_can_fail(broken):
    with pytest.raises(AssertionError):
        check(broken)
