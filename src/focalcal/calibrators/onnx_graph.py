"""Values in a growing ONNX graph: what `onnx_namespace` computes on.

An `OnnxArray` carries a name in the graph and, beside it, the NumPy value of one example batch:
shapes and dtypes come from that value, and arithmetic among constants never reaches the graph.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

from focalcal.errors import FocalcalError


class Graph:
    """Nodes and constants collected while a function runs on `OnnxArray`s.

    `widest` is the widest float a cast may ask for: some runtimes have no float64.
    """

    def __init__(self, widest: str = "float64") -> None:
        self.widest = np.dtype(widest)
        self.nodes: list[NodeProto] = []
        self.initializers: list[TensorProto] = []
        self._constants: dict[tuple[Any, ...], str] = {}

    def input(self, name: str, value: np.ndarray) -> OnnxArray:
        return OnnxArray(value, name, self)

    def emit(self, op: str, inputs: list[str], **attributes: Any) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        return name

    def constant(self, value: Any, dtype: Any = None) -> str:
        value = np.ascontiguousarray(value, dtype=dtype).reshape(np.shape(value))
        key = (value.dtype.str, value.shape, value.tobytes())
        if key not in self._constants:
            self._constants[key] = f"c{len(self._constants)}"
            self.initializers.append(numpy_helper.from_array(value, self._constants[key]))
        return self._constants[key]

    def name(self, x: OnnxArray, dtype: Any = None) -> str:
        """The graph name of `x`, a constant if need be, cast to `dtype` if given."""
        if x.graph is None:
            return self.constant(x.value, dtype)
        if dtype is None or x.dtype == dtype:
            return x.name
        return self.emit("Cast", [x.name], to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


class OnnxArray:
    """A value in an ONNX graph; a constant when `graph` is None."""

    __array_ufunc__ = None  # NumPy operands defer to the reflected operators here

    def __init__(self, value: Any, name: str = "", graph: Graph | None = None) -> None:
        self.value = np.asarray(value)
        self.name = name
        self.graph = graph

    def __array_namespace__(self, api_version: str | None = None) -> Any:
        from focalcal.calibrators import onnx_namespace

        return onnx_namespace

    dtype = property(lambda self: self.value.dtype)
    shape = property(lambda self: self.value.shape)
    ndim = property(lambda self: self.value.ndim)
    size = property(lambda self: self.value.size)
    device = "cpu"
    T = property(lambda self: self.__array_namespace__().permute_dims(self, (1, 0)))

    def _constant(self) -> np.ndarray:
        if self.graph is not None:
            raise FocalcalError(
                "expected array operations only, got a Python branch on a traced value; "
                "write it with where() so that it can be exported to ONNX"
            )
        return self.value

    def __bool__(self) -> bool:
        return bool(self._constant())

    def __float__(self) -> float:
        return float(self._constant())

    def __int__(self) -> int:
        return int(self._constant())

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.asarray(self._constant(), dtype=dtype)

    def __getitem__(self, key: Any) -> OnnxArray:
        return _getitem(self, key)

    __hash__ = None


def node(
    x: OnnxArray, result: np.ndarray, op: str, *constants: Any, **attributes: Any
) -> OnnxArray:
    """One node on `x` whose further inputs are integer constants; `result` is its value."""
    if x.graph is None:
        return OnnxArray(result)
    names = [x.name, *(x.graph.constant(c, np.int64) for c in constants)]
    return OnnxArray(result, x.graph.emit(op, names, **attributes), x.graph)


def _operator(function: str, reflected: bool = False) -> Any:
    def operator(self: OnnxArray, *other: Any) -> OnnxArray:
        operands = (*other, self) if reflected else (self, *other)
        return getattr(self.__array_namespace__(), function)(*operands)

    return operator


for _name, _function in {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "truediv": "divide",
    "pow": "pow",
    "and": "logical_and",
    "or": "logical_or",
    "matmul": "matmul",
}.items():
    setattr(OnnxArray, f"__{_name}__", _operator(_function))
    setattr(OnnxArray, f"__r{_name}__", _operator(_function, reflected=True))
for _name, _function in {
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
    "eq": "equal",
    "ne": "not_equal",
    "neg": "negative",
    "abs": "abs",
    "invert": "logical_not",
}.items():
    setattr(OnnxArray, f"__{_name}__", _operator(_function))


def _getitem(x: OnnxArray, key: Any) -> OnnxArray:
    """Integers, slices with constant bounds, None and Ellipsis; no masks."""
    key = key if isinstance(key, tuple) else (key,)
    if x.graph is None:
        return OnnxArray(x.value[tuple(k.value if isinstance(k, OnnxArray) else k for k in key)])
    if Ellipsis in [k for k in key if not isinstance(k, (OnnxArray, np.ndarray))]:
        at = key.index(Ellipsis)
        missing = x.ndim - sum(k is not None for k in key) + 1
        key = key[:at] + (slice(None),) * missing + key[at + 1 :]
    axis = 0
    for k in key:
        if k is None:
            x = node(x, np.expand_dims(x.value, axis), "Unsqueeze", [axis])
            axis += 1
        elif isinstance(k, slice):
            x = _slice(x, k, axis)
            axis += 1
        elif isinstance(k, (int, np.integer)):
            x = node(x, np.take(x.value, k, axis=axis), "Gather", int(k), axis=axis)
        else:
            raise FocalcalError(
                f"expected integers, slices or None as an index of a traced array, got {k!r}"
            )
    return x


def _slice(x: OnnxArray, part: slice, axis: int) -> OnnxArray:
    if part == slice(None):
        return x
    step = part.step or 1
    far = np.iinfo(np.int64).max
    start = part.start if part.start is not None else (0 if step > 0 else far)
    stop = part.stop if part.stop is not None else (far if step > 0 else -far)
    result = x.value[(slice(None),) * axis + (part,)]
    return node(x, result, "Slice", [start], [stop], [axis], [step])
