"""Arrays: `.npz`, `.npy` pairs and torch's `.pt`. Pickles are refused, never executed."""

from __future__ import annotations

import json
import math
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np

from focalcal._arrays import is_torch, to_numpy
from focalcal.errors import FileFormatError, needing
from focalcal.formats.roles import LABELS, LOGITS, PROBS
from focalcal.formats.text import METADATA, Table, parse_metadata


def read_npz(path: Path) -> tuple[Table, dict[str, Any]]:
    table: Table = {}
    metadata: dict[str, Any] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                name = info.filename.removesuffix(".npy")
                with archive.open(info) as stream:
                    array = _read_array(stream, info.file_size, f"{path}: array {name!r}")
                if name == METADATA:
                    metadata = parse_metadata(str(array), path)
                else:
                    table[name] = _texts(array)
    except FileFormatError:
        raise
    # A damaged archive may raise any of these deep inside zipfile.
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, RuntimeError) as error:
        raise FileFormatError(
            f"{path} is not a readable npz file ({error}); it may be truncated, write it again"
        ) from error
    return table, metadata


def read_npy(path: Path) -> tuple[Table, dict[str, Any]]:
    """`x_logits.npy` together with the `x_labels.npy` beside it, if there is one."""
    array, stem = load_npy(path), path.stem
    names = [name for name in LOGITS + PROBS if name in stem.lower()]
    for name in names:
        start = stem.lower().rindex(name)
        for label in LABELS:
            beside = path.with_name(f"{stem[:start]}{label}{stem[start + len(name) :]}.npy")
            if beside.is_file():
                return {name: array, "labels": load_npy(beside)}, {}
    return {names[0] if names else stem: array}, {}


def load_npy(path: Path) -> np.ndarray:
    """The array of one `.npy` file."""
    with path.open("rb") as stream:
        return _texts(_read_array(stream, path.stat().st_size, str(path)))


def _read_array(stream: IO[bytes], size: int, where: str) -> np.ndarray:
    """An array in npy form; its declared shape is compared with its size before allocating."""
    try:
        version = np.lib.format.read_magic(stream)
        read_header = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        shape, fortran, dtype = read_header(stream)
    except (ValueError, KeyError) as error:
        raise FileFormatError(f"{where} has no valid npy header ({error})") from error
    if dtype.hasobject:
        raise FileFormatError(
            f"{where} holds Python objects (a pickle), which are never loaded; "
            "save numbers or fixed-width strings, as in numpy.array(labels, dtype=str)"
        )
    needed = math.prod(shape) * dtype.itemsize
    left = size - stream.tell()
    if needed != left:
        raise FileFormatError(
            f"{where} declares shape {shape} ({needed} bytes) but {left} bytes follow; "
            "the file is damaged, write it again"
        )
    data = stream.read(needed)
    if len(data) != needed:
        raise FileFormatError(f"{where} ends early; the file is damaged, write it again")
    return np.frombuffer(data, dtype=dtype).reshape(shape, order="F" if fortran else "C")


def _texts(array: np.ndarray) -> np.ndarray:
    """Fixed-width strings as Python strings; numbers unchanged."""
    if array.dtype.kind == "S":
        array = np.char.decode(array, "utf-8")
    return array.astype(object) if array.dtype.kind == "U" else array


def write_npz(path: Path, table: Table, metadata: dict[str, Any]) -> None:
    extra = {METADATA: np.array(json.dumps(metadata))} if metadata else {}
    arrays = {name: _without_objects(values) for name, values in table.items()}
    np.savez_compressed(path, **arrays, **extra)


def _without_objects(values: np.ndarray) -> np.ndarray:
    """Objects as fixed-width strings, since an npz cannot hold objects."""
    if values.dtype != object:
        return values
    return np.array(["" if v is None else str(v) for v in values.ravel()]).reshape(values.shape)


def read_pt(path: Path) -> tuple[Table, dict[str, Any]]:
    """A dict of tensors and lists written by `torch.save`, or one tensor."""
    with needing("torch", "torch", "reading .pt files"):
        import torch
    import pickle

    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, OSError, EOFError, ValueError) as error:
        raise FileFormatError(
            f"{path} holds more than tensors, numbers and strings, or is damaged; nothing else is "
            "loaded, not even NumPy arrays; save a dict such as "
            "{'logits': logits, 'labels': labels} with torch.save"
        ) from error
    if is_torch(content):
        content = {path.stem: content}
    if not isinstance(content, dict):
        raise FileFormatError(
            f"{path}: expected a tensor or a dict of tensors, got {type(content).__name__}"
        )
    table: Table = {}
    metadata: dict[str, Any] = {}
    for key, value in content.items():
        if is_torch(value):
            table[str(key)] = to_numpy(value)
        elif key == "class_names":
            metadata["class_names"] = [str(name) for name in value]
        elif isinstance(value, list | tuple) and value:
            texts = all(isinstance(v, str) for v in value)
            table[str(key)] = np.array(value, dtype=object if texts else None)
    return table, metadata
