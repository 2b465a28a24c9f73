"""Data shared by the integration tests: labels drawn from a known softmax."""

from __future__ import annotations

import numpy as np
import pytest


def draw(n, k, scale=2.0, seed=0):
    """Logits (n, k) that are twice too sharp for labels drawn from softmax(logits / 2)."""
    rng = np.random.default_rng(seed)
    z = scale * rng.normal(size=(n, k))
    return 2 * z, np.argmax(z + rng.gumbel(size=z.shape), axis=1)


@pytest.fixture(scope="session")
def sharp_data():
    return draw
