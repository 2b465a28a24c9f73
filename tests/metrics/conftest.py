"""Cases that the metric tests share."""

from __future__ import annotations

import numpy as np
import pytest


def _draw(
    rng: np.random.Generator, n: int, k: int, scale: float = 2.0, overconfidence: float = 1.5
):
    """Labels drawn from a softmax, and the softmax of the same logits made over-confident."""
    z = scale * rng.normal(size=(n, k))
    y = np.argmax(z + rng.gumbel(size=(n, k)), axis=1)
    e = np.exp(overconfidence * z - (overconfidence * z).max(axis=1, keepdims=True))
    return y, e / e.sum(axis=1, keepdims=True)


@pytest.fixture
def draw():
    """`draw(rng, n, k)`: labels and over-confident probabilities (n, k)."""
    return _draw


@pytest.fixture(params=["multiclass", "tied", "binary", "top1"])
def case(request):
    """(y_true, y_prob): ten classes; many ties; two columns; a forecast of an event."""
    rng = np.random.default_rng(7)
    if request.param == "multiclass":
        return _draw(rng, 500, 10)
    if request.param == "tied":
        y, p = _draw(rng, 500, 3)
        p = np.round(p[:, :2], 1)
        p[:, 1] = np.minimum(p[:, 1], np.round(1 - p[:, 0], 1))
        return y, np.column_stack([p, np.round(1 - p.sum(axis=1), 1).clip(0)])
    if request.param == "binary":
        return _draw(rng, 300, 2)
    p = rng.random(300)
    return (rng.random(300) < p**2).astype(np.int64), p
