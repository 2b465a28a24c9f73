"""Row blocks: every row once, in order, the same with and without threads."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from focalcal import _blocks
from focalcal._blocks import (
    available_cores,
    keep_memory,
    map_blocks,
    one_thread,
    scratch,
    sum_of_squares,
)


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


def test_scratch_is_given_again_to_the_same_thread_only():
    first = scratch("a", (3, 4), np.float32)
    assert first.shape == (3, 4)
    assert first.dtype == np.float32
    assert np.shares_memory(first, scratch("a", (5,), bool))
    assert not np.shares_memory(first, scratch("b", (3, 4), np.float32))
    with ThreadPoolExecutor(1) as pool:
        assert not np.shares_memory(first, pool.submit(scratch, "a", (2,), np.int8).result())
    assert scratch("a", (100, 100), np.float64).size == 10_000


@pytest.mark.parametrize("n", [0, 1, 8_191, 8_192, 20_000])
def test_sum_of_squares(n, rng):
    x = rng.normal(size=n)
    assert sum_of_squares(x) == pytest.approx(float((x**2).sum()), rel=1e-12)
    assert sum_of_squares(np.append(x, 1e200)) == np.inf


def test_memory_is_asked_for_once():
    keep_memory.cache_clear()
    keep_memory()
    keep_memory()
    assert keep_memory.cache_info().misses == 1
