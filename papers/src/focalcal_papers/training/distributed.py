"""Several processes acting as one: shares of a batch, gradient sums, agreement on stopping."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from focalcal.errors import InputError


@dataclass(frozen=True)
class Processes:
    """This process's rank among those started by `torchrun`; a single process is rank 0 of 1.

    Processes take the samples of each global batch in turn, so the batches and their order do not
    depend on the number of processes.
    """

    rank: int = 0
    world: int = 1

    @property
    def first(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self.rank == 0

    def share(self, where: Tensor) -> Tensor:
        """This process's part of a global batch."""
        return where[self.rank :: self.world] if self.world > 1 else where

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model with its gradients averaged over processes after each backward pass."""
        if self.world == 1:
            return model
        return nn.parallel.DistributedDataParallel(model)

    def loss_scale(self, reduction: str, count: int, like: Tensor) -> Tensor | float:
        """Factor on this process's loss that undoes the averaging of gradients over processes.

        A summed loss counts `world` times, so that gradients add up as in one process; a mean
        over `count` targets also by its share of all targets, since shares may differ in size.
        """
        if self.world == 1:
            return 1.0
        if reduction == "sum":
            return float(self.world)
        total = torch.tensor(float(count), device=like.device)
        dist.all_reduce(total)
        return self.world * count / total

    def total(self, value: Tensor) -> Tensor:
        """The sum of a statistic over processes."""
        if self.world > 1:
            value = value.clone()
            dist.all_reduce(value)
        return value

    def agree(self, flag: bool, device: torch.device) -> bool:
        """Whether `flag` is set in any process: they must stop together to avoid a deadlock."""
        if self.world == 1:
            return flag
        votes = torch.tensor(int(flag), device=device)
        dist.all_reduce(votes)
        return bool(votes.item())

    def wait(self) -> None:
        """Wait for all processes."""
        if self.world > 1:
            dist.barrier()


@contextlib.contextmanager
def join_processes(device: torch.device) -> Iterator[Processes]:
    """Join the group that `torchrun` describes in the environment, if there is one."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield Processes()
        return
    joined = not dist.is_initialized()
    if joined:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Processes(dist.get_rank(), dist.get_world_size())
    finally:
        if joined:
            dist.destroy_process_group()


def choose_device(name: str = "auto") -> torch.device:
    """The named device; `auto` is this process's GPU if there is one, else the CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"expected auto, cpu or a GPU of this machine, got device {name!r}: {reason}"
        ) from error
    return device
