"""Fixtures that every part of the suite shares."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]


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
