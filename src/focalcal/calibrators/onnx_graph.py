"""Arrays that record ONNX nodes, so that no calibrator needs export code.

An `OnnxArray` implements NumPy's protocols: ufuncs and functions called on it add graph nodes.
Besides its name in the graph it carries the value for one example batch, for shapes and dtypes.
Constants are NumPy arrays, so arithmetic among them never reaches the graph. Python branches on
traced values are errors: use `where`. RULES has an entry for each function that calibrators use.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from onnx import NodeProto, TensorProto, helper, numpy_helper

from focalcal.errors import FocalcalError


class Graph:
    """Nodes and constants collected while a function runs on `OnnxArray`s.

    `widest` is the widest float that casts may use: some runtimes have no float64.
    """

    def __init__(self, widest: str = "float64") -> None:
        self.widest = np.dtype(widest)
        self.nodes: list[NodeProto] = []
        self.initializers: list[TensorProto] = []
        self._constants: dict[tuple[Any, ...], str] = {}

    def emit(self, op: str, inputs: list[str], **attributes: Any) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        return name

    def name(self, x: Any, dtype: Any = None) -> str:
        """The graph name of an array, a constant if it is not traced, cast to `dtype` if given."""
        if not isinstance(x, OnnxArray):
            value = np.asarray(x, dtype)
            key = (value.dtype.str, value.shape, value.tobytes())
            if key not in self._constants:
                self._constants[key] = f"c{len(self._constants)}"
                self.initializers.append(numpy_helper.from_array(value, self._constants[key]))
            return self._constants[key]
        if dtype is None or x.dtype == dtype:
            return x.name
        return self.emit("Cast", [x.name], to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


class OnnxArray(NDArrayOperatorsMixin):
    """A value in an ONNX graph."""

    def __init__(self, value: Any, name: str, graph: Graph) -> None:
        self.value = np.asarray(value)
        self.name = name
        self.graph = graph

    def __array_namespace__(self, api_version: str | None = None) -> Any:
        return np

    dtype = property(lambda self: self.value.dtype)
    shape = property(lambda self: self.value.shape)
    ndim = property(lambda self: self.value.ndim)
    size = property(lambda self: self.value.size)
    device = "cpu"

    def __array_ufunc__(self, ufunc: Any, method: str, *values: Any, **options: Any) -> OnnxArray:
        rule = _rule(ufunc)
        if not isinstance(rule, str):
            return rule(*values)
        dtype = np.result_type(*map(_value, values))
        result = ufunc(*[np.asarray(_value(v), dtype) for v in values])
        return record(rule, result, values, dtype)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> OnnxArray:
        return _rule(function)(*args, **options)

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise FocalcalError(
            "expected array operations only, got a Python branch on a traced value; "
            "write it with where() so that it can be exported to ONNX"
        )

    __bool__ = __float__ = __int__ = __array__ = _refuse

    def __getitem__(self, key: Any) -> OnnxArray:
        """Integers, slices with constant bounds and None, one per axis from the first."""
        x, axis = self, 0
        for k in key if isinstance(key, tuple) else (key,):
            if k is None:
                x = np.expand_dims(x, axis)
            elif isinstance(k, (int, np.integer)):
                x = record("Gather", np.take(x.value, k, axis), [x, np.int64(k)], axis=axis)
                continue
            elif isinstance(k, slice) and k.step is None:
                if k != slice(None):
                    end = np.iinfo(np.int64).max if k.stop is None else k.stop
                    ends = map(_ints, (k.start or 0, end, axis))
                    x = record("Slice", x.value[(slice(None),) * axis + (k,)], [x, *ends])
            else:
                raise FocalcalError(
                    f"expected integers, slices or None as an index of a traced array, got {k!r}"
                )
            axis += 1
        return x


def record(op: str, result: Any, inputs: Any, dtype: Any = None, **attributes: Any) -> OnnxArray:
    """`result` as the output of a node on `inputs`, which are cast to `dtype`."""
    graph = next(x.graph for x in inputs if isinstance(x, OnnxArray))
    names = [graph.name(x, dtype) for x in inputs]
    return OnnxArray(result, graph.emit(op, names, **attributes), graph)


def _value(x: Any) -> Any:
    return x.value if isinstance(x, OnnxArray) else x


def _ints(values: Any) -> np.ndarray:
    return np.atleast_1d(np.asarray(values, np.int64))


def _rule(function: Any) -> Any:
    if function not in RULES:
        raise FocalcalError(f"expected a function with an ONNX rule, got {function.__name__}")
    return RULES[function]


def _log1p(x: OnnxArray) -> OnnxArray:
    """Kahan: the rounding error of u = 1 + x cancels in log(u)·x/(u − 1)."""
    u = 1 + x
    exact = np.where((u == 1) | np.isinf(u), x, np.log(u) * (x / (u - 1)))
    return np.where(np.isnan(x), x, exact)


def _expm1(x: OnnxArray) -> OnnxArray:
    """Kahan: the rounding error of u = exp(x) cancels in (u − 1)·x/log(u)."""
    u = np.exp(x)
    kahan = (u - 1) * (x / np.log(u))
    return np.where(u == 1, x, np.where((u == 0) | np.isinf(u), u - 1, kahan))


def _logaddexp(x: Any, y: Any) -> OnnxArray:
    top, gap = np.maximum(x, y), np.abs(x - y)
    return np.where(np.isfinite(gap), top + np.log1p(np.exp(-gap)), top)


def _where(condition: Any, x: Any, y: Any) -> OnnxArray:
    dtype = np.result_type(_value(x), _value(y))
    x, y = (_astype(v, dtype) if isinstance(v, OnnxArray) else np.asarray(v, dtype) for v in (x, y))
    return record("Where", np.where(*map(_value, (condition, x, y))), [condition, x, y])


def _reduction(function: Any, op: str) -> Any:
    def reduced(x: OnnxArray, axis: Any = None, *, keepdims: bool = False) -> OnnxArray:
        axes = _ints(range(x.ndim) if axis is None else axis)
        result = function(x.value, axis=axis, keepdims=keepdims)
        return record(op, result, [x, axes], keepdims=keepdims)

    return reduced


def _astype(x: OnnxArray, dtype: Any, **_: Any) -> OnnxArray:
    dtype = np.dtype(dtype)
    if dtype.kind == "f" and dtype.itemsize > x.graph.widest.itemsize:
        dtype = x.graph.widest
    return OnnxArray(x.value.astype(dtype), x.graph.name(x, dtype), x.graph)


def _reshape(x: OnnxArray, shape: tuple[int, ...]) -> OnnxArray:
    """A first size given as a number is the batch size, which is only known at run time."""
    graph_shape = shape if -1 in shape else (-1, *shape[1:])
    return record("Reshape", np.reshape(x.value, shape), [x, _ints(graph_shape)])


def _concat(arrays: Any, axis: int = 0) -> OnnxArray:
    values = [_value(x) for x in arrays]
    return record("Concat", np.concat(values, axis), arrays, np.result_type(*values), axis=axis)


def _full_like(x: OnnxArray, value: Any, dtype: Any = None) -> OnnxArray:
    """Expanded at run time to the shape of x, which depends on the batch size."""
    result = np.full_like(x.value, value, dtype=dtype)
    shape = record("Shape", np.array(x.shape, np.int64), [x])
    return record("Expand", result, [np.asarray(value, result.dtype), shape])


RULES = {
    np.add: "Add",
    np.subtract: "Sub",
    np.multiply: "Mul",
    np.true_divide: "Div",
    np.matmul: "MatMul",
    np.maximum: "Max",
    np.minimum: "Min",
    np.equal: "Equal",
    np.less: "Less",
    np.less_equal: "LessOrEqual",
    np.greater: "Greater",
    np.greater_equal: "GreaterOrEqual",
    np.bitwise_and: "And",
    np.bitwise_or: "Or",
    np.invert: "Not",
    np.negative: "Neg",
    np.absolute: "Abs",
    np.exp: "Exp",
    np.log: "Log",
    np.isnan: "IsNaN",
    np.isinf: "IsInf",
    np.isfinite: lambda x: ~(np.isnan(x) | np.isinf(x)),
    np.log1p: _log1p,
    np.expm1: _expm1,
    np.logaddexp: _logaddexp,
    np.sum: _reduction(np.sum, "ReduceSum"),
    np.mean: _reduction(np.mean, "ReduceMean"),
    np.max: _reduction(np.max, "ReduceMax"),
    np.argmax: lambda x, axis, keepdims=False: record(
        "ArgMax", np.argmax(x.value, axis, keepdims=keepdims), [x], axis=axis, keepdims=keepdims
    ),
    np.astype: _astype,
    np.where: _where,
    np.expand_dims: lambda x, axis: record(
        "Unsqueeze", np.expand_dims(x.value, axis), [x, _ints(axis)]
    ),
    np.squeeze: lambda x, axis: record("Squeeze", np.squeeze(x.value, axis), [x, _ints(axis)]),
    np.reshape: _reshape,
    np.concat: _concat,
    np.stack: lambda arrays, axis=0: np.concat([np.expand_dims(x, axis) for x in arrays], axis),
    np.take_along_axis: lambda x, indices, axis=-1: record(
        "GatherElements",
        np.take_along_axis(_value(x), _value(indices), axis),
        [x, indices],
        axis=axis,
    ),
    np.zeros_like: lambda x, **options: _full_like(x, 0, **options),
    np.ones_like: lambda x, **options: _full_like(x, 1, **options),
    np.full_like: _full_like,
}
"""The ONNX operation of a NumPy function, or the function that records it."""
