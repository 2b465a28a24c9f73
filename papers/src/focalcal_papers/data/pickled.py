"""Reading the Python version of CIFAR, a pickle, without executing it.

A pickle is a program that names functions and calls them. Here the few permitted names resolve to
inert stand-ins that only record their arguments, every other name is refused, and the arrays are
built afterwards from the recorded bytes. NumPy's own unpickling code is never called.
"""

from __future__ import annotations

import io
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from focalcal.errors import FileFormatError


class _DType:
    """Stands in for numpy.dtype: remembers the letter code, ignores its state."""

    def __init__(self, code: Any = None, *_: Any) -> None:
        self.code = code.decode("latin-1") if isinstance(code, bytes) else code

    def __setstate__(self, state: Any) -> None:
        pass


class _Array:
    """Stands in for numpy.ndarray: remembers (version, shape, dtype, fortran order, bytes)."""

    state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def build(self) -> np.ndarray:
        match self.state:
            case (int(), tuple(shape), _DType(code="u1"), fortran, bytes(data)):
                # A transposed array is stored column by column.
                order = "F" if fortran else "C"
                sizes = [n for n in shape if isinstance(n, int) and n >= 0]
                if len(sizes) == len(shape) and math.prod(sizes) == len(data):
                    return np.frombuffer(data, np.uint8).reshape(shape, order=order)
        raise pickle.UnpicklingError("an array that is not of unsigned bytes or not whole")


def _reconstruct(*_: Any) -> _Array:
    return _Array()


_ADMITTED = {
    ("numpy", "dtype"): _DType,
    ("numpy", "ndarray"): _Array,
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
}


class _InertUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ADMITTED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it names {module}.{name}") from None


def read_cifar_pickle(path: Path) -> dict[bytes, Any]:
    """The dictionary in one of CIFAR's Python files: labels, `data` (N, 3072) uint8, names."""
    try:
        content = _InertUnpickler(io.BytesIO(path.read_bytes()), encoding="bytes").load()
        if not isinstance(content, dict):
            raise pickle.UnpicklingError(f"it holds a {type(content).__name__}, not a dictionary")
        return {
            key: value.build() if isinstance(value, _Array) else value
            for key, value in content.items()
        }
    except OSError:
        raise
    except Exception as error:  # a damaged pickle can fail with almost any exception
        raise FileFormatError(
            f"expected one of CIFAR's Python files, refused {path}: {error}; "
            f"fetch it again or use the binary version"
        ) from error
