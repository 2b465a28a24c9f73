"""One optimisation step: batch, forward, loss, gradient, clip, update.

`Step` keeps everything it reads and writes in tensors on the device (position in the epoch,
learning rate, loss statistics), so it never waits for the device and the same code runs eagerly
or, through `GraphedStep`, as one CUDA graph.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from focalcal.errors import InputError
from focalcal_papers.training.config import TrainConfig
from focalcal_papers.training.distributed import Processes


class Step:
    """A step of `size` samples: ``step(size)`` advances the model, the optimizer and `position`.

    `source.batch(where)` turns positions in the epoch's order (B,) into a batch.
    """

    def __init__(
        self,
        config: TrainConfig,
        model: nn.Module,
        loss: nn.Module,
        source: Any,
        device: torch.device,
        processes: Processes,
    ) -> None:
        self.config, self.model, self.loss, self.source = config, model, loss, source
        self.device, self.processes = device, processes
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = make_optimizer(config, self.parameters, device)
        self.forward = processes.wrap(model)
        self.plain_forward = self.forward
        if config.compile:
            self.forward = torch.compile(self.forward, dynamic=False)
        self._rate: float | None = None
        self._arange = torch.arange(config.batch_size, device=device)
        self.position = torch.zeros((), dtype=torch.int64, device=device)
        self.steps = torch.zeros((), dtype=torch.int64, device=device)
        self.bad_step = torch.full((), -1, dtype=torch.int64, device=device)
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=device)
        self.samples = torch.zeros((), dtype=torch.int64, device=device)

    def __call__(self, size: int) -> None:
        where = self.processes.share(self.position + self._arange[:size])
        batch = self.source.batch(where)
        value, count = self._gradient(batch, size)
        if self.config.sam:
            with self._climbed(), _frozen_statistics(self.model):
                self._gradient(batch, size)
        if self.config.clip_norm:
            nn.utils.clip_grad_norm_(self.parameters, self.config.clip_norm)
        self.optimizer.step()
        self.position += size
        self.steps += 1
        self.samples += count
        self.loss_sum += value * count if self.config.reduction == "mean" else value
        first = (self.bad_step < 0) & ~torch.isfinite(value)
        self.bad_step.copy_(torch.where(first, self.steps, self.bad_step))

    def _gradient(self, batch: Any, size: int) -> tuple[Tensor, int]:
        """Fill the gradients from this batch; the loss (its local share) and its target count."""
        config = self.config
        self.optimizer.zero_grad(set_to_none=True)
        whole = size == config.batch_size
        bf16 = config.precision == "bf16"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=bf16):
            logits = (self.forward if whole else self.plain_forward)(batch.inputs)
        # Outside autocast: losses compute in float32.
        value = self.loss(logits, batch.targets)
        if batch.partner is not None:
            first = batch.share[0]
            value = first * value + (1 - first) * self.loss(logits, batch.partner)
        count = len(batch.targets)
        (value * self.processes.loss_scale(config.reduction, count, logits)).backward()
        return value.detach(), count

    @contextlib.contextmanager
    def _climbed(self) -> Iterator[None]:
        """Inside, the parameters are shifted by ρ·g/‖g‖, where SAM takes its gradient."""
        gradients = [p.grad for p in self.parameters]
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        rise = torch._foreach_mul(gradients, self.config.sam / (norm + 1e-12))
        with torch.no_grad():
            torch._foreach_add_(self.parameters, rise)
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_sub_(self.parameters, rise)

    def set_rate(self, rate: float) -> None:
        """Use this learning rate from the next step on."""
        if rate == self._rate:
            return
        self._rate = rate
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def start_epoch(self, position: int = 0) -> None:
        """Begin an epoch's statistics; `position` samples of it are already done."""
        self.position.fill_(position)
        if position == 0:
            self.loss_sum.zero_()
            self.samples.zero_()

    @property
    def counters(self) -> dict[str, Tensor]:
        """The statistics by name, for checkpoints."""
        return {"steps": self.steps, "loss_sum": self.loss_sum, "samples": self.samples}


