"""Passes over N × K logits: cache-sized row blocks on threads, large ones on an accelerator."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from focalcal._arrays import Array, is_torch
from focalcal._blocks import map_blocks

T = TypeVar("T")

CACHE_ELEMENTS = 2**17
"""With its temporaries a float32 block of this size stays in a core's second-level cache."""
DEVICE_ELEMENTS = 2**27
"""An accelerator wants few large kernels; this bounds their temporaries."""


def map_rows(work: Callable[[slice], T], logits: Array, elements: int = CACHE_ELEMENTS) -> list[T]:
    """`work` of every block of rows of (N, K) logits, results in order.

    elements: about so many logits to a block in memory.
    """
    n, k = logits.shape
    if is_torch(logits):
        size = max(1, DEVICE_ELEMENTS // k)
        return [work(slice(i, min(i + size, n))) for i in range(0, n, size)]
    return map_blocks(work, n, max(1, elements // k))
