"""The array API functions that write ONNX nodes, so that no calibrator needs export code.

This module is the namespace of `OnnxArray`, hence names such as `sum` and `max`. Python branches
on traced values are errors: use `where`. It holds what the calibrators use; a further function is
one small definition.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy import bool_ as bool
from numpy import e, finfo, float32, float64, inf, int32, int64, isdtype, nan, newaxis, pi

from focalcal.calibrators.onnx_graph import OnnxArray, integers, record

__all__ = ["bool", "e", "finfo", "float32", "float64", "inf", "int32", "int64", "isdtype"]
__all__ += ["nan", "newaxis", "pi"]


def asarray(values: Any, dtype: Any = None, **_: Any) -> OnnxArray:
    if isinstance(values, OnnxArray):
        return values if dtype is None else astype(values, dtype)
    return OnnxArray(np.asarray(values, dtype=dtype))


def _operands(*values: Any) -> tuple[list[OnnxArray], Any]:
    """Operands as arrays with their common dtype; Python scalars follow the arrays."""
    dtype = np.result_type(*[v.value if isinstance(v, OnnxArray) else v for v in values])
    arrays = [v if isinstance(v, OnnxArray) else OnnxArray(np.asarray(v, dtype)) for v in values]
    return arrays, dtype


def _elementwise(numpy_function: Any, op: str) -> Any:
    def function(*values: Any) -> OnnxArray:
        arrays, dtype = _operands(*values)
        result = numpy_function(*[x.value.astype(dtype) for x in arrays])
        return record(op, result, arrays, dtype)

    function.__name__ = function.__qualname__ = numpy_function.__name__
    return function


add = _elementwise(np.add, "Add")
subtract = _elementwise(np.subtract, "Sub")
multiply = _elementwise(np.multiply, "Mul")
divide = _elementwise(np.true_divide, "Div")
pow = _elementwise(np.power, "Pow")
matmul = _elementwise(np.matmul, "MatMul")
maximum = _elementwise(np.maximum, "Max")
minimum = _elementwise(np.minimum, "Min")
equal = _elementwise(np.equal, "Equal")
less = _elementwise(np.less, "Less")
less_equal = _elementwise(np.less_equal, "LessOrEqual")
greater = _elementwise(np.greater, "Greater")
greater_equal = _elementwise(np.greater_equal, "GreaterOrEqual")
logical_and = _elementwise(np.logical_and, "And")
logical_or = _elementwise(np.logical_or, "Or")
logical_not = _elementwise(np.logical_not, "Not")
negative = _elementwise(np.negative, "Neg")
abs = _elementwise(np.abs, "Abs")
exp = _elementwise(np.exp, "Exp")
log = _elementwise(np.log, "Log")
sqrt = _elementwise(np.sqrt, "Sqrt")
isnan = _elementwise(np.isnan, "IsNaN")
isinf = _elementwise(np.isinf, "IsInf")


def isfinite(x: OnnxArray) -> OnnxArray:
    return logical_not(logical_or(isnan(x), isinf(x)))


def log1p(x: OnnxArray) -> OnnxArray:
    """Kahan: the rounding error of u = 1 + x cancels in log(u)·x/(u − 1)."""
    u = 1 + x
    exact = where((u == 1) | isinf(u), x, log(u) * (x / (u - 1)))
    return where(isnan(x), x, exact)


def expm1(x: OnnxArray) -> OnnxArray:
    """Kahan: the rounding error of u = exp(x) cancels in (u − 1)·x/log(u)."""
    u = exp(x)
    kahan = (u - 1) * (x / log(u))
    return where(u == 1, x, where((u == 0) | isinf(u), u - 1, kahan))


def logaddexp(x: Any, y: Any) -> OnnxArray:
    top, gap = maximum(x, y), abs(subtract(x, y))
    return where(isfinite(gap), top + log1p(exp(-gap)), top)


def clip(x: OnnxArray, min: Any = None, max: Any = None) -> OnnxArray:
    if min is not None:
        x = maximum(x, min)
    return x if max is None else minimum(x, max)


def where(condition: Any, x: Any, y: Any) -> OnnxArray:
    (x, y), dtype = _operands(x, y)
    condition, x, y = asarray(condition), astype(x, dtype), astype(y, dtype)
    return record("Where", np.where(condition.value, x.value, y.value), [condition, x, y])


def _reduction(numpy_function: Any, op: str) -> Any:
    def function(x: OnnxArray, *, axis: Any = None, keepdims: Any = False, **_: Any) -> OnnxArray:
        axes = integers(range(x.ndim) if axis is None else np.atleast_1d(axis))
        result = numpy_function(x.value, axis=axis, keepdims=keepdims)
        return record(op, result, [x, axes], keepdims=int(keepdims))

    function.__name__ = function.__qualname__ = numpy_function.__name__
    return function


sum = _reduction(np.sum, "ReduceSum")
mean = _reduction(np.mean, "ReduceMean")
max = _reduction(np.max, "ReduceMax")
min = _reduction(np.min, "ReduceMin")


def any(x: OnnxArray, **options: Any) -> OnnxArray:
    return sum(astype(x, int64), **options) > 0


def argmax(x: OnnxArray, *, axis: int, keepdims: Any = False) -> OnnxArray:
    result = np.argmax(x.value, axis=axis, keepdims=keepdims)
    return record("ArgMax", result, [x], axis=axis, keepdims=int(keepdims))


def astype(x: OnnxArray, dtype: Any, **_: Any) -> OnnxArray:
    dtype = np.dtype(dtype)
    if x.graph is None:
        return OnnxArray(x.value.astype(dtype))
    if dtype.kind == "f" and dtype.itemsize > x.graph.widest.itemsize:
        dtype = x.graph.widest
    return OnnxArray(x.value.astype(dtype), x.graph.name(x, dtype), x.graph)


def expand_dims(x: OnnxArray, *, axis: int = 0) -> OnnxArray:
    return record("Unsqueeze", np.expand_dims(x.value, axis), [x, integers([axis])])


def squeeze(x: OnnxArray, axis: int) -> OnnxArray:
    return record("Squeeze", np.squeeze(x.value, axis), [x, integers([axis])])


def permute_dims(x: OnnxArray, axes: tuple[int, ...]) -> OnnxArray:
    return record("Transpose", np.transpose(x.value, axes), [x], perm=list(axes))


def reshape(x: OnnxArray, shape: tuple[int, ...], **_: Any) -> OnnxArray:
    """A first size that is given as a number is the batch's, which only the run will know."""
    shape = tuple(shape)
    graph_shape = shape if -1 in shape else (-1, *shape[1:])
    return record("Reshape", np.reshape(x.value, shape), [x, integers(graph_shape)])


