"""Two processes with half the data each equal one process with all of it."""

import os
import socket

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from focalcal.curvature import (
    GGNOperator,
    HessianOperator,
    hessian_trace,
    sum_over_processes,
    top_eigenvalues,
)
from processes import leave


def cross_entropy(logits, target):
    return nn.functional.cross_entropy(logits, target, reduction="none")


def measure(rank, size, reduce):
    torch.set_num_threads(1)
    g = torch.Generator().manual_seed(0)
    x = torch.randn(9, 4, generator=g, dtype=torch.float64)
    y = torch.randint(0, 3, (9,), generator=g)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    # Unequal shares, so that a mean of means would be wrong.
    mine = [(x, y)] if size == 1 else [[(x[:2], y[:2])], [(x[2:5], y[2:5]), (x[5:], y[5:])]][rank]
    hessian = HessianOperator(model, cross_entropy, mine, reduce=reduce)
    ggn = GGNOperator(model, cross_entropy, mine, reduce=reduce)
    return [
        hessian.total_weight,
        hessian_trace(hessian, max_probes=40).value,
        top_eigenvalues(hessian, which="magnitude").values.item(),
        (ggn @ torch.ones(ggn.shape[0])).sum().item(),
        hessian.gradient().sum().item(),
    ]


def worker(rank, port, folder):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.save(measure(rank, 2, sum_over_processes), f"{folder}/{rank}.pt")
    leave()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_two_processes_equal_one(tmp_path):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(worker, (port, str(tmp_path)), nprocs=2)
    alone = measure(0, 1, None)
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert found == pytest.approx(alone, rel=1e-9)
