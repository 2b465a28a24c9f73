"""The document that is committed is the one the store gives."""

from __future__ import annotations

from pathlib import Path


def test_the_committed_document_opens_with_the_committed_summary():
    root = Path(__file__).parents[3] / "papers"
    summary = (root / "results" / "summary.md").read_text("utf-8").strip()
    document = (root / "REPRODUCTION.md").read_text("utf-8")
    assert summary in document, "write it again: reproduce --report REPRODUCTION.md"
