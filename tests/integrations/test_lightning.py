"""The Lightning callback: what it logs and saves is what the validation logits say."""

from __future__ import annotations

import logging

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pl = pytest.importorskip("pytorch_lightning", reason="pytorch-lightning is not installed")

from focalcal import metrics  # noqa: E402
from focalcal.calibrators import FocalTemperatureScaling, load  # noqa: E402
from focalcal.errors import InputError  # noqa: E402
from focalcal.integrations.lightning import (  # noqa: E402
    CalibrationCallback,
    logits_and_labels,
)

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning warns of workers, loggers and more


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)

    def training_step(self, batch, _):
        return torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])

    def validation_step(self, batch, _):
        return {"logits": self.layer(batch[0]), "labels": batch[1]}

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.fixture
def loader(sharp_data):
    z, y = sharp_data(200, 3)
    data = torch.utils.data.TensorDataset(
        torch.as_tensor(z, dtype=torch.float32), torch.as_tensor(y)
    )
    return torch.utils.data.DataLoader(data, batch_size=64)


def trainer(tmp_path, callback, **options):
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    return pl.Trainer(
        max_epochs=2,
        accelerator="cpu",
        default_root_dir=tmp_path,
        callbacks=[callback],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )


def test_metrics_figure_and_calibrator(tmp_path, loader):
    from pytorch_lightning.loggers import TensorBoardLogger

    callback = CalibrationCallback(3, FocalTemperatureScaling(search="gradient"))
    run = trainer(tmp_path, callback, logger=TensorBoardLogger(tmp_path))
    torch.manual_seed(0)
    net = Net()
    run.fit(net, loader, loader)
    x, y = loader.dataset.tensors
    logits = net.layer(x).detach()
    expected = metrics.ece(y, torch.softmax(logits, dim=1))
    assert run.callback_metrics["val_ece"].item() == pytest.approx(expected, abs=1e-6)
    assert callback.evaluation_.n == 200
    saved = load(next(tmp_path.rglob("calibrator.json")))
    twin = FocalTemperatureScaling(search="gradient").fit(logits, y)
    np.testing.assert_allclose(saved.predict_proba(logits), twin.predict_proba(logits), atol=1e-5)
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    log = events.EventAccumulator(run.log_dir).Reload()
    assert "val_reliability" in log.Tags()["images"]
    assert len(log.Scalars("val_ece")) == 2


def test_own_reader_and_path_without_logger(tmp_path, loader):
    file = tmp_path / "cal.json"
    callback = CalibrationCallback(3, path=file, read=lambda out, batch: (out["logits"], batch[1]))
    trainer(tmp_path, callback, logger=False).fit(Net(), loader, loader)
    assert load(file).temperature_ > 0


def test_without_validation_nothing_is_saved(tmp_path, loader):
    callback = CalibrationCallback(3)
    trainer(tmp_path, callback, logger=False).fit(Net(), loader)
    assert not hasattr(callback, "calibrator_")


def test_every_process_asks_for_the_log_folder(tmp_path):
    """`Trainer.log_dir` broadcasts: asked by the first process alone, the run would hang."""
    asked = []

    class SecondProcess:
        is_global_zero = False
        default_root_dir = tmp_path

        @property
        def log_dir(self):
            asked.append(True)

    callback = CalibrationCallback(3)
    callback._last = torch.randn(60, 3), torch.arange(60) % 3
    callback.on_fit_end(SecondProcess(), None)
    assert asked
    assert not any(tmp_path.iterdir())


def test_a_calibrator_by_name(tmp_path, loader):
    file = tmp_path / "cal.json"
    trainer(tmp_path, CalibrationCallback(3, "vector", file), logger=False).fit(
        Net(), loader, loader
    )
    assert load(file).method == "vector"


def test_wrong_settings_are_refused_before_training(tmp_path, loader):
    with pytest.raises(InputError, match="expected a method of"):
        CalibrationCallback(3, "temprature")
    with pytest.raises(InputError, match=r"expected a metric of accuracy, .*; got 'eece'"):
        CalibrationCallback(3, metrics=("ece", "eece"))
    net = Net()
    before = net.layer.weight.detach().clone()
    with pytest.raises(InputError, match="4 classes"):
        trainer(tmp_path, CalibrationCallback(4), logger=False).fit(net, loader, loader)
    assert torch.equal(net.layer.weight, before)


def test_a_sanity_check_without_labels_passes(tmp_path, loader):
    y = loader.dataset.tensors[1]
    y[:128] = -100  # two batches
    callback = CalibrationCallback(3)
    trainer(tmp_path, callback, logger=False).fit(Net(), loader, loader)
    assert callback.evaluation_.n == 72


def test_outputs_without_logits_are_refused():
    with pytest.raises(InputError, match="validation_step to return a dict with 'logits'"):
        logits_and_labels(torch.zeros(3), None)
    batch = (None, "labels")
    assert logits_and_labels({"logits": "z"}, batch) == ("z", "labels")
