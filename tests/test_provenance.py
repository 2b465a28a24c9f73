from __future__ import annotations

import json

from focalcal import __version__, provenance


def test_record_is_json_and_names_the_code(monkeypatch):
    record = provenance.provenance()
    assert json.loads(json.dumps(record)) == record
    assert record["focalcal"] == __version__
    assert "numpy" in record["versions"]
    assert record["hardware"]["cores"] >= 1


def test_commit_can_be_given_for_a_copy_without_history(monkeypatch):
    provenance.commit.cache_clear()
    monkeypatch.setenv("FOCALCAL_COMMIT", "abc")
    assert provenance.commit() == "abc"
    provenance.commit.cache_clear()
