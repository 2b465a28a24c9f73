"""The state of a run in progress: how it is built, saved and restored."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn

from focalcal.errors import FileFormatError, InputError
from focalcal.losses import make_loss
from focalcal.losses.registry import CURVATURE
from focalcal.predictions import Predictions
from focalcal_papers.data import DataSplits
from focalcal_papers.models import make_model, model_settings
from focalcal_papers.training.batches import make_batches
from focalcal_papers.training.checkpoint import (
    Checkpoint,
    latest_checkpoint,
    load_checkpoint,
    pack_optimizer,
    save_checkpoint,
    unpack_optimizer,
)
from focalcal_papers.training.config import TrainConfig, usable
from focalcal_papers.training.distributed import Processes
from focalcal_papers.training.folder import RunFolder
from focalcal_papers.training.step import (
    GraphedStep,
    Step,
    random_states,
    set_random_states,
    use_graph,
)
from focalcal_papers.training.traces import predict_split


class Session:
    """A run in progress: `epoch` epochs and then `index` steps are done."""

    def __init__(
        self,
        config: TrainConfig,
        splits: DataSplits,
        folder: RunFolder,
        device: torch.device,
        processes: Processes,
    ) -> None:
        torch.manual_seed(config.seed)
        self.config, self.folder, self.device, self.processes = config, folder, device, processes
        self.classes = tuple(splits.classes)
        self.source = make_batches(splits, config, device)
        self.model = build_model(config, splits).to(device)
        if config.channels_last:
            self.model = self.model.to(memory_format=torch.channels_last)
        self.loss = build_loss(config, self.model).to(device)
        self.step = Step(config, self.model, self.loss, self.source, device, processes)
        self.epoch = self.index = 0
        self.seconds, self.best_accuracy = 0.0, -1.0
        self.rows: list[dict[str, Any]] = []
        self._graphed: GraphedStep | None = None
        self._baked: tuple = ()

    def start(self) -> Session:
        """Choose how steps run, and continue from the last checkpoint, if any."""
        processes, last = self.processes, self.sizes[-1]
        if self.loss.needs_parameters and processes.world > 1:
            raise InputError("expected one process for a loss that differentiates twice")
        if use_graph(self.config, self.loss, self.source, self.step):
            self._graphed = GraphedStep(self.step)
        if last < processes.world:
            raise InputError(
                f"expected at least one sample per process, got a last batch of {last}; "
                "set drop_last or another batch_size"
            )
        path = latest_checkpoint(self.folder.checkpoints, "step")
        if path is not None:
            self._restore(load_checkpoint(path))
        # Dropout differs between processes; a single process keeps the restored state.
        if processes.rank:
            torch.manual_seed(hash((self.config.seed, processes.rank, self.epoch)))
        return self

    @classmethod
    def opened(cls, folder: RunFolder, splits: DataSplits, device: torch.device) -> Session:
        """An existing run with its chosen weights, for predictions."""
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            session = cls(folder.config, splits, folder, device, Processes())
        session.load_chosen()
        return session

    @functools.cached_property
    def sizes(self) -> list[int]:
        """Samples in each step of an epoch."""
        whole, rest = divmod(self.source.n, self.config.batch_size)
        keep = rest and (whole == 0 or not self.config.drop_last)
        return [self.config.batch_size] * whole + [rest] * bool(keep)

    @property
    def total_steps(self) -> int:
        """Steps done since the run began."""
        return self.epoch * len(self.sizes) + self.index

    def start_epoch(self) -> None:
        """Set the data order, γ and statistics of the current epoch, `index` steps into it."""
        self.source.start_epoch(self.epoch)
        self.loss.start_epoch(self.epoch, self.config.epochs)
        self.step.start_epoch(position=sum(self.sizes[: self.index]))
        self.model.train()
        baked = _baked_values(self.loss)
        if self._graphed is not None and baked != self._baked:
            self._graphed.forget()
        self._baked = baked

    def take_step(self) -> None:
        """Run the next step."""
        size = self.sizes[self.index]
        (self._graphed or self.step)(size)
        self.index += 1

    def bad_step(self) -> int | None:
        """The first step with a loss that is not finite, if any; waits for the device."""
        step = self.step.bad_step
        if self.processes.world > 1:
            # The largest of −1 and the step, over processes.
            step = step.clone()
            torch.distributed.all_reduce(step, torch.distributed.ReduceOp.MAX)
        step = int(step)
        return step if step >= 0 else None

    def mean_loss(self) -> float:
        """Mean training loss per target of the epoch so far."""
        total = self.processes.total(self.step.loss_sum)
        return float(total / self.processes.total(self.step.samples))

    def save(self, kind: str = "step") -> None:
        """Write a checkpoint: all state for "step", only model and loss for "best"."""
        if not self.processes.first:
            return
        tensors = {f"model.{k}": v for k, v in self.model.state_dict().items()}
        tensors |= {f"loss.{k}": v for k, v in self.loss.state_dict().items()}
        state: dict[str, Any] = {"epoch": self.epoch, "index": self.index}
        if kind != "best":
            optimizer, groups = pack_optimizer(self.step.optimizer)
            tensors |= {f"optimizer.{k}": v for k, v in optimizer.items()}
            tensors |= {f"counters.{k}": v for k, v in self.step.counters.items()}
            tensors |= {f"random.{k}": v for k, v in random_states(self.device).items()}
            state |= {
                "optimizer": groups,
                "seconds": self.seconds,
                "best_accuracy": self.best_accuracy,
                "processes": self.processes.world,
            }
        save_checkpoint(self.folder.checkpoints, kind, self.total_steps, tensors, state)

    def _restore(self, saved: Checkpoint) -> None:
        self.model.load_state_dict(saved.section("model"))
        self.loss.load_state_dict(saved.section("loss"))
        unpack_optimizer(self.step.optimizer, saved.section("optimizer"))
        for name, tensor in saved.section("counters").items():
            self.step.counters[name].copy_(tensor)
        set_random_states(saved.section("random"), self.device)
        self.epoch, self.index = saved.state["epoch"], saved.state["index"]
        self.seconds = saved.state["seconds"]
        self.best_accuracy = saved.state["best_accuracy"]
        self.rows = self.folder.metrics(self.epoch)

    def load_chosen(self) -> None:
        """Load the run's final weights, the best or the last, and γ into model and loss."""
        kind = "best" if self.config.select == "best" else "step"
        path = latest_checkpoint(self.folder.checkpoints, kind)
        if path is None:
            raise FileFormatError(
                f"expected a checkpoint in {self.folder.checkpoints}, got none; "
                "train first with: focalcal train"
            )
        saved = load_checkpoint(path)
        self.model.load_state_dict(saved.section("model"))
        if state := saved.section("loss"):
            self.loss.load_state_dict(state)
        self.epoch, self.index = saved.state["epoch"], saved.state["index"]

    def predictions(self, split: str) -> Predictions:
        """The model's logits and the labels of a split, with their provenance."""
        logits, labels = predict_split(self.model, self.source, split, self.config)
        origin = {
            "config": self.config.to_dict(),
            "split": split,
            "epoch": self.epoch,
            **{k: v for k, v in self.folder.provenance.items() if k != "data_dir"},
        }
        return Predictions(
            logits=logits.cpu().numpy(),
            labels=labels.cpu().numpy(),
            class_names=self.classes,
            provenance=origin,
        )

    def write_status(self, state: str, **more: Any) -> None:
        self.folder.write_status(
            state,
            epoch=self.epoch,
            epochs=self.config.epochs,
            step=self.total_steps,
            seconds=round(self.seconds, 3),
            **more,
        )


