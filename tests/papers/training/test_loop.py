from __future__ import annotations

import contextlib
import itertools
import json
import signal
import struct
import subprocess
import sys
import time

import numpy as np
import pytest
import safetensors.torch
import torch

from focalcal.errors import FileFormatError, InputError
from focalcal.predictions import Predictions
from focalcal_papers.training import RunFolder, TrainingError, load_splits, predict, train
from focalcal_papers.training import checkpoint as checkpoint_module
from focalcal_papers.training import loop as loop_module
from focalcal_papers.training.checkpoint import latest_checkpoint, load_checkpoint
from focalcal_papers.training.config import TrainConfig


def final_tensors(run_dir, prefix="model"):
    path = latest_checkpoint(run_dir / "checkpoints", "step")
    return load_checkpoint(path).section(prefix)


def assert_same_weights(first, second):
    a, b = final_tensors(first), final_tensors(second)
    assert a.keys() == b.keys()
    assert all(torch.equal(a[k], b[k]) for k in a)


def test_a_run_leaves_a_complete_folder(config, tmp_path):
    result = train(config.replace(snapshots=(2,), snapshot_logits=True), None, tmp_path / "run")
    assert (result.state, result.epoch, result.steps) == ("finished", 3, 15)
    folder = RunFolder.open(tmp_path / "run")
    assert folder.config.epochs == 3
    assert folder.status["state"] == "finished"
    assert {"commit", "versions", "hardware"} <= folder.provenance.keys()
    rows = folder.metrics()
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    splits = load_splits(config, None)
    for name, n in (("train", 140), ("calibration", 20), ("test", 40)):
        assert rows[-1][name]["n"] == n
    for split in ("calibration", "test"):
        saved = Predictions.load(folder.predictions(split))
        assert np.array_equal(saved.labels, getattr(splits, split).labels)
        assert saved.provenance["config"]["model"] == "mlp"
        again = predict(tmp_path / "run", split)
        assert np.array_equal(again.logits, saved.logits)
        accuracy = (saved.logits.argmax(1) == saved.labels).mean()
        assert rows[-1][split]["error"] == pytest.approx(1 - accuracy)
    with np.load(folder.snapshot(2)) as snapshot:
        assert len(snapshot["counts"]) == 25
        assert snapshot["counts"].sum() == 140
        assert snapshot["logits"].shape == (140, 3)


def test_a_finished_run_is_not_run_again(config, tmp_path, monkeypatch):
    first = train(config, None, tmp_path / "run")
    monkeypatch.setattr(loop_module.Session, "start", None)
    assert train(config, None, tmp_path / "run") == first


def test_training_leaves_the_callers_random_numbers_alone(config, tmp_path):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train(config, None, tmp_path / "run")
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize(
    "changes",
    [
        {"loss": "fl-2"},
        {"loss": "fls-531", "reduction": "sum", "clip_norm": 2.0},
        {"loss": "flsd-53", "optimizer": "adam", "lr": 1e-2},
        {"loss": "adafocal"},
        {"loss": "mmce"},
        {"loss": "brier", "mixup": 0.2},
        {"loss": "dual-focal-3", "sam": 0.05},
        {"loss": "ce", "label_smoothing": 0.1, "schedule": "cosine"},
        {"loss": "ce+curvature", "loss_settings": {"tau": 0.01}},
        {"loss": "ce", "precision": "bf16"},
        {"loss": "ce", "optimizer": "adagrad", "nesterov": False, "drop_last": True},
    ],
    ids=lambda c: "-".join(map(str, c.values())),
)
def test_every_kind_of_run_learns_and_pauses_without_a_trace(config, tmp_path, changes):
    """The interrupted run stops after every step; its weights equal the uninterrupted one's."""
    config = config.replace(epochs=2, **changes)
    whole = train(config, None, tmp_path / "whole")
    for _ in range(20):
        part = train(config, None, tmp_path / "parts", stop_after=0.0)
        if part.state == "finished":
            break
        assert part.state == "paused"
    assert part.state == "finished"
    assert_same_weights(tmp_path / "whole", tmp_path / "parts")
    for name in ("train", "calibration", "test"):
        assert part.metrics[name] == whole.metrics[name]
    assert part.metrics["loss"] == whole.metrics["loss"]
    assert whole.metrics["train"]["error"] < 0.5


