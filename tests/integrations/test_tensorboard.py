"""TensorBoard: every finite metric and the diagram are written at their step."""

from __future__ import annotations

import pytest

pytest.importorskip("matplotlib", reason="matplotlib is not installed")

from focalcal import metrics
from focalcal._arrays import softmax
from focalcal.integrations.tensorboard import log_evaluation


class Recorder:
    def __init__(self):
        self.scalars, self.figures = {}, {}

    def add_scalar(self, name, value, step):
        self.scalars[name, step] = value

    def add_figure(self, name, figure, step):
        self.figures[name, step] = figure


@pytest.fixture
def predictions(sharp_data):
    z, y = sharp_data(200, 3)
    return y, softmax(z)


def test_evaluations_have_intervals(predictions):
    writer, found = Recorder(), metrics.evaluate(*predictions, resamples=20)
    log_evaluation(writer, found, 7)
    assert writer.scalars["calibration/ece", 7] == found["ece"].value
    assert writer.scalars["calibration/ece_low", 7] == found["ece"].low
    assert len(writer.figures["calibration/reliability", 7].axes) >= 1


def test_streams_have_values_and_infinite_ones_are_left_out():
    stats = metrics.CalibrationStats(2).update([0, 1], [[1.0, 0.0], [1.0, 0.0]])
    writer = Recorder()
    log_evaluation(writer, stats.compute(), 0, prefix="test")
    assert writer.scalars["test/accuracy", 0] == 0.5
    assert ("test/nll", 0) not in writer.scalars


def test_the_real_writer_takes_them(predictions, tmp_path):
    torch_tensorboard = pytest.importorskip(
        "torch.utils.tensorboard", reason="tensorboard is not installed"
    )
    with torch_tensorboard.SummaryWriter(tmp_path) as writer:
        log_evaluation(writer, metrics.CalibrationStats(3).update(*predictions).compute(), 1)
    assert list(tmp_path.glob("events.*"))
