from __future__ import annotations

from functools import reduce

import pytest

from focalcal.errors import EngineError, InputError, MissingExtraError
from focalcal.scale import StreamEngine, engines, open_engine


def join(a: str, b: str) -> str:
    """Shows how results were grouped."""
    return f"({a}{b})"


@pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 33, 256, 257, 300])
def test_stream_merges_in_the_tree_of_levels(n):
    """The oracle cuts level by level, as the cluster does, and holds everything."""
    level = [str(i) for i in range(n)]
    while len(level) > 1:
        level = [reduce(join, level[i : i + 16]) for i in range(0, len(level), 16)]
    assert StreamEngine(3).map_reduce(str, range(n), join) == level[0]


def test_partitions_are_bundled_and_counted(monkeypatch):
    monkeypatch.setattr(engines, "MAX_TASKS", 4)
    assert engines.bundle(range(9)) == [(0, 1, 2), (3, 4, 5), (6, 7, 8)]
    engine = StreamEngine(2)
    assert engine.map_reduce(int, range(9), lambda a, b: a + b) == 36
    assert engine.passes == 1


def test_progress_ends_at_one_and_errors_come_through():
    seen: list[float] = []
    StreamEngine(2).map_reduce(int, range(50), lambda a, b: a + b, seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    with pytest.raises(ZeroDivisionError):
        StreamEngine(2).map_reduce(lambda x: 1 // x, [1, 0, 2], lambda a, b: a + b)


def test_engines_by_name(monkeypatch):
    with open_engine() as engine:
        assert isinstance(engine, StreamEngine)
    with (
        pytest.raises(InputError, match="expected an engine of stream, dask"),
        open_engine("spark"),
    ):
        pass
    with pytest.raises(InputError, match="--engine dask"), open_engine("stream", "tcp://x:1"):
        pass
    with pytest.raises(InputError, match="at least one thread"):
        StreamEngine(0)
    with pytest.raises(InputError, match="at least one partition"):
        StreamEngine().map_reduce(abs, [], join)
    monkeypatch.setitem(__import__("sys").modules, "distributed", None)
    with pytest.raises(MissingExtraError, match=r"focalcal\[dask\]"), open_engine("dask"):
        pass


def test_no_scheduler_at_the_address():
    dask = pytest.importorskip("dask")
    pytest.importorskip("distributed")
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "0.5s"}),
        pytest.raises(EngineError, match="expected a Dask scheduler at tcp"),
        open_engine("dask", "tcp://127.0.0.1:9"),
    ):
        pass
