"""The script that draws the pictures of docs/a-year.md."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "a_year.py"


@pytest.mark.slow
def test_the_page_runs_and_its_pictures_are_drawn(tmp_path, monkeypatch):
    pyplot = pytest.importorskip("matplotlib.pyplot", reason="matplotlib is not installed")
    pyplot.switch_backend("agg")
    spec = importlib.util.spec_from_file_location("a_year", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main(tmp_path)
    for name in ("slices", "threshold", "monitor"):
        assert (tmp_path / f"year-{name}.png").stat().st_size > 5000
