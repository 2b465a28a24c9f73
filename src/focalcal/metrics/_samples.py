"""Validated per-sample quantities: the one way from (y_true, y_prob) to NumPy vectors.

Every metric starts here. Two-dimensional y_prob (N, K) is read as a classifier: `confidence` is
the largest probability and `correct` says whether the label is its (first) class. One-dimensional
y_prob (N,) is read as a forecast of y_true = 1: `confidence` is y_prob itself and `correct` is
y_true, so a file of (correct, top-1 confidence) is measured as it stands.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from focalcal._arrays import Array, as_array, is_torch, namespace, to_numpy
from focalcal._blocks import map_blocks, scratch
from focalcal._checks import SUM_TOLERANCE, check_labels, check_probs, check_weights

T = TypeVar("T")

_BLOCK_BYTES = 3 << 20
_FEW_CLASSES = 64
"""Up to here rows are too short for NumPy's reductions along them."""
_BLAS_ROWS = 128
"""Rows multiplied at once: few enough for BLAS to leave them to the thread that asks."""
_NO_TIE_ABOVE = 0.51
"""Two classes cannot both have more: their sum would be past what float32 and float64 may have."""


def labels_and_probs(y_true: Any, y_prob: Any) -> tuple[Array, Array]:
    """Checked labels and probabilities on one device, NumPy or (on a GPU) torch.

    (N, 1) probabilities become (N,).
    """
    probs = check_probs(_prepare(y_prob))
    if is_torch(probs) and probs.device.type == "cpu":
        probs = to_numpy(probs)
    return _labels_for(y_true, probs), probs


def sample_weights(sample_weight: Any, n: int) -> np.ndarray | None:
    if sample_weight is None:
        return None
    return to_numpy(check_weights(sample_weight, n)).astype(np.float64)


def columns(y_true: Any, y_prob: Any) -> tuple[np.ndarray, np.ndarray]:
    """Labels and (N, K) probabilities in NumPy; (N,) becomes its one column."""
    labels, probs = map(to_numpy, labels_and_probs(y_true, y_prob))
    return one_column(labels, probs) if probs.ndim == 1 else (labels, probs)


