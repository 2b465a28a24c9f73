"""Fixtures that every part of the suite shares."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from focalcal.amx import cap_if_forbidden

ROOT = Path(__file__).resolve().parents[1]

cap_if_forbidden()  # before any test imports torch, and for the workers and processes they start


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of the real logits, weights and data sets; skips the test where it is absent."""
    folder = Path(os.environ.get("FOCALCAL_SHARED", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"real data not found at {folder}; set FOCALCAL_SHARED to its folder")
    return folder


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture(scope="session")
def real_cifar10(shared_data: Path, request: pytest.FixtureRequest) -> Path:
    """Folder with the official CIFAR-10 binary files, rebuilt once into pytest's cache."""
    from focalcal.files import atomic_path

    image = pytest.importorskip("PIL.Image", reason="the mosaics need Pillow")
    source = shared_data / "cifar10"
    folder = Path(request.config.cache.mkdir("cifar10")) / "cifar-10-batches-bin"
    labels = np.load(source / "y.npy").reshape(6, 10_000, 1).astype(np.uint8)
    image.MAX_IMAGE_PIXELS = None
    for name, y in zip([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"], labels):
        path = folder / f"{name}.bin"
        if path.is_file():
            continue
        # 100×100 tiles of 32×32 pixels, row by row, to records of a label and three planes.
        mosaic = np.asarray(image.open(source / f"{name}.webp").convert("RGB"))
        tiles = mosaic.reshape(100, 32, 100, 32, 3).transpose(0, 2, 4, 1, 3).reshape(10_000, 3072)
        with atomic_path(path) as temporary:
            np.concatenate([y, tiles], axis=1).tofile(temporary)
    return folder.parent


@pytest.fixture(params=[False, True], ids=["numpy", "numba"])
def compiled(request, monkeypatch):
    """Both forms of the loops, whatever the size of the input."""
    from focalcal import kernels

    if request.param:
        pytest.importorskip("numba")
    monkeypatch.setattr(kernels, "LEAST", 1 if request.param else 1 << 60)
    return request.param
