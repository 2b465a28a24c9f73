"""Trackers get every finite metric and the diagram at their step; cards and badges say the same."""

from __future__ import annotations

import time
import xml.etree.ElementTree as ElementTree
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="matplotlib is not installed")

from matplotlib.figure import Figure

from focalcal import metrics
from focalcal._arrays import softmax
from focalcal.errors import InputError
from focalcal.figures import classwise_reliability_panel, plot_reliability
from focalcal.integrations.tracking import badge, log_evaluation, model_card


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


def test_mlflow_keeps_them_in_its_own_files(predictions, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="no working mlflow", exc_type=ImportError)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri(tmp_path.as_uri())
    mlflow.set_experiment("calibration")
    found = metrics.evaluate(*predictions, resamples=20)
    with mlflow.start_run() as run:
        log_evaluation(mlflow, found, 3)
    logged = mlflow.get_run(run.info.run_id).data.metrics
    assert logged["calibration/ece"] == pytest.approx(found["ece"].value)
    assert list(tmp_path.rglob("reliability-3.png"))


def test_what_mlflow_is_told(predictions):
    told = {}
    mlflow = SimpleNamespace(
        log_metrics=lambda values, step: told.update(values, step=step),
        log_figure=lambda figure, name: told.update(figure=name),
    )
    found = metrics.evaluate(*predictions, resamples=20)
    log_evaluation(mlflow, found, 3)
    assert told["calibration/ece"] == found["ece"].value
    assert (told["step"], told["figure"]) == (3, "calibration/reliability-3.png")


def test_weights_and_biases_keeps_them_offline(predictions, tmp_path):
    wandb = pytest.importorskip("wandb", reason="wandb is not installed")
    found = metrics.evaluate(*predictions, resamples=20)
    with wandb.init(mode="offline", dir=tmp_path, project="calibration") as run:
        log_evaluation(run, found, 3)
    (log,) = tmp_path.rglob("*.wandb")
    deadline = time.monotonic() + 30  # on a busy machine its own process writes later
    while b"calibration/ece_low" not in log.read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert list(tmp_path.rglob("*.png"))


def test_something_else_is_refused(predictions):
    found = metrics.CalibrationStats(3).update(*predictions).compute()
    with pytest.raises(InputError, match="SummaryWriter"):
        log_evaluation(SimpleNamespace(), found, 0)


def test_the_card_is_metadata_and_a_table(predictions):
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    found = metrics.evaluate(*predictions, resamples=20)
    card = model_card(found, model='a "good" one', dataset="digits")
    _, head, text = card.split("---\n", 2)
    (entry,) = yaml.safe_load(head)["model-index"]
    assert entry["name"] == 'a "good" one'
    values = {m["type"]: m["value"] for m in entry["results"][0]["metrics"]}
    assert values["ece"] == pytest.approx(found["ece"].value, rel=1e-5)
    assert f"| ece | {found['ece'].value:.4f} | {found['ece'].low:.4f}" in text


def test_the_badge_is_an_image_that_says_the_ece(predictions):
    found = metrics.evaluate(*predictions, resamples=20)
    root = ElementTree.fromstring(badge(found))
    assert f"{100 * found['ece'].value:.1f} %" in root.get("aria-label")
    assert "#2e7d32" not in badge(found)  # over-confident by construction


def test_a_model_card_shows_what_is_infinite_or_has_no_interval():
    found = metrics.evaluate([0, 1], [[0.0, 1.0], [0.0, 1.0]], resamples=20)
    text = model_card(found, model="m", dataset="two\nlines")
    assert "| nll | ∞ | – |" in text
    assert "2 samples of two lines, " in text
    one = metrics.evaluate([0], [[0.9, 0.1]], resamples=20)
    assert "\n1 sample of d, " in model_card(one, model="m", dataset="d")
    assert "nan" not in model_card(one, model="m", dataset="d")


def test_names_are_no_formulas_and_none_is_left_out_of_the_legend():
    figure, names = Figure(), ("$\\frac$", "_hidden", "a$b$c")
    panel = classwise_reliability_panel(
        [0, 1, 2], np.eye(3) * 0.7 + 0.1, names=names, title="5 $ or 6 $"
    )
    ax = figure.subplots()
    assert plot_reliability(panel, ax) is ax
    figure.canvas.draw()
    shown = [t.get_text().replace(r"\$", "$") for t in ax.get_legend().get_texts()]
    assert tuple(shown) == names
