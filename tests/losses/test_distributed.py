"""Two gloo processes on halves of a batch take the step that one process takes on all of it."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing import spawn

from focalcal.losses import AdaFocalLoss, MMCELoss, make_loss
from focalcal.losses.distributed import gather_rows
from processes import leave

NAMES = ["ce", "fl-3", "fla-53", "brier", "mmce-sync", "adafocal"]


def model_and_data():
    torch.manual_seed(0)
    model = nn.Linear(4, 3).double()
    return model, 3 * torch.randn(12, 4, dtype=torch.float64), torch.randint(3, (12,))


def build(name: str):
    return (
        MMCELoss(8.0, normalization="formula", sync=True)
        if name == "mmce-sync"
        else make_loss(name)
    )


def train(name: str, model, x, y, validation) -> dict[str, torch.Tensor]:
    """Three steps, with AdaFocal's update between them."""
    loss = build(name)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    for _ in range(3):
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
        if loss.needs_validation:
            loss.update(*validation)
    out = {f"{name} {k}": v.detach().clone() for k, v in model.state_dict().items()}
    if isinstance(loss, AdaFocalLoss):
        out["gammas"] = loss.gammas.clone()
    return {k.replace("module.", ""): v for k, v in out.items()}


def validation_set():
    generator = torch.Generator().manual_seed(9)
    return 2 * torch.randn(61, 3, generator=generator), torch.arange(61) % 3


def worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    results = {}
    for name in NAMES:
        model, x, y = model_and_data()
        half = slice(6 * rank, 6 * rank + 6)
        logits, labels = validation_set()
        # Shares of unequal size: 30 and 31.
        share = slice(0, 30) if rank == 0 else slice(30, 61)
        parallel = nn.parallel.DistributedDataParallel(model)
        results |= train(name, parallel, x[half], y[half], (logits[share], labels[share]))
    results["rows"] = gather_rows(torch.full((rank + 1, 2), float(rank)))
    torch.save(results, f"{folder}/{rank}.pt")
    leave()


def test_two_processes_equal_one(tmp_path) -> None:
    spawn(worker, args=(str(tmp_path),), nprocs=2)
    both = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    assert both[0]["rows"].tolist() == [[0.0, 0.0], [1.0, 1.0], [1.0, 1.0]]
    for name in NAMES:
        model, x, y = model_and_data()
        alone = train(name, model, x, y, validation_set())
        for key, value in alone.items():
            torch.testing.assert_close(both[0][key], value, rtol=1e-9, atol=1e-12)
            assert torch.equal(both[0][key], both[1][key])


def test_alone_rows_pass_through() -> None:
    x = torch.ones(3, requires_grad=True)
    assert gather_rows(x) is x


@pytest.mark.parametrize("sync", [False, True])
def test_sync_changes_nothing_alone(sync) -> None:
    _, x, y = model_and_data()
    assert torch.equal(MMCELoss(sync=sync)(x, y), MMCELoss()(x, y))
