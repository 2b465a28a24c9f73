"""`focalcal theory`: the page and the errata."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from focalcal.cli import app
from focalcal.errors import InputError
from focalcal_papers import theory_page as theory
from focalcal_papers.errata import errata

runner = CliRunner()


def test_page_is_written_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(theory, "render", lambda tick: "<!doctype html>θ")
    result = runner.invoke(app, ["theory", "-o", str(tmp_path / "t.html")])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "t.html").read_text(encoding="utf-8") == "<!doctype html>θ"
    assert "t.html" in result.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["theory", "-o", "x.pdf"],
        ["predict", "run", "-o", "x.pdf"],
        ["curvature", "run", "--figure", "x.html"],
        ["reproduce", "ie/table1", "--report", "x.pdf"],
    ],
)
def test_an_ending_that_promises_another_format_is_refused(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="expected a name ending in"):
        runner.invoke(app, arguments, catch_exceptions=False)
    assert list(tmp_path.iterdir()) == []


def test_json_is_the_errata():
    result = runner.invoke(app, ["theory", "--json"])
    found = json.loads(result.stdout)
    assert [(e["paper"], e["where"]) for e in found] == [(e.paper, e.where) for e in errata()]
    assert found[0]["evidence"] == errata()[0].evidence
