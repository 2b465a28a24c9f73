"""The array API functions that write ONNX nodes, so that no calibrator needs export code.

This module is the namespace of `OnnxArray`, hence names such as `sum` and `max`. Python branches
on traced values are errors: use `where`. A function missing here is one small definition.
"""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np
from numpy import bool_ as bool
from numpy import e, finfo, float32, float64, inf, int32, int64, isdtype, nan, newaxis, pi

from focalcal.calibrators.onnx_graph import Graph, OnnxArray, node

__all__ = ["bool", "e", "finfo", "float32", "float64", "inf", "int32", "int64", "isdtype"]
__all__ += ["nan", "newaxis", "pi"]


def asarray(values: Any, dtype: Any = None, **_: Any) -> OnnxArray:
    if isinstance(values, OnnxArray):
        return values if dtype is None else astype(values, dtype)
    return OnnxArray(np.asarray(values, dtype=dtype))


def _graph_of(*arrays: OnnxArray) -> Graph | None:
    return next((x.graph for x in arrays if x.graph is not None), None)


def _operands(*values: Any) -> tuple[list[OnnxArray], Any]:
    """Operands as arrays with their common dtype; Python scalars follow the arrays."""
    raw = [v.value if isinstance(v, OnnxArray) else v for v in values]
    dtype = np.result_type(*raw)
    return [
        v if isinstance(v, OnnxArray) else OnnxArray(np.asarray(v, dtype)) for v in values
    ], dtype


def _elementwise(numpy_function: Any, op: str, promote: builtins.bool = True) -> Any:
    def function(*values: Any) -> OnnxArray:
        arrays, dtype = _operands(*values)
        if promote:
            result = numpy_function(*[x.value.astype(dtype) for x in arrays])
        else:
            result = numpy_function(*[x.value for x in arrays])
        graph = _graph_of(*arrays)
        if graph is None:
            return OnnxArray(result)
        return OnnxArray(result, graph.emit(op, [graph.name(x, dtype) for x in arrays]), graph)

    function.__name__ = function.__qualname__ = numpy_function.__name__
    return function


add = _elementwise(np.add, "Add")
subtract = _elementwise(np.subtract, "Sub")
multiply = _elementwise(np.multiply, "Mul")
divide = _elementwise(np.true_divide, "Div")
pow = _elementwise(np.power, "Pow")
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


def not_equal(x: Any, y: Any) -> OnnxArray:
    return logical_not(equal(x, y))


def isfinite(x: OnnxArray) -> OnnxArray:
    return logical_not(logical_or(isnan(x), isinf(x)))


def square(x: OnnxArray) -> OnnxArray:
    return multiply(x, x)


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
    top = maximum(x, y)
    gap = abs(subtract(x, y))
    return where(isfinite(gap), top + log1p(exp(-gap)), top)


def clip(x: OnnxArray, min: Any = None, max: Any = None) -> OnnxArray:
    if min is not None:
        x = maximum(x, min)
    return x if max is None else minimum(x, max)


def where(condition: Any, x: Any, y: Any) -> OnnxArray:
    (x, y), dtype = _operands(x, y)
    condition = asarray(condition)
    result = np.where(condition.value, x.value.astype(dtype), y.value.astype(dtype))
    graph = _graph_of(condition, x, y)
    if graph is None:
        return OnnxArray(result)
    names = [graph.name(condition), graph.name(x, dtype), graph.name(y, dtype)]
    return OnnxArray(result, graph.emit("Where", names), graph)


def _reduction(numpy_function: Any, op: str) -> Any:
    def function(x: OnnxArray, *, axis: Any = None, keepdims: builtins.bool = False, **_: Any):
        result = numpy_function(x.value, axis=axis, keepdims=keepdims)
        if x.graph is None:
            return OnnxArray(result)
        axes = range(x.ndim) if axis is None else np.atleast_1d(axis)
        axes = x.graph.constant([int(a) for a in axes], np.int64)
        out = x.graph.emit(op, [x.name, axes], keepdims=int(keepdims))
        return OnnxArray(result, out, x.graph)

    function.__name__ = function.__qualname__ = numpy_function.__name__
    return function


sum = _reduction(np.sum, "ReduceSum")
mean = _reduction(np.mean, "ReduceMean")
max = _reduction(np.max, "ReduceMax")
min = _reduction(np.min, "ReduceMin")


def any(x: OnnxArray, **options: Any) -> OnnxArray:
    return sum(astype(x, int64), **options) > 0


def all(x: OnnxArray, **options: Any) -> OnnxArray:
    return logical_not(any(logical_not(x), **options))


def argmax(x: OnnxArray, *, axis: int, keepdims: builtins.bool = False) -> OnnxArray:
    result = np.argmax(x.value, axis=axis, keepdims=keepdims)
    return node(x, result, "ArgMax", axis=axis, keepdims=int(keepdims))


