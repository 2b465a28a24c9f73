"""Numerical helpers of the maps: working precision, blocks of rows, a series."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from focalcal._arrays import Array, as_float, detach, is_torch, namespace
from focalcal.errors import InputError

BLOCK = 1 << 16
"""Elements per block of rows: a few float64 temporaries of this size stay in cache."""

TINY = 1e-290
"""Replaces an exact zero under a logarithm; its reciprocal is still finite."""


def in_double(function: Callable[[Array], Array], x: Any) -> Array:
    """`function` of x computed in float64, returned in the kind and float dtype of `x`.

    An accuracy of 1e-6 near saturation needs intermediate results in more than float32.
    """
    x = as_float(x)
    xp = namespace(x)
    return xp.astype(function(xp.astype(x, xp.float64, copy=False)), x.dtype)


def as_classes(x: Any, name: str) -> Array:
    """`x` as a float array whose last axis holds two or more classes."""
    x = as_float(x)
    if x.ndim == 0 or x.shape[-1] < 2:
        raise InputError(
            f"expected {name} with two or more classes on the last axis, got shape "
            f"{tuple(x.shape)}; for one logit per sample use binary_focal_map"
        )
    return x


def by_rows(function: Callable[[Array], Array], x: Array) -> Array:
    """`in_double` on blocks of rows of x (..., K), so that temporaries stay small.

    A tensor that requires a gradient is one block: autograd keeps every temporary anyway.
    """
    xp = namespace(x)
    rows = xp.reshape(x, (-1, x.shape[-1]))
    block = max(1, BLOCK // x.shape[-1])
    if is_torch(x):
        import torch

        if x.is_cuda:
            block *= 256  # on a GPU, launch overhead matters more than cache
        # A loop over blocks would fix the batch size of an exported graph.
        if torch.compiler.is_compiling() or (x.requires_grad and torch.is_grad_enabled()):
            block = max(1, rows.shape[0])
    if rows.shape[0] <= block:
        return xp.reshape(in_double(function, rows), x.shape)
    out = xp.empty_like(rows)
    for start in range(0, rows.shape[0], block):
        part = slice(start, start + block)
        out[part] = in_double(function, rows[part])
    return xp.reshape(out, x.shape)


def safe_log(p: Array) -> Array:
    """log p with TINY in place of an exact zero, in the value and in the gradient."""
    xp = namespace(p)
    return xp.log(p + xp.where(p == 0, TINY, xp.zeros_like(p)))


def through_logs(log_map: Callable[[Array, float], Array], p: Array, gamma: float) -> Array:
    """exp(log_map(log p, γ)) for rows of probabilities; exact zeros remain zero."""
    # At zero the gradient of the logarithm, 1/TINY, cancels against TINY from the exponential.
    out = namespace(p).exp(log_map(safe_log(p), gamma))
    out = out - detach(out) * (detach(p) == 0)
    # For γ < 0 the replacement of a zero takes visible mass from a class that is certain.
    return out / namespace(p).sum(out, axis=-1, keepdims=True)


def not_above(values: Array, top: Array, tied: Array) -> Array:
    """`values` clipped to the top class's value, with ties set to it; gradients are kept."""
    xp = namespace(values)
    missing = detach(top) - detach(values)
    return values + xp.where(tied | (missing < 0), missing, xp.zeros_like(missing))


def log_deficit(s: Array) -> Array:
    """t(s) = 1 − log1p(s)/s for s ≥ 0, with full relative accuracy down to t(0) = 0.

    With s the odds against a class, (1−q)/q, this is 1 − r(q). For small s it is summed as
    y − (1−y)(y²/3 + y⁴/5 + …) with y = s/(2+s), from log1p(s) = 2·atanh(y).
    """
    xp = namespace(s)
    small = s < 0.5
    y = xp.where(small, s, xp.zeros_like(s))
    y = y / (2 + y)
    square = y * y
    series = xp.zeros_like(y)
    for power in range(25, 1, -2):
        series = square * (1.0 / power + series)
    near = y - (1 - y) * series
    far_s = xp.where(small, xp.ones_like(s), s)
    return xp.where(small, near, 1 - xp.log1p(far_s) / far_s)
