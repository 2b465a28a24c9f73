"""The settings of a training run: one frozen dataclass, read from and written to TOML."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import json
import math
import tomllib
import typing
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from focalcal.errors import FileFormatError, InputError
from focalcal.losses.registry import CURVATURE
from focalcal_papers.data.files import PathLike


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Everything that determines a run's outcome, and nothing else (`train` takes the folders).

    The defaults are the published CIFAR recipe: SGD, lr 0.1, ×0.1 at 150 and 250 of 350 epochs,
    batch 128, the loss *summed* over the batch and the gradient norm clipped at 2.

    >>> TrainConfig(dataset="cifar10", model="resnet18", epochs=35).milestones
    (15.0, 25.0)
    """

    dataset: str
    model: str
    loss: str = "ce"
    data_settings: dict[str, Any] = field(default_factory=dict)
    model_settings: dict[str, Any] = field(default_factory=dict)
    loss_settings: dict[str, Any] = field(default_factory=dict)
    seed: int = 0

    epochs: int = 350
    batch_size: int = 128
    """Total over all processes of a distributed run."""
    drop_last: bool = False
    """Leave out an epoch's last batch when it is smaller than the others."""
    augment: Literal["crop-flip", "crop", "none"] = "crop-flip"
    """For images only: padding by 4 and a random crop, and a random mirroring."""

    optimizer: Literal["sgd", "adam", "adagrad"] = "sgd"
    lr: float = 0.1
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 5e-4
    schedule: Literal["step", "cosine", "constant"] = "step"
    drops: tuple[float, ...] = (150.0, 250.0)
    """Epochs at which the step schedule multiplies the rate, of a run of `drops_of` epochs."""
    drops_of: float = 350.0
    drop_factor: float = 0.1
    warmup_epochs: float = 0.0

    reduction: Literal["mean", "sum"] = "sum"
    """With `clip_norm`, this decides whether focal loss ends calibrated or under-confident."""
    clip_norm: float = 2.0
    """Largest global gradient norm; 0 means no clipping."""
    label_smoothing: float = 0.0
    mixup: float = 0.0
    """α of mixup's Beta(α, α); 0 means none."""
    sam: float = 0.0
    """ρ of sharpness-aware minimisation; 0 means none."""

    select: Literal["last", "best"] = "last"
    """The weights a run ends with: the last ones, or those with the best calibration accuracy."""

    precision: Literal["float32", "bf16"] = "float32"
    channels_last: bool = True
    graph: Literal["auto", "on", "off"] = "auto"
    """Replay the whole step as a CUDA graph; auto: if the optimizer and loss allow it."""
    compile: bool = False
    """Fuse the model's kernels with torch.compile: slower start, faster steps."""

    trace_every: int = 1
    """Epochs between evaluations; 0: only after the last."""
    trace_train: int = 10_000
    """Training samples evaluated for a trace; 0: all."""
    eval_batch_size: int = 1000
    snapshots: tuple[int, ...] = ()
    """Epochs after which reliability and gradient norms of the training set are kept."""
    snapshot_logits: bool = False
    checkpoint_every: int = 1
    """Epochs between checkpoints; the last epoch always has one."""
    checkpoint_steps: int = 0
    """Steps between checkpoints inside an epoch; 0: none."""

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            value = _coerce(f.name, getattr(self, f.name), _TYPES[f.name])
            object.__setattr__(self, f.name, value)
        for name in ("epochs", "batch_size", "eval_batch_size", "checkpoint_every"):
            _check(getattr(self, name) >= 1, name, "at least 1", getattr(self, name))
        for name in ("lr", "drops_of", "drop_factor"):
            value = getattr(self, name)
            _check(0 < value < _LARGEST, name, f"> 0 and < {_LARGEST:g}", value)
        for name in _AT_LEAST_ZERO:
            value = getattr(self, name)
            _check(0 <= value < _LARGEST, name, f">= 0 and < {_LARGEST:g}", value)
        _check(self.label_smoothing < 1, "label_smoothing", "in [0, 1)", self.label_smoothing)
        _check(self.momentum < 1, "momentum", "in [0, 1)", self.momentum)
        usable = self.optimizer == "sgd" and self.momentum > 0
        expected = "used with optimizer 'sgd' and momentum > 0"
        _check(usable or not self.nesterov, "nesterov", expected, self.nesterov)
        twice = self.compile and self.loss.endswith(CURVATURE)
        _check(not twice, "compile", "false for a loss that differentiates twice", self.compile)
        increasing = list(self.drops) == sorted(self.drops) and all(d > 0 for d in self.drops)
        _check(increasing, "drops", "increasing and positive", self.drops)
        inside = all(1 <= e <= self.epochs for e in self.snapshots)
        _check(inside, "snapshots", f"epochs in 1..{self.epochs}", self.snapshots)

    @property
    def milestones(self) -> tuple[float, ...]:
        """`drops` scaled to this run's number of epochs."""
        return tuple(drop * self.epochs / self.drops_of for drop in self.drops)

    def replace(self, **changes: Any) -> TrainConfig:
        """A copy with changed settings, which are checked again."""
        _check_names(changes)
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, strings, lists and dicts, as for TOML and JSON."""
        plain = dataclasses.asdict(self)
        return {k: list(v) if isinstance(v, tuple) else v for k, v in plain.items()}

    @classmethod
    def from_dict(cls, settings: dict[str, Any]) -> TrainConfig:
        """The config with these settings; an unknown name is an error that suggests the nearest."""
        _check_names(settings)
        missing = [name for name in ("dataset", "model") if name not in settings]
        if missing:
            raise InputError(f"expected the settings dataset and model, got no {missing[0]}")
        return cls(**settings)

    def to_toml(self) -> str:
        """The config as a TOML recipe."""
        settings = self.to_dict()
        tables = {k: settings.pop(k) for k in list(settings) if isinstance(settings[k], dict)}
        lines = [f"{key} = {_toml(value)}" for key, value in settings.items()]
        for name, table in tables.items():
            if table:
                lines += ["", f"[{name}]", *(f"{k} = {_toml(v)}" for k, v in table.items())]
        return "\n".join(lines) + "\n"

    @classmethod
    def load(cls, path: PathLike) -> TrainConfig:
        """Read a TOML recipe."""
        path = Path(path)
        if not path.is_file():
            raise FileFormatError(f"expected a TOML recipe, got no file at {path}")
        try:
            settings = tomllib.loads(path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise FileFormatError(f"expected TOML in {path}: {error}") from error
        try:
            return cls.from_dict(settings)
        except InputError as error:
            raise InputError(f"{path}: {error}") from error


@contextlib.contextmanager
def usable(name: str, settings: dict[str, Any]) -> Iterator[None]:
    """Blame the user's `settings` of `name`, if there are any, for errors inside."""
    try:
        yield
    except (TypeError, RuntimeError) as error:
        if not settings:
            raise
        raise InputError(f"expected usable settings of {name}, got {settings}: {error}") from error


