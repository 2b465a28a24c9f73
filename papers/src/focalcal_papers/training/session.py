"""The state of a run in progress: how it is built, saved and restored."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
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
from focalcal_papers.training.config import TrainConfig
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


@dataclass
class Session:
    """A run in progress: `epoch` epochs and then `index` steps are done."""

    config: TrainConfig
    folder: RunFolder
    model: nn.Module
    loss: nn.Module
    source: Any
    step: Step
    processes: Processes
    device: torch.device
    classes: tuple[str, ...]
    epoch: int = 0
    index: int = 0
    seconds: float = 0.0
    best_accuracy: float = -1.0
    rows: list[dict[str, Any]] = field(default_factory=list)
    _graphed: GraphedStep | None = None
    _baked: tuple = ()

    @classmethod
    def start(
        cls,
        config: TrainConfig,
        splits: DataSplits,
        folder: RunFolder,
        device: torch.device,
        processes: Processes,
    ) -> Session:
        """Build everything from the config, then continue from the last checkpoint, if any."""
        session = cls._build(config, splits, folder, device, processes)
        if session.loss.needs_parameters and processes.world > 1:
            raise InputError("expected one process for a loss that differentiates twice")
        if use_graph(config, session.loss, session.source, session.step):
            session._graphed = GraphedStep(session.step)
        remainder = session.sizes[-1]
        if remainder < processes.world:
            raise InputError(
                f"expected at least one sample per process, got a last batch of {remainder}; "
                "set drop_last or another batch_size"
            )
        path = latest_checkpoint(folder.checkpoints, "step")
        if path is not None:
            session._restore(load_checkpoint(path))
        # Dropout differs between processes; a single process keeps the restored state.
        if processes.rank:
            torch.manual_seed(hash((config.seed, processes.rank, session.epoch)))
        return session

    @classmethod
    def opened(cls, folder: RunFolder, splits: DataSplits, device: torch.device) -> Session:
        """An existing run with its chosen weights, for predictions."""
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            session = cls._build(folder.config, splits, folder, device, Processes())
        session.load_chosen()
        return session

    @classmethod
    def _build(
        cls,
        config: TrainConfig,
        splits: DataSplits,
        folder: RunFolder,
        device: torch.device,
        processes: Processes,
    ) -> Session:
        torch.manual_seed(config.seed)
        source = make_batches(splits, config, device)
        model = build_model(config, splits).to(device)
        if config.channels_last:
            model = model.to(memory_format=torch.channels_last)
        loss = build_loss(config, model).to(device)
        step = Step(config, model, loss, source, device, processes)
        return cls(
            config, folder, model, loss, source, step, processes, device, tuple(splits.classes)
        )

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
        """Write a checkpoint: all state for "step", only the weights for "best"."""
        if not self.processes.first:
            return
        tensors = {f"model.{k}": v for k, v in self.model.state_dict().items()}
        state: dict[str, Any] = {"epoch": self.epoch, "index": self.index}
        if kind != "best":
            optimizer, groups = pack_optimizer(self.step.optimizer)
            tensors |= {f"optimizer.{k}": v for k, v in optimizer.items()}
            tensors |= {f"loss.{k}": v for k, v in self.loss.state_dict().items()}
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
        """Put the weights the run ends with, the best or the last, into the model."""
        kind = "best" if self.config.select == "best" else "step"
        path = latest_checkpoint(self.folder.checkpoints, kind)
        if path is None:
            raise FileFormatError(
                f"expected a checkpoint in {self.folder.checkpoints}, got none; "
                "train first with: focalcal train"
            )
        saved = load_checkpoint(path)
        self.model.load_state_dict(saved.section("model"))
        self.epoch, self.index = saved.state["epoch"], saved.state["index"]

    def predictions(self, split: str) -> Predictions:
        """The model's logits and the labels of a split, with where they come from."""
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
    return make_model(config.model, splits.n_classes, **(settings | config.model_settings))


def build_loss(config: TrainConfig, model: nn.Module) -> nn.Module:
    """The config's loss with its reduction, smoothing and, where it asks, the parameters."""
    settings: dict[str, Any] = {"reduction": config.reduction, **config.loss_settings}
    if config.label_smoothing:
        settings["label_smoothing"] = config.label_smoothing
    if config.loss.endswith(CURVATURE):
        settings["parameters"] = [p for p in model.parameters() if p.requires_grad]
    return make_loss(config.loss, **settings)


def _baked_values(loss: nn.Module) -> tuple:
    """What a captured step took from the loss: plain numbers, and where its tensors lie."""
    plain = [
        (name, value)
        for module in loss.modules()
        for name, value in vars(module).items()
        if isinstance(value, int | float | str | tuple) or value is None
    ]
    places = [(name, buffer.data_ptr()) for name, buffer in loss.named_buffers()]
    return (*plain, *places)
