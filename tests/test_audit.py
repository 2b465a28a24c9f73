"""The audit of dependencies: known faults fail, what could not be looked up is said."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / ".ci" / "audit.py"
CLEAN = {"name": "numpy", "version": "2.4.6", "vulns": []}
FAULTY = {
    "name": "pillow",
    "version": "1.0",
    "vulns": [{"id": "PYSEC-1", "fix_versions": ["1.1"], "aliases": [], "description": ""}],
}
UNKNOWN = {"name": "torch", "skip_reason": "not found"}


@pytest.fixture
def script():
    if not SCRIPT.exists():
        pytest.skip("the audit is not part of a source distribution")
    spec = importlib.util.spec_from_file_location("audit", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("report", "plain", "strict", "said"),
    [
        ([CLEAN], 0, 0, "1 of 1 packages looked up, 0 known faults"),
        ([CLEAN, FAULTY], 1, 1, "pillow 1.0: PYSEC-1, mended in 1.1"),
        ([CLEAN, UNKNOWN], 0, 1, "NOT DONE for 1 packages (torch"),
    ],
)
def test_exit_codes(script, monkeypatch, capsys, report, plain, strict, said):
    monkeypatch.setattr(script, "audit", lambda: report)
    for arguments, code in (([], plain), (["--strict"], strict)):
        monkeypatch.setattr("sys.argv", ["audit.py", *arguments])
        assert script.main() == code
        assert said in capsys.readouterr().out


def test_without_a_network(script, monkeypatch, capsys):
    def fail() -> list:
        raise OSError("no route to host")

    monkeypatch.setattr(script, "audit", fail)
    for arguments, code in (([], 0), (["--strict"], 1)):
        monkeypatch.setattr("sys.argv", ["audit.py", *arguments])
        assert script.main() == code
        assert "NOT DONE" in capsys.readouterr().out
