"""Data shared by the calibrator tests: labels drawn from a known softmax, so the truth is known."""

from __future__ import annotations

import numpy as np
import pytest


def draw(n: int, k: int, scale: float = 2.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Logits (n, k) and labels drawn from their own softmax: perfectly calibrated at T = 1."""
    rng = np.random.default_rng(seed)
    z = scale * rng.normal(size=(n, k))
    return z, np.argmax(z + rng.gumbel(size=z.shape), axis=1)


def mean_nll(log_p: np.ndarray, y: np.ndarray) -> float:
    """Mean of −log p_y."""
    return -float(np.mean(log_p[np.arange(len(y)), y]))


@pytest.fixture(scope="session")
def calibrated_data():
    return draw
