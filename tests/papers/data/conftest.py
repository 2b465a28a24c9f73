"""Small files in the official formats, made by the tests."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture
def write_idx():
    """Write an array of bytes as an idx file, zipped if the name says so."""

    def write(path: Path, array: np.ndarray) -> None:
        head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
        raw = head + array.astype(np.uint8).tobytes()
        path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)

    return write


@pytest.fixture
def cifar10_folder(tmp_path: Path) -> Path:
    """Six binary files of 20 records; pixel 0 of record i of file f is 20 f + i."""
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for f, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        records = rng.integers(0, 256, size=(20, 3073), dtype=np.uint8)
        records[:, 0] = rng.integers(0, 10, size=20)
        records[:, 1] = 20 * f + np.arange(20)
        records.tofile(folder / f"{name}.bin")
    return tmp_path
