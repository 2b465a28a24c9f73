"""Two builds of the same tree are the same bytes, given the date of the release."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def test_two_wheels_are_byte_identical(tmp_path, monkeypatch):
    builder = pytest.importorskip("hatchling.build", reason="the build backend is not installed")
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    digests = set()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        wheel = builder.build_wheel(os.fspath(tmp_path / name))
        digests.add(hashlib.sha256((tmp_path / name / wheel).read_bytes()).hexdigest())
    assert len(digests) == 1