def astype(x: OnnxArray, dtype: Any, **_: Any) -> OnnxArray:
    dtype = np.dtype(dtype)
    if x.graph is not None and dtype.kind == "f" and dtype.itemsize > x.graph.widest.itemsize:
        dtype = x.graph.widest
    result = x.value.astype(dtype)
    if x.graph is None:
        return OnnxArray(result)
    return OnnxArray(result, x.graph.name(x, dtype), x.graph)


def expand_dims(x: OnnxArray, *, axis: int = 0) -> OnnxArray:
    axis = axis if axis >= 0 else axis + x.ndim + 1
    return node(x, np.expand_dims(x.value, axis), "Unsqueeze", [axis])


def squeeze(x: OnnxArray, axis: Any) -> OnnxArray:
    axes = [int(a) for a in np.atleast_1d(axis)]
    return node(x, np.squeeze(x.value, tuple(axes)), "Squeeze", axes)


def permute_dims(x: OnnxArray, axes: tuple[int, ...]) -> OnnxArray:
    return node(x, np.transpose(x.value, axes), "Transpose", perm=list(axes))


def reshape(x: OnnxArray, shape: tuple[int, ...], **_: Any) -> OnnxArray:
    """A first size that is given as a number is the batch's, which only the run will know."""
    shape = tuple(shape)
    graph_shape = shape if -1 in shape else (-1, *shape[1:])
    return node(x, np.reshape(x.value, shape), "Reshape", graph_shape)


def concat(arrays: Any, *, axis: int = 0) -> OnnxArray:
    arrays, dtype = _operands(*arrays)
    result = np.concatenate([x.value for x in arrays], axis=axis)
    graph = _graph_of(*arrays)
    if graph is None:
        return OnnxArray(result)
    names = [graph.name(x, dtype) for x in arrays]
    return OnnxArray(result, graph.emit("Concat", names, axis=axis), graph)


def stack(arrays: Any, *, axis: int = 0) -> OnnxArray:
    return concat([expand_dims(x, axis=axis) for x in arrays], axis=axis)


def matmul(x: Any, y: Any) -> OnnxArray:
    (x, y), dtype = _operands(x, y)
    graph = _graph_of(x, y)
    result = x.value @ y.value
    if graph is None:
        return OnnxArray(result)
    return OnnxArray(
        result, graph.emit("MatMul", [graph.name(x, dtype), graph.name(y, dtype)]), graph
    )


def _gather(op: str, x: OnnxArray, indices: Any, axis: int, result: np.ndarray) -> OnnxArray:
    graph = _graph_of(x, indices)
    if graph is None:
        return OnnxArray(result)
    return OnnxArray(result, graph.emit(op, [graph.name(x), graph.name(indices)], axis=axis), graph)


def take(x: Any, indices: Any, *, axis: int = 0) -> OnnxArray:
    x, indices = asarray(x), asarray(indices)
    return _gather("Gather", x, indices, axis, np.take(x.value, indices.value, axis=axis))


def take_along_axis(x: Any, indices: Any, *, axis: int = -1) -> OnnxArray:
    x, indices = asarray(x), asarray(indices)
    result = np.take_along_axis(x.value, indices.value, axis=axis)
    return _gather("GatherElements", x, indices, axis, result)


def searchsorted(edges: Any, x: OnnxArray, *, side: str = "left") -> OnnxArray:
    """Branchless binary search over constant 1-D edges: ONNX has no such operator."""
    edges = np.asarray(edges.value if isinstance(edges, OnnxArray) else edges)
    width = 1 << int(edges.size).bit_length()
    table = OnnxArray(np.concatenate([edges, np.full(width - edges.size, np.inf, edges.dtype)]))
    below = less if side == "left" else less_equal
    index = astype(zeros_like(x), int64)
    step = width // 2
    while step:
        index = index + step * astype(below(take(table, index + (step - 1)), x), int64)
        step //= 2
    return index


def zeros_like(x: OnnxArray, dtype: Any = None) -> OnnxArray:
    return full_like(x, 0, dtype=dtype)


def ones_like(x: OnnxArray, dtype: Any = None) -> OnnxArray:
    return full_like(x, 1, dtype=dtype)


def full_like(x: OnnxArray, value: Any, dtype: Any = None) -> OnnxArray:
    """Expanded to the shape at run time, which the batch size decides."""
    result = np.full_like(x.value, value, dtype=dtype)
    if x.graph is None:
        return OnnxArray(result)
    shape = x.graph.emit("Shape", [x.name])
    out = x.graph.emit("Expand", [x.graph.constant(value, result.dtype), shape])
    return OnnxArray(result, out, x.graph)


def arange(*bounds: Any, dtype: Any = None, **_: Any) -> OnnxArray:
    return OnnxArray(np.arange(*bounds, dtype=dtype))
