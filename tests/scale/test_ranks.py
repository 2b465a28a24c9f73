"""Calibration metrics of training processes: each rank's statistics, gathered and merged."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import numpy as np
import pytest

from focalcal import metrics

pytest.importorskip("torch")

CODE = """
import os, sys
import numpy as np, torch.distributed as dist
from focalcal.metrics import CalibrationStats
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
data = np.load(sys.argv[1])
mine = CalibrationStats(3).update(data["y"][rank::world], data["p"][rank::world])
texts = [None] * world
dist.all_gather_object(texts, mine.to_json())
merged = CalibrationStats.from_json(texts[0])
for text in texts[1:]:
    merged.merge(CalibrationStats.from_json(text))
print(repr(merged.compute()["ece"].value), repr(merged.compute()["nll"].value), flush=True)
os._exit(0)  # gloo's threads and a usual exit may disturb each other
"""


def test_two_gloo_processes_equal_one(tmp_path, rng):
    p, y = rng.dirichlet(np.ones(3), size=401), rng.integers(0, 3, 401)
    np.savez(tmp_path / "d.npz", p=p, y=y)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    shared |= {"GLOO_SOCKET_IFNAME": "lo", "USE_LIBUV": "0"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", CODE, str(tmp_path / "d.npz")],
            env={**os.environ, **shared, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    found = [process.communicate(timeout=120) for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], found
    assert found[0][0] == found[1][0]
    ece, nll = map(float, found[0][0].split())
    assert ece == pytest.approx(metrics.ece(y, p), abs=1e-12)
    assert nll == pytest.approx(metrics.nll(y, p), abs=1e-12)