def build_model(config: TrainConfig, splits: DataSplits) -> nn.Module:
    """The config's model, with the settings that follow from the data."""
    words = splits.vocabulary
    offered = {
        "input_shape": splits.input_shape,
        "vectors": splits.vectors,
        "vocabulary_size": None if words is None else len(words),
    }
    known = model_settings(config.model)
    settings = {k: v for k, v in offered.items() if k in known and v is not None}
    with usable(config.model, config.model_settings):
        return make_model(config.model, splits.n_classes, **(settings | config.model_settings))


def build_loss(config: TrainConfig, model: nn.Module) -> nn.Module:
    """The config's loss with its reduction, smoothing and, if needed, the parameters."""
    if "reduction" in config.loss_settings:
        raise InputError("expected no reduction in loss_settings; use the setting reduction")
    settings: dict[str, Any] = {"reduction": config.reduction, **config.loss_settings}
    if config.label_smoothing:
        settings["label_smoothing"] = config.label_smoothing
    if config.loss.endswith(CURVATURE):
        settings["parameters"] = [p for p in model.parameters() if p.requires_grad]
    try:
        return make_loss(config.loss, **settings)
    except TypeError as error:
        raise InputError(f"expected settings of the loss {config.loss}: {error}") from error


def _baked_values(loss: nn.Module) -> tuple:
    """What a captured step fixed of the loss: plain numbers, and the addresses of its tensors."""
    plain = [
        (name, value)
        for module in loss.modules()
        for name, value in vars(module).items()
        if isinstance(value, int | float | str | tuple) or value is None
    ]
    places = [(name, buffer.data_ptr()) for name, buffer in loss.named_buffers()]
    return (*plain, *places)