def one_column(labels: np.ndarray, probs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The forecast of an event as one class, 0, to which the events (y_true = 1) belong."""
    return np.where(labels != 0, 0, -1), probs[:, None]


def top_label(y_true: Any, y_prob: Any) -> tuple[np.ndarray, np.ndarray]:
    """(confidence, correct): (N,) floats and (N,) bools, checked."""
    probs = _prepare(y_prob)
    if _is_plain(probs):
        result = _reduce_rows(_labels_for(y_true, probs), probs, SUM_TOLERANCE[probs.dtype.name])
        if result is not None:
            return result
    return top_of(*labels_and_probs(y_true, probs))


def over_top_label(
    function: Callable[[np.ndarray, np.ndarray], T], y_true: Any, y_prob: Any
) -> list[T]:
    """`function(confidence, correct)` of blocks of checked samples, results in order.

    As `top_label`, but the samples of a block are used while they are in the cache, and then
    overwritten by those of another.
    """
    probs = _prepare(y_prob)
    if _is_plain(probs):
        labels, tolerance = _labels_for(y_true, probs), SUM_TOLERANCE[probs.dtype.name]

        def block(rows: slice) -> T | None:
            n = rows.stop - rows.start
            confidence, correct = scratch("top", (n,), probs.dtype), scratch("right", (n,), bool)
            fine = _reduce(labels[rows], probs[rows], confidence, correct, tolerance)
            return function(confidence, correct) if fine else None

        results = map_blocks(block, len(probs), _rows_per_block(probs))
        if all(result is not None for result in results):
            return results
    confidence, correct = top_of(*labels_and_probs(y_true, probs))
    size = _rows_per_block(confidence)
    return map_blocks(lambda rows: function(confidence[rows], correct[rows]), len(confidence), size)


def _is_plain(probs: Array) -> bool:
    """Whether `_reduce` takes them: half precision and what is no float go the general way."""
    plain = isinstance(probs, np.ndarray) and probs.dtype in (np.float32, np.float64)
    return plain and probs.ndim == 2 and 0 not in probs.shape


def top_of(labels: Array, probs: Array) -> tuple[np.ndarray, np.ndarray]:
    """(confidence, correct) of what `labels_and_probs` returned."""
    if probs.ndim == 1:
        return to_numpy(probs), to_numpy(labels) != 0
    if _is_plain(probs):
        result = _reduce_rows(labels, probs, np.inf)
        if result is not None:
            return result
    xp = namespace(probs)
    return to_numpy(xp.max(probs, axis=1)), to_numpy(xp.argmax(probs, axis=1) == labels)


def true_class_probability(labels: Array, probs: Array) -> np.ndarray:
    """p_y per sample, float64."""
    xp = namespace(probs)
    if probs.ndim == 1:
        picked = xp.where(labels != 0, probs, 1 - probs)
    else:
        picked = xp.take_along_axis(probs, xp.astype(labels, xp.int64)[:, None], axis=1)[:, 0]
    return to_numpy(picked).astype(np.float64)


def negative_log(p: np.ndarray) -> np.ndarray:
    """−ln p, infinite at 0."""
    with np.errstate(divide="ignore"):
        return -np.log(p)


def predicted_right(labels: Array, probs: Array) -> np.ndarray:
    """Whether the most probable class is the label; for (N,) the prediction is y_prob > ½."""
    xp = namespace(probs)
    if probs.ndim == 1:
        return to_numpy((probs > 0.5) == (labels != 0))
    return to_numpy(xp.argmax(probs, axis=1) == labels)


def squared_error(labels: Array, probs: Array) -> np.ndarray:
    """Σ_k (p_k − 1[y=k])² per sample, float64; (p − y)² for (N,) probabilities."""

    def block(y: Array, p: Array) -> Array:
        xp = namespace(p)
        p = xp.astype(p, xp.float64)
        if p.ndim == 1:
            return (p - xp.astype(y, xp.float64)) ** 2
        hot = xp.arange(p.shape[1], device=_device(p))[None, :] == y[:, None]
        return xp.sum((p - xp.astype(hot, p.dtype)) ** 2, axis=1)

    def numpy_block(y: np.ndarray, p: np.ndarray) -> np.ndarray:
        off = p.astype(np.float64)
        off[np.arange(len(y)), y] -= 1
        return np.einsum("ij,ij->i", off, off)

    if isinstance(probs, np.ndarray) and probs.ndim == 2:
        return _by_rows(numpy_block, labels, probs)
    return _by_rows(block, labels, probs)


def entropy(labels: Array, probs: Array) -> np.ndarray:
    """−Σ p ln p per sample in nats, float64."""

    def block(_: Array, p: Array) -> Array:
        xp = namespace(p)
        p = xp.astype(p, xp.float64)
        if p.ndim == 1:
            p = xp.stack([p, 1 - p], axis=1)
        # 0·ln 0 is 0: the logarithm of a zero is replaced, not computed.
        return -xp.sum(p * xp.log(xp.where(p > 0, p, xp.ones_like(p))), axis=1)

    def numpy_block(_: np.ndarray, p: np.ndarray) -> np.ndarray:
        # In the precision of p, whose own rounding is as large; classes first for SIMD.
        c = np.ascontiguousarray(p.T)
        logs = np.log(np.maximum(c, np.finfo(c.dtype).tiny))  # of a zero: 0 · finite is 0
        logs *= c
        return -np.add.reduce(logs, axis=0, dtype=np.float64)

    if isinstance(probs, np.ndarray) and probs.ndim == 2:
        return _by_rows(numpy_block, labels, probs)
    return _by_rows(block, labels, probs)


def mean(values: np.ndarray, weights: np.ndarray | None) -> float:
    """Weighted mean in float64."""
    if weights is None:
        return float(np.mean(values, dtype=np.float64))
    return float(np.sum(values * weights, dtype=np.float64) / np.sum(weights))


def _prepare(y_prob: Any) -> Array:
    probs = as_array(y_prob)
    if not is_torch(probs):
        probs = np.asarray(probs)
    elif probs.device.type != "cuda":
        # Shares memory. NumPy has no bfloat16: that is checked, with its tolerance, as a tensor.
        probs = probs.detach().cpu()
        probs = probs if str(probs.dtype) == "torch.bfloat16" else to_numpy(probs)
    if probs.ndim == 2 and probs.shape[1] == 1:
        probs = probs[:, 0]
    return probs


def _labels_for(y_true: Any, probs: Array) -> Array:
    n_classes = 2 if probs.ndim == 1 else int(probs.shape[1])
    labels = check_labels(y_true, int(probs.shape[0]), n_classes)
    if is_torch(probs):
        import torch

        return torch.as_tensor(labels, device=probs.device)
    return to_numpy(labels)


def _by_rows(block: Any, labels: Array, probs: Array) -> np.ndarray:
    if is_torch(probs):
        return to_numpy(block(labels, probs))
    size = _rows_per_block(probs)
    parts = map_blocks(lambda rows: block(labels[rows], probs[rows]), len(probs), size)
    return np.concatenate(parts)


def _rows_per_block(probs: np.ndarray) -> int:
    return max(_BLOCK_BYTES // (probs.itemsize * max(probs[:1].size, 1)), 64)


def _device(p: Array) -> Any:
    return p.device if is_torch(p) else None


def _reduce_rows(
    labels: np.ndarray, probs: np.ndarray, tolerance: float
) -> tuple[np.ndarray, np.ndarray] | None:
    """Top confidence and correctness in one pass that also checks; None if a check fails.

    The caller then takes the slow path, which names the offending row.
    """
    n = len(probs)
    confidence, correct = np.empty(n, dtype=probs.dtype), np.empty(n, dtype=bool)

    def block(rows: slice) -> bool:
        return _reduce(labels[rows], probs[rows], confidence[rows], correct[rows], tolerance)

    fine = all(map_blocks(block, n, _rows_per_block(probs)))
    return (confidence, correct) if fine else None


def _reduce(
    labels: np.ndarray, probs: np.ndarray, top: np.ndarray, right: np.ndarray, tolerance: float
) -> bool:
    reduce = _reduce_few if probs.shape[1] <= _FEW_CLASSES else _reduce_many
    return reduce(labels, probs, top, right, tolerance)


def _reduce_few(
    labels: np.ndarray, probs: np.ndarray, top: np.ndarray, right: np.ndarray, tolerance: float
) -> bool:
    """Few classes: rows too short for NumPy's reductions are reduced by shifting whole blocks."""
    p = np.ascontiguousarray(probs)
    n, k = p.shape
    # As unsigned integers, floats from 0 to 1 keep their order; negative ones and NaN come after 1.
    bits, one = _bits_of_one(p.dtype)
    work = scratch("windows", (2, n * k), bits)
    if np.maximum.reduce(row_maximum(p.view(bits), top.view(bits), work)) > one:
        p = p + p.dtype.type(0)  # 0 for a −0, which is a probability too
        if np.maximum.reduce(row_maximum(p.view(bits), top.view(bits), work)) > one:
            return False
    at = scratch("at", (n,), np.intp)
    np.add(labels, _row_starts(n, k), out=at, casting="unsafe")
    own, sums = scratch("own", (2, n), p.dtype)
    p.reshape(-1).take(at, out=own, mode="clip")
    np.equal(own, top, out=right)
    _row_sums(p, sums)
    if not _near_one(sums, tolerance):
        return False
    # The first of several largest classes is the prediction; above a half there is only one.
    low = np.less_equal(top, _NO_TIE_ABOVE, out=scratch("low", (n,), bool))
    close = np.logical_and(low, right, out=low).nonzero()[0]
    candidates = p.take(close, axis=0)
    if np.count_nonzero(candidates == top.take(close)[:, None]) > len(close):
        right[close] = candidates.argmax(axis=1) == labels[close]
    return True


@functools.lru_cache(maxsize=4)
def _bits_of_one(kind: np.dtype) -> tuple[np.dtype, int]:
    bits = np.dtype(f"u{kind.itemsize}")
    return bits, int(np.ones(1, kind).view(bits)[0])


@functools.lru_cache(maxsize=4)
def _row_starts(n: int, k: int) -> np.ndarray:
    return np.arange(0, n * k, k)


def _row_sums(p: np.ndarray, out: np.ndarray) -> None:
    (n, k), ones = p.shape, np.ones(p.shape[1], p.dtype)
    cut = n - n % _BLAS_ROWS
    stacked = p[:cut].reshape(-1, _BLAS_ROWS, k)
    np.matmul(stacked, ones, out=out[:cut].reshape(-1, _BLAS_ROWS))
    np.matmul(p[cut:], ones, out=out[cut:])


def row_maximum(rows: np.ndarray, out: np.ndarray, work: np.ndarray) -> np.ndarray:
    """`rows.max(axis=1)` for short contiguous rows: (m, k) to `out` (m,).

    NumPy enters a loop per row, which costs more than the row. Here neighbours are joined for all
    of memory at once: in pairs while rows are even, then to windows of w, 2w, …, whichever row
    they lie in; a few windows inside a row cover it. work: (2, ≥ m·k).

    >>> row_maximum(np.array([[1.0, 3.0, 2.0], [0.0, 0.0, 5.0]]), np.empty(2), np.empty((2, 6)))
    array([3., 5.])
    """
    k, windows, width, side = rows.shape[1], rows.reshape(-1), 1, 0
    while k % 2 == 0:
        k, half = k // 2, work[side, : windows.size // 2]
        windows, side = np.maximum(windows[::2], windows[1::2], out=half), 1 - side
    while 4 * width < k:
        wider = work[side, : windows.size - width]
        windows, side = np.maximum(windows[:-width], windows[width:], out=wider), 1 - side
        width *= 2
    covering = [*range(0, k - width, width), k - width]
    np.maximum(windows[covering[0] :: k], windows[covering[-1] :: k], out=out)
    for start in covering[1:-1]:
        np.maximum(out, windows[start::k], out=out)
    return out


def _reduce_many(
    labels: np.ndarray, p: np.ndarray, top: np.ndarray, right: np.ndarray, tolerance: float
) -> bool:
    """Many classes: rows are long enough to be reduced where they lie."""
    at = p.argmax(axis=1)
    top[:] = np.take_along_axis(p, at[:, None], axis=1)[:, 0]
    np.equal(at, labels, out=right)
    return bool(p.min() >= 0 and top.max() <= 1 and _near_one(p.sum(axis=1), tolerance))


def _near_one(sums: np.ndarray, tolerance: float) -> bool:
    most, least = np.maximum.reduce(sums), np.minimum.reduce(sums)
    return bool(most - 1 <= tolerance and 1 - least <= tolerance)