def test_adafocal_adapts_to_the_calibration_split_and_resumes_its_state(config, tmp_path):
    config = config.replace(loss="adafocal")
    train(config, None, tmp_path / "run")
    gammas = final_tensors(tmp_path / "run", "loss")["gammas"]
    assert len(set(gammas.tolist())) > 1


@pytest.mark.parametrize("write", range(5, 9))
def test_killed_between_the_files_of_a_checkpoint(config, tmp_path, monkeypatch, write):
    """AdaFocal changes its state after an epoch's last step, so that step has one checkpoint."""
    config = config.replace(loss="adafocal", checkpoint_steps=1)
    whole = train(config, None, tmp_path / "whole")

    class Kill(BaseException):
        pass

    writes = itertools.count(1)

    def killed(path, text):
        if next(writes) == write:
            raise Kill
        write_text(path, text)

    write_text = checkpoint_module.write_text
    monkeypatch.setattr(checkpoint_module, "write_text", killed)
    with contextlib.suppress(Kill):
        train(config, None, tmp_path / "killed")
    monkeypatch.setattr(checkpoint_module, "write_text", write_text)
    again = train(config, None, tmp_path / "killed")
    assert again.metrics["test"] == whole.metrics["test"]
    assert_same_weights(tmp_path / "whole", tmp_path / "killed")


