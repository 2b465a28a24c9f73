"""Values in a growing ONNX graph: what `onnx_namespace` computes on.

An `OnnxArray` carries a name in the graph and, beside it, the NumPy value of one example batch:
shapes and dtypes come from that value, and arithmetic among constants never reaches the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
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

    def name(self, x: OnnxArray, dtype: Any = None) -> str:
        """The graph name of `x`, a constant if need be, cast to `dtype` if given."""
        if x.graph is None:
            return self._constant(x.value if dtype is None else x.value.astype(dtype))
        if dtype is None or x.dtype == dtype:
            return x.name
        return self.emit("Cast", [x.name], to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def _constant(self, value: np.ndarray) -> str:
        key = (value.dtype.str, value.shape, value.tobytes())
        if key not in self._constants:
            self._constants[key] = f"c{len(self._constants)}"
            self.initializers.append(numpy_helper.from_array(value, self._constants[key]))
        return self._constants[key]


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
        """Integers, slices of constant bounds and None, one per axis from the first."""
        x, axis = self, 0
        for k in key if isinstance(key, tuple) else (key,):
            if k is None:
                x = record("Unsqueeze", np.expand_dims(x.value, axis), [x, integers([axis])])
            elif isinstance(k, (int, np.integer)):
                result = np.take(x.value, k, axis=axis)
                x = record("Gather", result, [x, integers(k)], axis=axis)
                continue
            elif isinstance(k, slice) and k.step is None:
                if k != slice(None):
                    end = np.iinfo(np.int64).max if k.stop is None else k.stop
                    ends = [integers([v]) for v in (k.start or 0, end, axis)]
                    x = record("Slice", x.value[(slice(None),) * axis + (k,)], [x, *ends])
            else:
                raise FocalcalError(
                    f"expected integers, slices or None as an index of a traced array, got {k!r}"
                )
            axis += 1
        return x

    __hash__ = None


def record(
    op: str, result: Any, inputs: Sequence[OnnxArray], dtype: Any = None, **attributes: Any
) -> OnnxArray:
    """`result` as the output of a node on `inputs`, cast to `dtype`; a constant if they all are."""
    graph = next((x.graph for x in inputs if x.graph is not None), None)
    if graph is None:
        return OnnxArray(result)
    names = [graph.name(x, dtype) for x in inputs]
    return OnnxArray(result, graph.emit(op, names, **attributes), graph)


def integers(values: Any) -> OnnxArray:
    """Axes, shapes and positions, as ONNX takes them."""
    return OnnxArray(np.asarray(values, np.int64))


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
    "neg": "negative",
    "abs": "abs",
    "invert": "logical_not",
}.items():
    setattr(OnnxArray, f"__{_name}__", _operator(_function))
