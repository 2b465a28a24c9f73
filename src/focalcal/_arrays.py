"""NumPy arrays and torch tensors: outputs are of the same kind as the inputs.

Everything after `Predictions` uses the array API standard through `array_api_compat`; this module
has the few functions that the standard lacks.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import array_api_compat
import numpy as np

from focalcal.errors import InputError

Array = Any
"""A NumPy array or a torch tensor on any device."""


def is_torch(x: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def as_array(x: Any) -> Array:
    """Arrays pass through; lists, scalars, pandas and polars columns become NumPy.

    A foreign byte order is converted to the native one, and NumPy's matrices and masked arrays
    become plain arrays, unless something is masked.
    """
    if isinstance(x, np.ndarray):
        if np.ma.is_masked(x):
            raise InputError("expected an array without masked values; leave those samples out")
        x = np.asarray(x)
        return x if x.dtype.isnative else x.astype(x.dtype.newbyteorder("="))
    if is_torch(x):
        return x
    if hasattr(x, "__array_namespace__") and not isinstance(x, np.generic):
        return x  # any other array library, and the arrays that the ONNX exporter traces
    return np.asarray(x)


def namespace(*arrays: Array) -> Any:
    """The array API namespace that the given arrays share."""
    if all(isinstance(array, np.ndarray) for array in arrays):
        return np  # conforms; importing the wrapper takes longer than a small evaluation
    if all(is_torch(array) for array in arrays):
        import array_api_compat.torch as torch_namespace

        return torch_namespace  # array_namespace uses a cache, which torch.compile warns about
    return array_api_compat.array_namespace(*arrays)


def as_float(x: Any) -> Array:
    """`x` as float32 or float64: half precision is widened to float32, integers to float64."""
    x = as_array(x)
    xp = namespace(x)
    if x.dtype in (xp.float32, xp.float64):
        return x
    half = xp.isdtype(x.dtype, "real floating") and x.dtype.itemsize < 4
    return xp.astype(x, xp.float32 if half else xp.float64)


def detach(x: Array) -> Array:
    """The array without its gradient graph."""
    return x.detach() if is_torch(x) else x


def to_numpy(x: Any) -> np.ndarray:
    """A NumPy view or copy of any array, detached and on the CPU."""
    if is_torch(x):
        x = x.detach().cpu()
        return (x.float() if str(x.dtype) == "torch.bfloat16" else x).numpy()
    return np.asarray(x)


def full_precision(x: Array) -> AbstractContextManager[Any]:
    """A context in which autocast does not multiply matrices in half precision."""
    if is_torch(x):
        import torch

        if torch.is_autocast_enabled(x.device.type):
            return torch.autocast(x.device.type, enabled=False)
    return nullcontext()


def like(values: Any, reference: Array) -> Array:
    """`values` as the same kind of array as `reference`, on its device and in its float dtype."""
    if not is_torch(reference):
        dtype = reference.dtype if np.issubdtype(reference.dtype, np.floating) else None
        return namespace(reference).asarray(values, dtype=dtype)
    import torch

    dtype = reference.dtype if reference.dtype.is_floating_point else None
    values = values if is_torch(values) else np.asarray(values)
    return torch.as_tensor(values, dtype=dtype, device=reference.device)


def on_device_of(values: Array, reference: Array) -> Array:
    """`values` as the same kind of array and on the same device as `reference`, dtype kept."""
    if is_torch(reference):
        import torch

        return torch.as_tensor(values, device=reference.device)
    return to_numpy(values)


def take_along_axis(x: Array, indices: Array, axis: int = -1) -> Array:
    """x at integer `indices`, which have the shape of `x` except along `axis`."""
    if is_torch(x):
        return x.gather(axis, indices)  # take_along_dim would pin the batch size in torch.export
    return namespace(x).take_along_axis(x, indices, axis=axis)


def add_up(x: Array, axis: int = -1) -> Array:
    """Σ x along `axis`, which stays; the same in any memory order.

    NumPy adds the columns of other orders to each other in turn, and float32 then loses digits.
    """
    if isinstance(x, np.ndarray):
        x = np.ascontiguousarray(x)
    return namespace(x).sum(x, axis=axis, keepdims=True)


def logsumexp(x: Array, axis: int = -1, keepdims: bool = False) -> Array:
    """log Σ exp(x) along `axis`, exact for any finite input; an all −inf row gives −inf."""
    xp = namespace(x)
    top = xp.max(x, axis=axis, keepdims=True)
    shift = xp.where(xp.isfinite(top), top, xp.zeros_like(top))
    total = add_up(xp.exp(x - shift), axis)
    out = xp.log(total) + shift
    return out if keepdims else xp.squeeze(out, axis=axis)


def log_softmax(x: Array, axis: int = -1) -> Array:
    """x − log Σ exp(x) along `axis`; the maximum is subtracted first, so as not to lose digits."""
    xp = namespace(x)
    top = xp.max(x, axis=axis, keepdims=True)
    below = x - xp.where(xp.isfinite(top), top, xp.zeros_like(top))
    return below - xp.log(add_up(xp.exp(below), axis))


def softmax(x: Array, axis: int = -1) -> Array:
    xp = namespace(x)
    e = xp.exp(x - xp.max(x, axis=axis, keepdims=True))
    return e / add_up(e, axis)


def two_columns(logits: Array) -> Array:
    """Binary logits (N,) or (N, 1) for class 1 become (N, 2) with a zero logit for class 0."""
    if logits.ndim == 2 and logits.shape[1] > 1:
        return logits
    xp = namespace(logits)
    s = logits if logits.ndim == 1 else logits[:, 0]
    return xp.stack([xp.zeros_like(s), s], axis=1)


def both_columns(probs: Array) -> Array:
    """Probabilities (N,) or (N, 1) of class 1 become (N, 2), [1 − p, p]."""
    if probs.ndim == 2 and probs.shape[1] > 1:
        return probs
    p = probs if probs.ndim == 1 else probs[:, 0]
    return namespace(p).stack([1 - p, p], axis=1)
