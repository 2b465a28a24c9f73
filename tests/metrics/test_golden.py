"""Published networks: values that the papers and independent programs print."""

from __future__ import annotations

import numpy as np
import pytest

from focalcal import metrics
from focalcal._arrays import softmax


@pytest.fixture(scope="module")
def flsd53(shared_data):
    with np.load(shared_data / "logits" / "cifar10_resnet50_flsd53.npz") as f:
        return f["test_labels"], softmax(f["test_logits"].astype(np.float64))


def test_resnet50_flsd53(flsd53):
    y, p = flsd53
    assert metrics.accuracy(y, p) == 0.9502
    assert metrics.nll(y, p) == pytest.approx(0.1755, abs=5e-5)
    assert metrics.ece(y, p) == pytest.approx(0.015516, abs=5e-7)
    assert metrics.adaptive_ece(y, p) == pytest.approx(0.0156, abs=5e-5)


@pytest.mark.parametrize(
    ("net", "expected"),
    [("resnet110_c10", 0.0475035), ("densenet40_c10", 0.0550027), ("resnet110_c100", 0.1848045)],
)
def test_top1_files(shared_data, net, expected):
    with np.load(shared_data / "logits" / "markus93_top1_5nets_hollance.npz") as f:
        correct = f[f"{net}__label"] == f[f"{net}__pred"]
        confidence = f[f"{net}__conf"]
    assert metrics.ece(correct, confidence) == pytest.approx(expected, abs=1e-7)
    assert metrics.ece(correct, confidence.astype(np.float64)) == pytest.approx(expected, abs=1e-7)
