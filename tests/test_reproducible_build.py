"""Two builds of the same tree are the same bytes, given the date of the release."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("folder", [ROOT, ROOT / "papers"], ids=["focalcal", "focalcal-papers"])
@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_two_builds_are_byte_identical(folder, kind, tmp_path, monkeypatch):
    builder = pytest.importorskip("hatchling.build", reason="the build backend is not installed")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    digests = set()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        file = getattr(builder, f"build_{kind}")(os.fspath(tmp_path / name))
        digests.add(hashlib.sha256((tmp_path / name / file).read_bytes()).hexdigest())
    assert len(digests) == 1
