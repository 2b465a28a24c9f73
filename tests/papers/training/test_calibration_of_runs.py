"""What the losses are for: cross-entropy ends over-confident, focal loss better calibrated."""

from __future__ import annotations

import pytest

from focalcal_papers.recipes import FOLDER
from focalcal_papers.training import TrainConfig, train


def both(config, data_dir, tmp_path):
    return [
        train(config.replace(loss=loss), data_dir, tmp_path / loss).metrics["test"]
        for loss in ("ce", "fl-3")
    ]


@pytest.mark.slow
def test_fashion_mnist(shared_data, tmp_path):
    """5,000 images: measured elsewhere 8.2 % for cross-entropy and 1.8 % for γ = 3."""
    config = TrainConfig.load(FOLDER / "fashion-mnist-mlp.toml").replace(
        trace_every=0, checkpoint_every=40
    )
    ce, focal = both(config, shared_data / "fashion_mnist", tmp_path)
    assert ce["ece"] > 0.05
    assert ce["confidence"] > 1 - ce["error"] + 0.05
    assert focal["ece"] < 0.5 * ce["ece"]
    assert focal["error"] < ce["error"] + 0.02


def test_synthetic(tmp_path):
    config = TrainConfig(
        dataset="blobs",
        model="mlp",
        data_settings={"n_train": 500, "n_test": 2000, "calibration": 100, "spread": 1.5},
        model_settings={"hidden": 64, "layers": 3},
        epochs=60,
        batch_size=64,
        optimizer="adam",
        lr=3e-3,
        weight_decay=0.0,
        schedule="constant",
        reduction="mean",
        clip_norm=0.0,
        trace_every=0,
        checkpoint_every=60,
    )
    ce, focal = both(config, None, tmp_path)
    assert ce["confidence"] > 1 - ce["error"] + 0.05
    assert focal["ece"] < 0.8 * ce["ece"]
