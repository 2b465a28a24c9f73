"""A real Dask cluster of two processes on this machine: the same bits, also when one is killed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from unittest.mock import Mock

import pytest

from focalcal import calibrators
from focalcal.errors import EngineError, InputError
from focalcal.scale import DaskEngine, Source, StreamEngine, apply, fit, statistics

from .conftest import write

pytest.importorskip("distributed")

# The event loop of a killed worker leaves unclosed sockets behind; that is the point of the test.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
FAST = {"sample_rows": 2000}
LONELY = """
from distributed import LocalCluster
if __name__ == '__main__':
    import time
    c = LocalCluster(
        n_workers=1,
        threads_per_worker=1,
        processes=False,
        dashboard_address='127.0.0.1:0',
        protocol='tcp',
    )
    print(c.scheduler_address, flush=True)
    time.sleep(120)
"""


@contextlib.contextmanager
def lonely(**environment: str):
    """A scheduler with one worker in a process of its own, and its address."""
    process = subprocess.Popen(
        [sys.executable, "-c", LONELY],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture(scope="module")
def cluster():
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    with DaskEngine(workers=2) as engine:
        yield engine


def slow_abs(x: int) -> int:
    time.sleep(0.05)
    return abs(x)


def add(a: int, b: int) -> int:
    return a + b


def test_same_bits_as_streaming(cluster, pattern, tmp_path):
    source = Source.open(pattern)
    assert statistics(source, cluster).to_json() == statistics(source).to_json()
    here, there = (fit(source, engine=e, **FAST) for e in (StreamEngine(), cluster))
    assert here.calibrator.temperature_ == there.calibrator.temperature_
    assert here.passes == there.passes
    first = apply(source, here.calibrator, tmp_path / "a")
    second = apply(source, here.calibrator, tmp_path / "b", cluster)
    assert [p.read_bytes() for p in first] == [p.read_bytes() for p in second]


def test_a_killed_worker_changes_nothing(cluster, pattern):
    """Half-way into the first pass of a fit, SIGKILL: Dask repeats what was lost."""
    source = Source.open(pattern)
    killed: list[int] = []

    def kill_one(fraction: float) -> None:
        if not killed:
            info = cluster.client.run(os.getpid)
            killed.append(next(iter(info.values())))
            os.kill(killed[0], signal.SIGKILL)

    kill_in_time = threading.Timer(0.25, kill_one, (0.0,))
    kill_in_time.start()
    total = cluster.map_reduce(slow_abs, range(-40, 0), add)
    kill_in_time.join()
    assert killed
    assert total == sum(range(41))

    killed.clear()
    expected = fit(source, **FAST).calibrator
    found = fit(source, engine=cluster, progress=kill_one, **FAST)
    assert killed
    assert found.calibrator.temperature_ == expected.temperature_
    assert found.passes >= 2
    assert killed[0] not in cluster.client.run(os.getpid).values()


def test_errors_of_workers_are_ours(cluster, memory, tmp_path):
    z, y = memory[0].copy(), memory[1]
    z[-1, 0] = float("nan")
    source = Source.open(write(tmp_path, z, y))
    with pytest.raises(InputError, match=r"part-2.parquet.*expected finite logits"):
        statistics(source, cluster)


def test_workers_of_this_machine_leave_errors_to_the_caller(monkeypatch, capfd, tmp_path, memory):
    """Not even a heartbeat that the end of the cluster interrupts prints a traceback."""
    import distributed.scheduler

    beat, late = distributed.scheduler.Scheduler.heartbeat_worker, threading.Event()

    async def slow(self, *args, **options):
        answer = beat(self, *args, **options)
        late.set()
        await asyncio.sleep(60)
        return answer

    monkeypatch.setattr(distributed.scheduler.Scheduler, "heartbeat_worker", slow)
    bad = memory[0].copy()
    bad[-1] = float("nan")
    source = Source.open(write(tmp_path, bad, memory[1]))
    with DaskEngine(workers=1) as engine:
        with pytest.raises(InputError, match="expected finite logits"):
            statistics(source, engine)
        assert late.wait(30)
    assert "Traceback" not in capfd.readouterr().err


def test_interrupting_a_pass_leaves_the_cluster_usable(cluster):
    def stop(_: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cluster.map_reduce(slow_abs, range(64), add, stop)
    assert cluster.map_reduce(abs, [-1, -2], add) == 3


@pytest.mark.parametrize(
    ("code", "got"),
    [
        ("raise ModuleNotFoundError('no focalcal here')", "no focalcal here"),
        ("__version__ = '0.0.1'", "0.0.1"),
    ],
)
def test_workers_without_this_version_are_one_clear_error(code, got, tmp_path):
    """Functions such a worker cannot load would kill it again and again, and the pass hang."""
    (tmp_path / "focalcal.py").write_text(code)
    expected = pytest.raises(EngineError, match=rf"on every Dask worker, got .*{got}")
    with lonely(PYTHONPATH=str(tmp_path)) as (_, address), DaskEngine(address) as engine, expected:
        engine.map_reduce(abs, [-1, -2], add)


def test_a_connection_that_closes_before_a_pass_is_one_clear_error(monkeypatch):
    """Dask tells it in two ways, by how far it has come."""
    with lonely() as (_, address), DaskEngine(address) as engine:
        for error in (RuntimeError("it is closed"), AttributeError("'NoneType' is closed")):
            monkeypatch.setattr(engine.client, "run", Mock(side_effect=error))
            with pytest.raises(EngineError, match="is closed"):
                engine.map_reduce(abs, [-1, -2], add)


def test_a_lost_scheduler_is_one_clear_error(pattern, tmp_path, memory):
    """A scheduler of its own process, killed while a pass runs; nothing partial is written."""
    import dask

    with (
        dask.config.set({"distributed.comm.timeouts.connect": "1s"}),
        lonely() as (process, address),
        DaskEngine(address) as engine,
    ):
        assert engine.map_reduce(abs, [-1, -2], add) == 3
        killer = threading.Timer(0.5, process.kill)
        killer.start()
        with pytest.raises(EngineError, match="the Dask cluster failed"):
            engine.map_reduce(slow_abs, range(200), add)
        killer.join()
        fitted = calibrators.make("temperature").fit(*memory)
        with pytest.raises(EngineError):
            apply(Source.open(pattern), fitted, tmp_path / "out", engine)
    assert not (tmp_path / "out").exists()
