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
    assert metrics.ece(correct, confidence=confidence) == pytest.approx(expected, abs=1e-7)
    assert metrics.ece(correct, confidence=confidence.astype(np.float64)) == pytest.approx(
        expected, abs=1e-7
    )


@pytest.mark.parametrize(
    ("file", "net", "accuracy", "nll", "ece"),
    [
        ("cifar100", "densenet-bc-100-cifar-100", 0.7541, 1.2256, 0.1422),
        ("cifar100", "wideresnet-16-4-cifar-100", 0.7543, 0.9564, 0.0581),
        ("cifar100", "lenet-5-cifar-100", 0.1246, 3.813, 0.0149),
        ("cifar10", "wideresnet-16-4-cifar-10", None, None, 0.0537),
        ("cifar10", "lenet-5-cifar-10", None, None, 0.1079),
    ],
)
def test_probability_files(shared_data, file, net, accuracy, nll, ece):
    with np.load(shared_data / "logits" / f"{file}_test_probs_netcal.npz") as f:
        y, p = f["labels"], f[net]
    assert metrics.ece(y, p) == pytest.approx(ece, abs=6e-5)
    if accuracy is not None:
        assert metrics.accuracy(y, p) == pytest.approx(accuracy, abs=1e-9)
        assert metrics.nll(y, p) == pytest.approx(nll, abs=5e-4)


@pytest.mark.parametrize(
    ("net", "error", "ece"),
    [
        ("resnet20", 0.0827, 0.0532),
        ("resnet32", 0.0737, 0.0508),
        ("resnet44", 0.0690, 0.0469),
        ("resnet56", 0.0661, 0.0464),
    ],
)
def test_logit_files(shared_data, net, error, ece):
    with np.load(shared_data / "logits" / "cifar10_test_logits_4resnets_akamaster.npz") as f:
        y, p = f["labels"], softmax(f[net].astype(np.float64))
    assert metrics.error(y, p) == pytest.approx(error, abs=1e-9)
    assert metrics.ece(y, p) == pytest.approx(ece, abs=5.1e-5)


def test_streaming_and_test_of_calibration_on_a_published_network(flsd53):
    y, p = flsd53
    stats = metrics.CalibrationStats(10)
    for part in np.array_split(np.arange(len(y)), 7):
        stats.update(y[part], p[part])
    result = stats.compute()
    assert result["ece"].value == pytest.approx(metrics.ece(y, p), abs=1e-13)
    for name in ("adaptive_ece", "ks_error", "auroc_of_confidence", "smooth_ece"):
        exact = getattr(metrics, name)(y, p)
        assert abs(result[name].value - exact) <= result[name].error_bound < 2e-3
    assert metrics.calibration_test(y, p, resamples=199).p_value == 0.005
    high = metrics.high_confidence(y, p)
    assert (high.share, high.n) == (0.6033, 6033)
    assert high.accuracy == pytest.approx(0.9960, abs=5e-5)