def test_killed_inside_an_epoch_and_resumed(config, tmp_path):
    """SIGKILL gives the process no chance to tidy up; dropout makes the generator's state count."""
    config = TrainConfig(
        dataset="synthetic_images",
        model="vit",
        model_settings={"patch": 8, "depth": 1, "width": 16, "heads": 2, "dropout": 0.2},
        data_settings={"n_train": 200, "n_test": 20, "calibration": 20},
        loss="fl-3",
        epochs=3,
        batch_size=16,
        lr=0.01,
        checkpoint_steps=5,
    )
    train(config, None, tmp_path / "whole")
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(config.to_toml())
    code = (
        "import sys, time, torch; torch.set_num_threads(1)\n"
        "from focalcal_papers.training import TrainConfig, train\n"
        "from focalcal_papers.training.session import Session\n"
        "step = Session.take_step\n"
        "def slow(self):\n"
        "    step(self); print(self.total_steps, flush=True); time.sleep(0.02)\n"
        "Session.take_step = slow\n"
        "train(TrainConfig.load(sys.argv[1]), None, sys.argv[2])\n"
    )
    killed = tmp_path / "killed"
    command = [sys.executable, "-c", code, str(recipe), str(killed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if int(line) >= 18:  # the second epoch's seventh step; an epoch has 12
                process.send_signal(signal.SIGKILL)
                break
        process.stdout.read()
    assert process.returncode == -signal.SIGKILL
    saved = load_checkpoint(latest_checkpoint(killed / "checkpoints", "step")).state
    assert (saved["epoch"], saved["index"]) == (1, 3)
    result = train(config, None, killed)
    assert result.state == "finished"
    assert_same_weights(tmp_path / "whole", killed)
    whole, resumed = (RunFolder(tmp_path / n).metrics() for n in ("whole", "killed"))
    assert [r["test"] for r in whole] == [r["test"] for r in resumed]


def test_nan_stops_with_the_step_and_keeps_a_good_checkpoint(config, tmp_path):
    config = config.replace(lr=1e30, epochs=2, momentum=0.0, weight_decay=0.0)
    with pytest.raises(TrainingError, match=r"at step (\d+) \(epoch 1\)") as caught:
        train(config, None, tmp_path / "run")
    checkpoints = tmp_path / "run" / "checkpoints"
    good = latest_checkpoint(checkpoints, "step")
    assert str(good) in str(caught.value)
    assert all(torch.isfinite(v).all() for v in load_checkpoint(good).section("model").values())
    assert load_checkpoint(latest_checkpoint(checkpoints, "failed")).tensors
    status = RunFolder.open(tmp_path / "run").status
    assert status["state"] == "failed"
    assert "at step" in status["message"]


def test_weights_that_diverge_in_the_last_step(config, tmp_path):
    """No step follows whose loss could tell."""
    huge = config.replace(lr=1e30, epochs=1, momentum=0.0, weight_decay=0.0, batch_size=140)
    with pytest.raises(TrainingError, match=r"finite logits, .* after step 1, the last one"):
        train(huge, None, tmp_path / "run")
    assert RunFolder.open(tmp_path / "run").status["state"] == "failed"


def test_a_disk_that_fills_up_loses_no_earlier_checkpoint(config, tmp_path, monkeypatch):
    """The third write fails half-way; the second must still be whole, and the run continues."""
    real = safetensors.torch.save
    writes = []

    def failing(tensors):
        writes.append(1)
        if len(writes) == 3:
            raise OSError(28, "No space left on device")
        return real(tensors)

    monkeypatch.setattr(safetensors.torch, "save", failing)
    with pytest.raises(OSError, match="No space left"):
        train(config, None, tmp_path / "run")
    monkeypatch.undo()
    state = load_checkpoint(latest_checkpoint(tmp_path / "run" / "checkpoints", "step")).state
    assert state["epoch"] == 1
    assert RunFolder.open(tmp_path / "run").status["state"] == "failed"
    train(config, None, tmp_path / "run")
    train(config, None, tmp_path / "whole")
    assert_same_weights(tmp_path / "run", tmp_path / "whole")


def test_a_folder_that_cannot_be_written_is_found_before_training(config, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(loop_module.Session, "take_step", None)
    with pytest.raises(OSError):
        train(config, None, tmp_path / "file" / "run")
    # A run folder that lost its permission: no step is taken before the first write.
    train_dir = tmp_path / "run"
    RunFolder.create(train_dir, config, None)
    (train_dir / "checkpoints").write_text("in the way")
    with pytest.raises(OSError):
        train(config, None, train_dir)


def test_best_is_chosen_by_calibration_accuracy_alone(config, tmp_path):
    config = config.replace(
        select="best",
        epochs=8,
        lr=0.5,
        data_settings={"n_train": 160, "n_test": 40, "calibration": 20, "spread": 2.0},
    )
    train(config, None, tmp_path / "run")
    folder = RunFolder.open(tmp_path / "run")
    rows = folder.metrics()
    errors = [row["calibration"]["error"] for row in rows]
    best = errors.index(min(errors))
    saved = load_checkpoint(latest_checkpoint(folder.checkpoints, "best"))
    assert saved.state["epoch"] == best + 1
    predictions = Predictions.load(folder.predictions("test"))
    error = 1 - (predictions.logits.argmax(1) == predictions.labels).mean()
    assert error == pytest.approx(rows[best]["test"]["error"])
    assert predictions.provenance["epoch"] == best + 1
    assert folder.status["epoch"] == 8  # how far the run went, not which weights it chose


def test_traces_only_when_asked(config, tmp_path):
    config = config.replace(epochs=5, trace_every=2, trace_train=30, checkpoint_every=3)
    train(config, None, tmp_path / "run")
    rows = RunFolder.open(tmp_path / "run").metrics()
    assert ["test" in row for row in rows] == [False, True, False, True, True]
    assert rows[-1]["train"]["n"] == 30
    assert all(row["loss"] > 0 for row in rows)


def test_another_config_in_the_same_folder_is_refused(config, tmp_path):
    train(config, None, tmp_path / "run")
    with pytest.raises(InputError, match=r"got lr = 0.5 instead of 0.2"):
        train(config.replace(lr=0.5), None, tmp_path / "run")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("")
    with pytest.raises(InputError, match="expected an empty folder"):
        train(config, None, tmp_path / "full")


def test_a_run_continues_with_its_own_data_alone(tmp_path):
    config = TrainConfig(
        dataset="fashion_mnist",
        model="logistic",
        epochs=2,
        data_settings={"calibration": 8},
        augment="none",
    )
    for name in ("one", "moved", "other"):
        (tmp_path / name).mkdir()
        seed = np.random.default_rng(int(name == "other"))
        for part in ("train", "t10k"):
            images, labels = seed.integers(256, size=(32, 28, 28)), seed.integers(10, size=32)
            for kind, values in (("images-idx3", images), ("labels-idx1", labels)):
                head = struct.pack(f">4B{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
                content = head + values.astype(np.uint8).tobytes()
                (tmp_path / name / f"{part}-{kind}-ubyte").write_bytes(content)
    run = tmp_path / "run"
    assert train(config, tmp_path / "one", run, stop_after=0).state == "paused"
    with pytest.raises(InputError, match=r"began with, from .*one, got others; .* with --data"):
        train(config, tmp_path / "other", run)
    assert train(config, tmp_path / "moved", run).state == "finished"


def test_what_cannot_be_predicted(config, tmp_path):
    with pytest.raises(FileFormatError, match="expected a run folder"):
        predict(tmp_path, "test")
    RunFolder.create(tmp_path / "run", config, None)
    with pytest.raises(FileFormatError, match="expected a checkpoint"):
        predict(tmp_path / "run", "test")
    with pytest.raises(InputError, match="expected a split of"):
        predict(tmp_path / "run", "dev")


def test_bf16_on_a_cpu_looks_for_forbidden_instructions_first(config, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(loop_module, "cap_if_forbidden", lambda: asked.append("cap"))
    train(config.replace(epochs=1), None, tmp_path / "plain", device="cpu")
    assert asked == []
    train(config.replace(epochs=1, precision="bf16"), None, tmp_path / "half", device="cpu")
    predict(tmp_path / "half", device="cpu")
    assert asked == ["cap", "cap"]


def test_missing_data_folder(tmp_path):
    config = TrainConfig(dataset="cifar10", model="mlp")
    with pytest.raises(InputError, match="give it with --data"):
        load_splits(config, None)


def test_progress_is_called_with_the_fraction_done(config, tmp_path):
    fractions = []
    train(config, None, tmp_path / "run", progress=fractions.append)
    assert 0 < fractions[0] < fractions[1]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1


def test_status_and_metrics_are_plain_json(config, tmp_path):
    started = time.time()
    train(config, None, tmp_path / "run")
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert 0 < status["seconds"] < time.time() - started + 1
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert all("NaN" not in line for line in lines)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("loss", ["ce", "fls-531", "flsd-53", "adafocal", "mmce", "brier"])
@pytest.mark.parametrize("graph", ["on", "off"])
def test_on_a_gpu_a_run_pauses_and_resumes(tmp_path, loss, graph):
    """Kernels there are not deterministic, so the two runs are close, not equal."""
    config = TrainConfig(
        dataset="synthetic_images",
        model="resnet20",
        data_settings={"n_train": 400, "n_test": 40, "calibration": 40},
        loss=loss,
        graph=graph,
        epochs=7,
        batch_size=64,
        lr=0.01,
        precision="bf16",
    )
    whole = train(config, None, tmp_path / "whole", device="cuda")
    part = train(config, None, tmp_path / "parts", device="cuda", stop_after=0.0)
    while part.state == "paused":
        part = train(config, None, tmp_path / "parts", device="cuda", stop_after=0.0)
    assert part.steps == whole.steps
    assert part.metrics["loss"] == pytest.approx(whole.metrics["loss"], rel=0.2)
    assert part.metrics["weight_norm"] == pytest.approx(whole.metrics["weight_norm"], rel=0.02)
