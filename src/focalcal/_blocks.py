"""Work over long arrays in cache-sized row blocks on a few threads (NumPy releases the GIL)."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")

_here = threading.local()
_pool: ThreadPoolExecutor | None = None
_starting = threading.Lock()

MAX_THREADS = 4
"""Past this the work is bound by memory bandwidth, not by cores."""
DOT = 8192
"""BLAS spreads longer products over threads of its own."""


def map_blocks(function: Callable[[slice], T], n: int, size: int) -> list[T]:
    """`function` of each slice of `size` of range(n), results in order.

    The blocks do not depend on the number of threads, so neither do sums over the results.

    >>> map_blocks(lambda rows: rows.stop - rows.start, 10, 4)
    [4, 4, 2]
    """
    blocks = [slice(start, min(start + size, n)) for start in range(0, n, size)]
    threads = min(available_cores(), MAX_THREADS, len(blocks) // 2)
    if threads < 2 or getattr(_here, "alone", False):
        return [function(block) for block in blocks]
    results: list[Any] = [None] * len(blocks)
    todo = iter(range(len(blocks)))

    def work() -> None:
        with one_thread():  # blocks within blocks would wait for threads that wait for them
            for i in todo:
                results[i] = function(blocks[i])

    helpers = [_threads().submit(work) for _ in range(threads - 1)]
    try:
        work()
    finally:
        for _ in todo:  # after an error nobody begins another block
            pass
        ended = [helper for helper in helpers if not helper.cancel()]
        errors = [helper.exception() for helper in ended]
    for error in filter(None, errors):
        raise error
    return results


def _threads() -> ThreadPoolExecutor:
    """This process's threads: kept, because new ones would find their scratch memory cold."""
    global _pool
    with _starting:
        if _pool is None:
            _pool = ThreadPoolExecutor(MAX_THREADS - 1, "focalcal")
        return _pool


def _forget_threads() -> None:
    """A fork leaves threads behind, and perhaps a lock that one of them held."""
    global _pool, _starting
    _pool, _starting = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """`map_blocks` of this thread works alone: for callers that already use every core."""
    before, _here.alone = getattr(_here, "alone", False), True
    try:
        yield
    finally:
        _here.alone = before


def scratch(name: str, shape: tuple[int, ...], kind: Any) -> np.ndarray:
    """An array with any content that this thread's next call with this name gets again.

    Asking the system for half a megabyte, page by page, takes longer than filling it.
    """
    held: dict[str, tuple[Any, np.ndarray]] = _here.__dict__.setdefault("held", {})
    wanted = shape, kind
    found = held.get(name)
    if found is None or found[0] != wanted:
        size = math.prod(shape) * np.dtype(kind).itemsize
        memory = np.empty(size, np.uint8) if found is None else found[1].base
        if memory.size < size:
            memory = np.empty(size, np.uint8)
        found = held[name] = wanted, memory[:size].view(kind).reshape(shape)
    return found[1]


def sum_of_squares(x: np.ndarray) -> float:
    """Σ x² of (N,), by BLAS on this thread alone.

    >>> sum_of_squares(np.array([3.0, 4.0]))
    25.0
    """
    cut = x.size - x.size % DOT
    parts, rest = x[:cut].reshape(-1, DOT), x[cut:]
    with np.errstate(all="ignore"):
        return float(np.vecdot(parts, parts).sum() + np.vecdot(rest, rest))


@functools.cache
def keep_memory() -> None:
    """Make glibc keep what threads free, up to 64 MB each, instead of handing it back at once.

    It does so from the moment when a block almost as large as it allows has been freed; otherwise
    every temporary array of a pass comes page by page from the system, for all threads in turn.
    """
    np.empty(31 << 20, np.uint8)


def available_cores() -> int:
    """The processor cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
