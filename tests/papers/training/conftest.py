"""Small configs, and one thread: these models are too small to gain from more."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from focalcal_papers.training import TrainConfig  # noqa: E402


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def config() -> TrainConfig:
    """A run of well under a second: 140 clusters' points, a small perceptron, 5 steps an epoch."""
    return TrainConfig(
        dataset="blobs",
        model="mlp",
        data_settings={"n_train": 160, "n_test": 40, "calibration": 20, "spread": 0.5},
        model_settings={"hidden": 16},
        epochs=3,
        batch_size=32,
        lr=0.2,
        reduction="mean",
        clip_norm=0.0,
    )