def learning_rate(config: TrainConfig, epoch: float) -> float:
    """The rate `epoch` epochs (a fraction inside an epoch) into the run.

    step: lr·factor^(number of milestones passed), constant within an epoch as in the papers;
    cosine: lr·(1 + cos(π·epoch/epochs))/2; both after a linear warm-up over `warmup_epochs`.

    >>> config = TrainConfig(dataset="cifar10", model="resnet18", lr=0.1, epochs=350)
    >>> [round(learning_rate(config, epoch), 6) for epoch in (0, 149.9, 150, 250)]
    [0.1, 0.1, 0.01, 0.001]
    """
    rate = config.lr
    if config.schedule == "step":
        # A milestone between two epochs takes effect at the next whole one.
        rate *= config.drop_factor ** sum(math.floor(epoch) >= m for m in config.milestones)
    elif config.schedule == "cosine":
        rate *= (1 + math.cos(math.pi * min(1.0, epoch / config.epochs))) / 2
    if epoch < config.warmup_epochs:
        rate *= epoch / config.warmup_epochs
    return rate


_TYPES = typing.get_type_hints(TrainConfig)
_LARGEST = 3e38
"""About the largest float32, to which optimizers convert their settings."""
_AT_LEAST_ZERO = (
    *("seed", "momentum", "weight_decay", "warmup_epochs", "clip_norm", "label_smoothing"),
    *("mixup", "sam", "trace_every", "trace_train", "checkpoint_steps"),
)


def _check_names(settings: dict[str, Any]) -> None:
    for name in settings:
        if name not in _TYPES:
            near = difflib.get_close_matches(name, _TYPES, n=1)
            nearest = f"the nearest known one is {near[0]!r}" if near else None
            known = nearest or f"known: {', '.join(_TYPES)}"
            raise InputError(f"unknown setting {name!r}; {known}")


def _check(holds: bool, name: str, expected: str, got: Any) -> None:
    if not holds:
        raise InputError(f"expected {name} {expected}, got {got}")


def _coerce(name: str, value: Any, kind: Any) -> Any:
    """`value` as the annotated type; only integers to floats and lists to tuples are converted."""
    origin = typing.get_origin(kind)
    if origin is Literal:
        choices = typing.get_args(kind)
        if value not in choices:
            raise InputError(f"expected {name} to be one of {', '.join(choices)}, got {value!r}")
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise InputError(f"expected {name} to be a list, got {value!r}")
        return tuple(_coerce(name, item, typing.get_args(kind)[0]) for item in value)
    if origin is dict:
        if not isinstance(value, dict):
            raise InputError(f"expected {name} to be a table of settings, got {value!r}")
        return dict(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise InputError(f"expected {name} to be of type {kind.__name__}, got {value!r}")
    return value


def _toml(value: Any) -> str:
    # JSON's strings, numbers, booleans and lists of those are TOML as well.
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k} = {_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    return json.dumps(value, ensure_ascii=False)
