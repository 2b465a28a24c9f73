"""Work over long arrays in cache-sized row blocks on a few threads (NumPy releases the GIL)."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from focalcal._arrays import Array, is_torch

T = TypeVar("T")

_here = threading.local()

MAX_THREADS = 4
"""With more threads the work is bound by memory bandwidth."""
CACHE_ELEMENTS = 2**17
"""A float32 block of this size and its temporaries stay in a core's second-level cache."""
DEVICE_ELEMENTS = 2**27
"""On an accelerator few large kernels are faster; this bounds their temporaries."""


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
        with one_thread():  # nested blocks would start threads within threads
            for i in todo:
                results[i] = function(blocks[i])

    with ThreadPoolExecutor(threads - 1, "focalcal") as pool:
        helpers = [pool.submit(work) for _ in range(threads - 1)]
        try:
            work()
        finally:
            for _ in todo:  # after an error no thread starts another block
                pass
    for helper in helpers:
        helper.result()
    return results


def map_rows(work: Callable[[slice], T], logits: Array, elements: int = CACHE_ELEMENTS) -> list[T]:
    """`work` of every block of rows of (N, K) logits, results in order; tensors in large blocks.

    elements: the approximate number of logits per block of an array.
    """
    n, k = logits.shape
    if is_torch(logits):
        size = max(1, DEVICE_ELEMENTS // k)
        return [work(slice(i, min(i + size, n))) for i in range(0, n, size)]
    return map_blocks(work, n, max(1, elements // k))


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Restrict `map_blocks` to the current thread, for callers that already use every core."""
    before, _here.alone = getattr(_here, "alone", False), True
    try:
        yield
    finally:
        _here.alone = before


def available_cores() -> int:
    """The processor cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
