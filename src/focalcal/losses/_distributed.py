"""Rows of every process, in rank order; alone, the rows as they are."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


def world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def gather_rows(x: Tensor) -> Tensor:
    """Concatenate x (N, ...) over processes, whose N may differ.

    The gradient is right for data-parallel training, where gradients are averaged over processes
    afterwards: each process differentiates through its own rows only, `world` times as strongly,
    so that the average is the gradient of one process that holds all rows.
    """
    world = world_size()
    if world == 1:
        return x
    own = x.detach().contiguous()
    size = torch.tensor([len(own)], device=own.device)
    sizes = [torch.empty_like(size) for _ in range(world)]
    dist.all_gather(sizes, size)
    sizes = [int(s) for s in sizes]
    padded = own.new_zeros((max(sizes), *own.shape[1:]))
    padded[: len(own)] = own
    parts = [torch.empty_like(padded) for _ in range(world)]
    dist.all_gather(parts, padded)
    parts = [part[:n] for part, n in zip(parts, sizes)]
    if x.requires_grad:
        parts[dist.get_rank()] = own + world * (x - own)
    return torch.cat(parts)
