"""The training loop."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from focalcal.amx import cap_if_forbidden
from focalcal.errors import FocalcalError, InputError
from focalcal.predictions import Predictions
from focalcal_papers.data import DataSplits, load, needs_folder
from focalcal_papers.data.files import PathLike
from focalcal_papers.training.checkpoint import latest_checkpoint
from focalcal_papers.training.config import TrainConfig, learning_rate, usable
from focalcal_papers.training.distributed import choose_device, join_processes
from focalcal_papers.training.folder import RunFolder
from focalcal_papers.training.session import Session
from focalcal_papers.training.traces import (
    describe,
    predict_split,
    save_snapshot,
    weight_norms,
)

LOOK_EVERY = 50
"""Steps on a GPU between checks of the loss and the clock; a check waits for the device."""


class TrainingError(FocalcalError):
    """A run that cannot continue; the message names the step and the saved state."""


@dataclass(frozen=True)
class RunResult:
    """How a run ended: `state` is "finished" or "paused"; `metrics` is its last trace, if any."""

    folder: Path
    state: str
    epoch: int
    steps: int
    seconds: float
    metrics: dict[str, Any] | None


def train(
    config: TrainConfig,
    data_dir: PathLike | None,
    run_dir: PathLike,
    *,
    device: str = "auto",
    stop_after: float | None = None,
    progress: Callable[[float], None] | None = None,
    splits: DataSplits | None = None,
) -> RunResult:
    """Train a model and write a run folder; an interrupted run in that folder is resumed exactly.

    The folder holds config.toml, provenance.json, status.json, metrics.jsonl (one trace per line),
    checkpoints/, snapshots/ and, at the end, predictions/{calibration,test}.npz. `stop_after`
    seconds after the call the run saves a checkpoint and returns with state "paused", but not
    before one step is done; after the last step of an epoch that epoch is evaluated first.
    `progress` is called with the fraction done. `splits`: the data, if already loaded.
    """
    deadline = math.inf if stop_after is None else time.monotonic() + stop_after
    with _environment(config, data_dir, run_dir, device, splits) as s:
        if s is None:
            return _result(RunFolder.open(run_dir))
        steps = len(s.sizes)
        started = time.monotonic() - s.seconds
        while s.epoch < config.epochs:
            s.start_epoch()
            late = due = False
            while s.index < steps:
                s.step.set_rate(learning_rate(config, s.epoch + s.index / steps))
                s.take_step()
                s.seconds = time.monotonic() - started
                if s.device.type == "cpu" or s.index == steps or s.index % LOOK_EVERY == 0:
                    _stop_if_bad(s)
                    if progress is not None and s.processes.first:
                        progress(s.total_steps / (steps * config.epochs))
                    late = s.processes.agree(time.monotonic() > deadline, s.device)
                due = bool(config.checkpoint_steps) and not (
                    s.total_steps % config.checkpoint_steps
                )
                # The last step's checkpoint is that of the finished epoch: a second one of
                # the same step would overwrite the only complete one.
                if (late or due) and s.index < steps:
                    s.save()
                    if late:
                        return _ended(s, "paused")
            _finish_epoch(s)
            last = s.epoch == config.epochs
            if late or due or last or s.epoch % config.checkpoint_every == 0:
                s.save()
            if late and not last:
                return _ended(s, "paused")
        return _ended(s, "finished")


def _finish_epoch(s: Session) -> None:
    """Measure the epoch just run: the trace, the loss's own adaptation, the best weights so far."""
    config = s.config
    row: dict[str, Any] = {
        "epoch": s.epoch + 1,
        "step": s.total_steps,
        "lr": learning_rate(config, s.epoch + (s.index - 1) / s.index),
        "loss": s.mean_loss(),
        "seconds": round(s.seconds, 3),
    }
    s.epoch, s.index = s.epoch + 1, 0
    every = config.trace_every
    traced = s.epoch == config.epochs or (every > 0 and s.epoch % every == 0)
    if traced or config.select == "best" or s.loss.needs_validation:
        logits, labels = predict_split(s.model, s.source, "calibration", config)
        if s.epoch == config.epochs and not torch.isfinite(logits).all():
            # After any other epoch the next step's loss reveals it.
            raise TrainingError(
                f"expected finite logits, got NaN or infinity after step {s.total_steps}, the "
                "last one; lower lr, or set clip_norm"
            )
        if s.loss.needs_validation:
            s.loss.update(logits, labels)
        row["calibration"] = describe(logits, labels)
        accuracy = 1 - row["calibration"]["error"]
        if config.select == "best" and accuracy > s.best_accuracy:
            s.best_accuracy = accuracy
            s.save("best")
    if not s.processes.first:
        return
    if traced:
        train = predict_split(s.model, s.source, "train", config, config.trace_train)
        row["train"] = describe(*train)
        # Recorded for the figures; no decision reads it.
        row["test"] = describe(*predict_split(s.model, s.source, "test", config))
        row |= weight_norms(s.model)
    if s.epoch in config.snapshots:
        save_snapshot(s.folder.snapshot(s.epoch), s.model, s.loss, s.source, config)
    s.rows.append(row)
    s.folder.write_metrics(s.rows)


