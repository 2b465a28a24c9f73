"""Which bin a value lies in: the search behind `focalcal.bins`."""

from __future__ import annotations

import functools

import numpy as np

from focalcal._blocks import scratch

_COMPARED = 1 << 19  # (value, edge) pairs compared at a time, one byte each
_SCALED = 1 << 17  # values multiplied at a time
_FEW_EDGES = 48
"""Up to here, counting the edges below each value in SIMD beats a binary search."""
_MOST_SCALED = 255
"""So many bins have a number in one byte."""


def edges_below(x: np.ndarray, inner: np.ndarray) -> np.ndarray:
    """How many inner edges, increasing, lie below each value, as some integer type.

    NaN lies above all of them, as in a sorted array.

    >>> edges_below(np.array([0.0, 0.5, 0.75]), np.array([0.25, 0.5]))
    array([0, 1, 2], dtype=uint8)
    """
    inner = inner.astype(x.dtype)
    even, exact = _even(inner.tobytes(), x.dtype)
    if not even and len(inner) > _FEW_EDGES:
        return np.searchsorted(inner, x, side="left")
    flat = np.ascontiguousarray(x).reshape(-1)
    index = np.zeros(flat.size, dtype=np.uint8)
    size = _SCALED if even else _COMPARED // max(len(inner), 1)
    for start in range(0, flat.size if len(inner) else 0, size):
        part, out = flat[start : start + size], index[start : start + size]
        if even:
            if not (np.minimum.reduce(part) >= 0 and np.maximum.reduce(part) <= 1):
                part = np.where(part <= 1, np.maximum(part, 0), part.dtype.type(1))
            _scale(part, even, None if exact else inner, out)
            out -= np.greater(out, 0).view(np.uint8)
        else:
            below = scratch("below the edge", (len(inner), part.size), bool)
            np.less_equal(part, inner[:, None], out=below)
            np.add.reduce(below.view(np.uint8), axis=0, out=out)
            np.subtract(np.uint8(len(inner)), out, out=out)
    return index.reshape(x.shape)


def bin_numbers(x: np.ndarray, inner: np.ndarray) -> np.ndarray:
    """The bins of values (N,) from 0 to 1, counted from 1, as some integer type.

    In a hurry: a value of 0 may have number 0, and the next call overwrites the result.

    >>> bin_numbers(np.array([0.1, 0.5, 0.75]), np.array([0.25, 0.5]))
    array([1, 2, 3], dtype=uint8)
    """
    inner = inner.astype(x.dtype)
    even, exact = _even(inner.tobytes(), x.dtype)
    if not even:
        return edges_below(x, inner) + 1
    out = scratch("numbers", x.shape, np.uint8)
    _scale(x, even, None if exact else inner, out)
    return out


def _scale(x: np.ndarray, m: np.floating, inner: np.ndarray | None, out: np.ndarray) -> None:
    """⌈m·x⌉ to `out`; where m·x is a whole number the bin is searched for among inner edges."""
    scaled, whole = scratch("scaled", (2, len(x)), x.dtype)
    np.ceil(np.multiply(x, m, out=scaled), out=whole)
    np.copyto(out, whole, casting="unsafe")
    if inner is not None:
        doubtful = np.equal(scaled, whole, out=scratch("doubtful", x.shape, bool)).nonzero()[0]
        if len(doubtful):
            out[doubtful] = np.searchsorted(inner, x[doubtful], side="left") + 1


@functools.lru_cache(maxsize=32)
def _even(inner: bytes, kind: np.dtype) -> tuple[np.floating | None, bool]:
    """The number m of bins, if x from 0 to 1 is in bin ⌈m·x⌉ unless m·x is a whole number.

    Rounded products never fall as x rises. So it is enough that no edge is above its whole number
    when multiplied: what is larger is then above it, or on it and doubtful. The second value says
    that nothing is in doubt: the next larger number than each edge is above. So it is for 15 bins
    in float32.
    """
    edges = np.frombuffer(inner, kind)
    if not 0 < len(edges) < _MOST_SCALED:
        return None, False
    m, at = kind.type(len(edges) + 1), np.arange(1, len(edges) + 1)
    above = np.nextafter(edges, kind.type(np.inf))
    if (np.ceil(edges * m) != at).any() or (above * m < at).any():
        return None, False
    return m, bool((np.ceil(above * m) == at + 1).all())
