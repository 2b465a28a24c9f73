"""Gathers the rows of all processes under torch.distributed."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def gather_rows(x: Tensor) -> Tensor:
    """x (N, ...) of all processes in rank order, where N may differ; a single process gets x.

    The gradient suits data-parallel training, which averages gradients over processes afterwards:
    each process differentiates through its own rows only, times the number of processes, so that
    the average is the gradient of one process that holds all rows.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return x
    world = dist.get_world_size()
    own = x.detach()
    parts: list[Any] = [None] * world
    dist.all_gather_object(parts, own.cpu())
    parts = [part.to(x.device) for part in parts]
    if x.requires_grad:
        parts[dist.get_rank()] = own + world * (x - own)
    return torch.cat(parts)