class GraphedStep:
    """A `Step` replayed as one CUDA graph per batch size: the host launches once per step.

    The learning rate and the statistics live in tensors, so they change without a new capture;
    `forget()` drops the graphs when something that was baked in (a scheduled γ) has changed.
    """

    def __init__(self, step: Step) -> None:
        self.step = step
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, size: int) -> None:
        if size not in self._graphs:
            self._graphs[size] = self._capture(size)
        self._graphs[size].replay()

    def forget(self) -> None:
        """Capture again before the next step."""
        self._graphs.clear()
        # A pool whose graphs are all gone must not be captured into again.
        self._pool = torch.cuda.graph_pool_handle()

    def _capture(self, size: int) -> torch.cuda.CUDAGraph:
        # Warm-up steps choose kernels and create optimizer state; they must leave no trace.
        with _unchanged(self.step):
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(3):
                    self.step.position.zero_()
                    self.step(size)
            torch.cuda.current_stream().wait_stream(stream)
            torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._pool):
                self.step(size)
        except RuntimeError as error:
            raise InputError(
                f"expected a step that a CUDA graph can hold, got one that waits for the device "
                f'({str(error).splitlines()[0]}); set graph = "off"'
            ) from error
        return graph


@contextlib.contextmanager
def _unchanged(step: Step) -> Iterator[None]:
    """Restore the model, optimizer, loss, statistics and random states afterwards, in place."""

    def tensors() -> dict[Any, Tensor]:
        found = {("model", k): v for k, v in step.model.state_dict().items()}
        found |= {("loss", k): v for k, v in step.loss.state_dict().items()}
        for i, p in enumerate(step.parameters):
            for k, v in step.optimizer.state.get(p, {}).items():
                if isinstance(v, Tensor):
                    found["optimizer", i, k] = v
        own = {"position": step.position, "bad_step": step.bad_step, **step.counters}
        return found | {("step", k): v for k, v in own.items()}

    before = {name: value.clone() for name, value in tensors().items()}
    random = random_states(step.device)
    try:
        yield
    finally:
        with torch.no_grad():
            for name, value in tensors().items():
                # Momentum and moments that did not exist yet start from zero.
                value.copy_(before[name]) if name in before else value.zero_()
        set_random_states(random, step.device)


def random_states(device: torch.device) -> dict[str, Tensor]:
    """The states of the generators a step draws from."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_random_states(states: dict[str, Tensor], device: torch.device) -> None:
    """Restore them; a run that moves to a GPU keeps the GPU's own state."""
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)


def make_optimizer(
    config: TrainConfig, parameters: list[nn.Parameter], device: torch.device
) -> torch.optim.Optimizer:
    """The config's optimizer; on CUDA fused, with the rate in a tensor to allow capture."""
    cuda = device.type == "cuda"
    decay = config.weight_decay
    if config.optimizer == "adagrad":
        return torch.optim.Adagrad(parameters, config.lr, weight_decay=decay)
    rate = torch.tensor(config.lr, device=device) if cuda else config.lr
    if config.optimizer == "adam":
        return torch.optim.Adam(
            parameters, rate, weight_decay=decay, fused=cuda or None, capturable=cuda
        )
    return torch.optim.SGD(
        parameters,
        rate,
        momentum=config.momentum,
        nesterov=config.nesterov,
        weight_decay=decay,
        fused=cuda or None,
    )


def use_graph(config: TrainConfig, loss: nn.Module, source: Any, step: Step) -> bool:
    """Whether this run's step can be captured; `graph = "on"` is an error if it cannot."""
    obstacles = {
        f"the device is {step.device.type}": step.device.type != "cuda",
        "adagrad cannot be captured": config.optimizer == "adagrad",
        "the run is distributed": step.processes.world > 1,
        "the loss differentiates twice": loss.needs_parameters,
        "the batches are built on the host": not source.capturable,
    }
    reasons = [reason for reason, holds in obstacles.items() if holds]
    if config.graph == "on" and reasons:
        raise InputError(f"expected a step that a CUDA graph can hold, but {reasons[0]}")
    return config.graph != "off" and not reasons


@contextlib.contextmanager
def _frozen_statistics(model: nn.Module) -> Iterator[None]:
    """Freeze BatchNorm's running statistics, as SAM's second pass uses perturbed weights."""
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    momenta = [m.momentum for m in norms]
    for m in norms:
        m.momentum = 0.0
    try:
        yield
    finally:
        for m, momentum in zip(norms, momenta):
            m.momentum = momentum