def concat(arrays: Any, *, axis: int = 0) -> OnnxArray:
    arrays, dtype = _operands(*arrays)
    result = np.concatenate([x.value for x in arrays], axis=axis)
    return record("Concat", result, arrays, dtype, axis=axis)


def stack(arrays: Any, *, axis: int = 0) -> OnnxArray:
    return concat([expand_dims(x, axis=axis) for x in arrays], axis=axis)


def take(x: Any, indices: Any, *, axis: int = 0) -> OnnxArray:
    x, indices = asarray(x), asarray(indices)
    return record("Gather", np.take(x.value, indices.value, axis=axis), [x, indices], axis=axis)


def take_along_axis(x: Any, indices: Any, *, axis: int = -1) -> OnnxArray:
    x, indices = asarray(x), asarray(indices)
    result = np.take_along_axis(x.value, indices.value, axis=axis)
    return record("GatherElements", result, [x, indices], axis=axis)


def zeros_like(x: OnnxArray, dtype: Any = None) -> OnnxArray:
    return full_like(x, 0, dtype=dtype)


def ones_like(x: OnnxArray, dtype: Any = None) -> OnnxArray:
    return full_like(x, 1, dtype=dtype)


def full_like(x: OnnxArray, value: Any, dtype: Any = None) -> OnnxArray:
    """Expanded to the shape at run time, which the batch size decides."""
    result = np.full_like(x.value, value, dtype=dtype)
    shape = record("Shape", np.array(x.shape, np.int64), [x])
    return record("Expand", result, [OnnxArray(np.asarray(value, result.dtype)), shape])


def arange(*bounds: Any, dtype: Any = None, **_: Any) -> OnnxArray:
    return OnnxArray(np.arange(*bounds, dtype=dtype))
