"""Row blocks: every row once, in order, the same with and without threads."""

from __future__ import annotations

import os
import threading

import pytest

from focalcal import _blocks
from focalcal._blocks import available_cores, map_blocks, one_thread


@pytest.mark.parametrize(("n", "size"), [(0, 4), (1, 4), (4, 4), (10, 4), (1000, 7)])
@pytest.mark.parametrize("threads", [1, 4])
def test_every_row_once_in_order(n, size, threads, monkeypatch):
    monkeypatch.setattr(_blocks, "available_cores", lambda: threads)
    rows = [i for part in map_blocks(lambda s: list(range(n))[s], n, size) for i in part]
    assert rows == list(range(n))


def test_errors_come_through(monkeypatch):
    monkeypatch.setattr(_blocks, "available_cores", lambda: 4)
    with pytest.raises(ZeroDivisionError):
        map_blocks(lambda s: 1 / (s.start - 50), 100, 10)


def test_cores(monkeypatch):
    assert available_cores() >= 1
    monkeypatch.delattr(_blocks.os, "sched_getaffinity", raising=False)
    assert available_cores() >= 1


def test_one_thread_works_alone():
    """Within it blocks run on the calling thread; outside nothing is left of it."""
    here = threading.get_ident()
    with one_thread():
        assert set(map_blocks(lambda _: threading.get_ident(), 100, 10)) == {here}
        with one_thread():
            pass
        assert set(map_blocks(lambda _: threading.get_ident(), 100, 10)) == {here}


def test_the_caller_and_others_share_the_blocks(monkeypatch):
    monkeypatch.setattr(_blocks, "available_cores", lambda: 2)
    both = threading.Barrier(2, timeout=10)  # passed only if two threads are inside

    def block(rows):
        if rows.start == 0 or rows.start == 10:
            both.wait()
        return threading.get_ident()

    assert len(set(map_blocks(block, 100, 10))) == 2


def test_blocks_within_blocks(monkeypatch):
    monkeypatch.setattr(_blocks, "available_cores", lambda: 4)
    inner = lambda s: sum(map_blocks(lambda t: t.stop - t.start, 50, 5)) + s.start  # noqa: E731
    assert map_blocks(inner, 40, 4) == [50 + i for i in range(0, 40, 4)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_threads_start_again_after_a_fork(monkeypatch):
    monkeypatch.setattr(_blocks, "available_cores", lambda: 4)
    expected = map_blocks(lambda s: s.start, 100, 10)
    child = os.fork()
    if child == 0:
        os._exit(0 if map_blocks(lambda s: s.start, 100, 10) == expected else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
