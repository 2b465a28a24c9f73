"""Counting samples into bins: the inner loops behind `focalcal.bins`."""

from __future__ import annotations

import functools

import numpy as np

from focalcal._bin_index import bin_numbers
from focalcal._blocks import scratch

_LANES = 4
"""Samples in turn go to so many copies of the bins: one whose sum is still being stored is not
added to, and most confidences fall into the same bin."""
_MANY = 8192
"""One sum carries the number of samples and their sum where fewer are in each copy of a bin."""


def lanes_for(cells: int) -> int:
    """`_LANES` where a byte can number the cells of all copies, else 1."""
    return _LANES if cells * _LANES <= 256 else 1


def in_turn(n: int, lanes: int, size: int) -> np.ndarray:
    """The first cell of the copy that each of n samples goes to."""
    return _turns(1 << n.bit_length(), lanes, size)[:n]


@functools.lru_cache(maxsize=8)
def _turns(n: int, lanes: int, size: int) -> np.ndarray:
    return np.resize(np.arange(0, lanes * size, size, dtype=np.uint8), n)


def count_columns(columns: np.ndarray, totals: np.ndarray, inner: np.ndarray) -> np.ndarray:
    """Counts and sums (2, K, M) of probabilities (K, N) whose sums per class are `totals` (K,).

    Most classes are improbable: only what lies above the first bin is counted one by one, and the
    first bin gets the rest.
    """
    (k, n), m = columns.shape, len(inner) + 1
    flat = columns.reshape(-1)
    above = np.greater(
        flat, flat.dtype.type(inner[0] if m > 1 else np.inf), out=scratch("many", flat.shape, bool)
    )
    above = np.flatnonzero(above)
    values = flat.take(above)
    lanes = max(256 // (m + 1), 1)
    number, size = bin_numbers(values, inner), lanes * (m + 1)
    number += in_turn(len(number), lanes, m + 1)
    per_class = np.diff(np.searchsorted(above, np.arange(k + 1) * n))
    cell = np.repeat(np.arange(k) * size, per_class)
    cell += number

    def added(mass: np.ndarray | None) -> np.ndarray:
        return np.bincount(cell, mass, k * size).reshape(k, lanes, m + 1)

    if flat.dtype == np.float32 and m > 1 and inner[0] >= 1 / 16 and n < lanes * (_MANY - 1):
        # Above 1/16 a float32 is a multiple of 2⁻²⁷, so 53 bits are enough: nothing is rounded.
        mass = scratch("mass", values.shape, np.float64)
        np.copyto(mass, values)
        mass += _MANY
        counts, sums = np.divmod(added(mass), _MANY)
    else:
        counts, sums = added(None), added(values)
    counts, sums = (x.sum(axis=1, dtype=np.float64)[:, 1:] for x in (counts, sums))
    counts[:, 0] = n - counts.sum(axis=1)
    rest = np.maximum(totals - sums.sum(axis=1), 0.0)
    sums[:, 0] = np.where(counts[:, 0] > 0, rest, 0.0)
    return np.stack([counts, sums])


def count_labels(p_true: np.ndarray, y: np.ndarray, k: int, inner: np.ndarray) -> np.ndarray:
    """How many labels (N,) of each class have their probability (N,) in each bin: (K, M)."""
    m = len(inner) + 1
    cell = y * (m + 1)
    cell += bin_numbers(p_true, inner)
    found = np.bincount(cell, minlength=k * (m + 1)).reshape(k, m + 1)
    found[:, 1] += found[:, 0]  # where a probability of 0 may be
    return found[:, 1:]
