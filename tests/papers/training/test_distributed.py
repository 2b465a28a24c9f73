from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest
import torch

from focalcal.errors import InputError
from focalcal_papers.training import RunFolder, load_splits, train
from focalcal_papers.training.checkpoint import latest_checkpoint, load_checkpoint
from focalcal_papers.training.distributed import Processes, choose_device

CODE = (
    "import sys, torch; torch.set_num_threads(1)\n"
    "from focalcal_papers.training import TrainConfig, train\n"
    "train(TrainConfig.load(sys.argv[1]), None, sys.argv[2], device='cpu')\n"
)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run_two(config, tmp_path):
    """Two gloo processes with the environment that torchrun sets."""
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(config.to_toml())
    shared = {
        **os.environ,
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "GLOO_SOCKET_IFNAME": "lo",
        "USE_LIBUV": "0",
    }
    command = [sys.executable, "-c", CODE, str(recipe), str(tmp_path / "two")]
    workers = [
        subprocess.Popen(
            command,
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        errors = [worker.communicate(timeout=180)[1] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert [worker.returncode for worker in workers] == [0, 0], "\n".join(errors)
    return tmp_path / "two"


@pytest.mark.parametrize(
    "changes",
    [
        {"reduction": "sum", "clip_norm": 2.0, "loss": "fla-53"},
        {"reduction": "mean", "clip_norm": 0.1, "loss": "adafocal", "drops": (1.0,)},
    ],
    ids=["sum", "mean-adafocal"],
)
def test_two_processes_equal_one(config, tmp_path, changes):
    """Batches of 33, the last of 8: the two shares differ in size."""
    config = config.replace(batch_size=33, epochs=2, **changes)
    train(config, None, tmp_path / "one", device="cpu")
    two = run_two(config, tmp_path)
    a, b = (
        load_checkpoint(latest_checkpoint(folder / "checkpoints", "step")).tensors
        for folder in (tmp_path / "one", two)
    )
    names = [name for name in a if name.startswith(("model.", "loss."))]
    assert names
    for name in names:
        torch.testing.assert_close(a[name], b[name], rtol=1e-4, atol=1e-6)
    first, second = (RunFolder(folder).metrics()[-1] for folder in (tmp_path / "one", two))
    assert second["loss"] == pytest.approx(first["loss"], rel=1e-5)
    assert second["test"]["nll"] == pytest.approx(first["test"]["nll"], rel=1e-4)
    assert RunFolder(two).status["state"] == "finished"


def test_shares_deal_out_the_batch():
    where = torch.arange(7)
    shares = [Processes(rank, 3).share(where).tolist() for rank in range(3)]
    assert shares == [[0, 3, 6], [1, 4], [2, 5]]
    assert Processes().share(where) is where
    assert Processes(1, 4).loss_scale("sum", 3, where) == 4
    assert Processes().loss_scale("mean", 3, where) == 1


def test_a_last_batch_too_small_for_all_processes(config, tmp_path):
    from focalcal_papers.training.session import Session

    class Alone(Processes):
        def wrap(self, model):
            return model

    config = config.replace(batch_size=139)
    splits = load_splits(config, None)
    folder = RunFolder.create(tmp_path / "run", config, None)
    with pytest.raises(InputError, match="got a last batch of 1"):
        Session(config, splits, folder, torch.device("cpu"), Alone(0, 2)).start()
    curvature = config.replace(batch_size=32, loss="ce+curvature")
    with pytest.raises(InputError, match="one process for a loss that differentiates twice"):
        Session(curvature, splits, folder, torch.device("cpu"), Alone(0, 2)).start()


def test_devices_by_name(monkeypatch):
    assert choose_device("cpu") == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device() == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setattr(torch, "empty", lambda *_, **__: None)
    assert choose_device() == torch.device("cuda", 3)


@pytest.mark.parametrize("name", ["gpu", "cuda:99", "cpu:x", ""])
def test_a_device_that_is_not_there(name):
    with pytest.raises(InputError, match=f"a GPU of this machine, got device '{name}'"):
        choose_device(name)