def _ended(s: Session, state: str) -> RunResult:
    """Write the status and, for a finished run, the predictions of the chosen weights."""
    s.processes.wait()
    if s.processes.first and state == "finished":
        s.load_chosen()
        for split in ("calibration", "test"):
            s.predictions(split).save(s.folder.predictions(split))
        s.epoch, s.index = s.config.epochs, 0  # the chosen weights may be of an earlier epoch
    if s.processes.first:
        s.write_status(state)
    s.processes.wait()
    return _result(s.folder)


def _stop_if_bad(s: Session) -> None:
    bad = s.bad_step()
    if bad is None:
        return
    good = latest_checkpoint(s.folder.checkpoints, "step")
    s.save("failed")
    raise TrainingError(
        f"expected a finite loss, got NaN or infinity at step {bad} (epoch {s.epoch + 1}); the "
        f"last good checkpoint is {good} and the state after that step is kept beside it as "
        "'failed'; lower lr, or set clip_norm"
    )


def _result(folder: RunFolder) -> RunResult:
    status, last = folder.status, next(reversed(folder.metrics()), None)
    return RunResult(
        folder.path, status["state"], status["epoch"], status["step"], status["seconds"], last
    )


@contextlib.contextmanager
def _environment(
    config: TrainConfig,
    data_dir: PathLike | None,
    run_dir: PathLike,
    device: str,
    splits: DataSplits | None,
) -> Iterator[Session | None]:
    """The session of a run, or None if it is finished; failures inside are noted in its status."""
    place = choose_device(device)
    if config.precision == "bf16" and place.type == "cpu":
        cap_if_forbidden()
    cuda = [place] if place.type == "cuda" else []
    if cuda:
        torch.cuda.set_device(place)
    with join_processes(place) as processes, torch.random.fork_rng(cuda), _tuned_kernels():
        folder = RunFolder(Path(run_dir))
        folder.check_free_for(config)
        if folder.status["state"] == "finished":
            yield None
            return
        try:
            splits = load_splits(config, data_dir) if splits is None else splits
            data = splits.described()
            folder.check_data(data)
            session = Session(config, splits, folder, place, processes).start()
            processes.wait()  # all look for a checkpoint before one is written
            if processes.first:
                # Only now, so that unusable settings leave nothing behind.
                RunFolder.create(run_dir, config, data_dir, data)
                session.write_status("running")
                if session.total_steps == 0:
                    session.save()  # detects an unwritable folder now, not after an epoch
            yield session
        except BaseException as error:
            state = "stopped" if isinstance(error, KeyboardInterrupt) else "failed"
            message = str(error) or type(error).__name__
            if folder.exists:
                with contextlib.suppress(OSError):  # the disk may be what failed
                    known = {k: v for k, v in folder.status.items() if k != "state"}
                    folder.write_status(state, **(known | {"message": message}))
            raise


@contextlib.contextmanager
def _tuned_kernels() -> Iterator[None]:
    """Let cuDNN try its algorithms for each shape and keep the fastest; there are few shapes."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def load_splits(config: TrainConfig, data_dir: PathLike | None) -> DataSplits:
    """The config's data; the calibration samples do not depend on the run's seed.

    A relative path in the setting `vectors` is relative to the data's folder.
    """
    if data_dir is None and needs_folder(config.dataset):
        raise InputError(
            f"expected the folder that holds {config.dataset}, got none; give it with --data"
        )
    settings = dict(config.data_settings)
    if data_dir is not None and "vectors" in settings:
        settings["vectors"] = Path(data_dir) / settings["vectors"]
    with usable(config.dataset, config.data_settings):
        return load(config.dataset, data_dir, **settings)


def predict(
    run_dir: PathLike,
    split: str = "test",
    *,
    data_dir: PathLike | None = None,
    device: str = "auto",
) -> Predictions:
    """Logits and labels of a run's final model on "train", "calibration" or "test".

    `data_dir` is by default the folder the run was trained with.
    """
    if split not in ("train", "calibration", "test"):
        raise InputError(f"expected a split of train, calibration, test; got {split!r}")
    return open_run(run_dir, data_dir, device).predictions(split)


def open_run(
    run_dir: PathLike,
    data_dir: PathLike | None = None,
    device: str = "auto",
    splits: DataSplits | None = None,
) -> Session:
    """A run with its final weights and its data: those of `data_dir`, or `splits` if given."""
    folder = RunFolder.open(run_dir)
    place = choose_device(device)
    if folder.config.precision == "bf16" and place.type == "cpu":
        cap_if_forbidden()
    if splits is None:
        splits = load_splits(folder.config, data_dir or folder.provenance["data_dir"])
    return Session.opened(folder, splits, place)
