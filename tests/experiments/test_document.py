"""The document that is committed is the one the store gives."""

from __future__ import annotations

from pathlib import Path


def test_the_committed_document_opens_with_the_committed_summary():
    root = Path(__file__).parents[2]
    summary = (root / "results" / "summary.md").read_text("utf-8").strip()
    document = (root / "docs" / "REPRODUCTION.md").read_text("utf-8")
    assert summary in document, "write it again: focalcal reproduce --report docs/REPRODUCTION.md"
