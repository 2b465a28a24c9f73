"""Every code block of the README and of the documentation runs, and the site builds.

A block runs alone (but for pages that tell one story), in a folder that holds `val.npz` and
`test.npz`: Python blocks as they are, and in shell blocks every line that starts with `focalcal`. A
block of text right below a Python block is what that must print. Other languages are prose unless
listed.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from typer.testing import CliRunner

from browsing import launched, opened
from focalcal.cli import app
from focalcal.examples import resnet18

ROOT = Path(__file__).resolve().parents[1]
PAGES = [p for p in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if p.is_file()]
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
SHELL = ("console", "bash", "sh")
PROSE = ("text", "toml", "json", "bibtex", "yaml", "mermaid")
OUTSIDE = ("git ", "cd ", "make", "pip ", "python ", "tensorboard ", "#")
"""Starts of shell lines that a test cannot run in a folder of its own."""
LONG = ("focalcal demo", "focalcal reproduce", "focalcal train", "focalcal predict")
"""Commands that need data sets or minutes; their own tests run them."""

MADE = ("gallery/", "demo-report.html", "theory-page.html")
"""Pages that the build writes."""


def blocks(page):
    return [(kind.strip(), text) for kind, text in FENCE.findall(page.read_text())]


def run_python(code, names, where):
    if ">>>" in code:
        test = doctest.DocTestParser().get_doctest(code, names, where, where, 0)
        out = io.StringIO()
        result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(
            test, out=out.write, clear_globs=False
        )
        names.update(test.globs)
        assert result.failed == 0, out.getvalue()
    else:
        exec(compile(code, where, "exec"), names)


def run_shell(text, where):
    for line in text.replace("\\\n", " ").splitlines():
        command = line.strip().removeprefix("$ ").strip()
        if not command or command.startswith((*OUTSIDE, *LONG)):
            continue
        if not command.startswith("focalcal"):
            assert line.startswith((" ", "│", "┃")) or "$ " in text, (
                f"{where}: cannot run {command!r}"
            )
            continue  # output shown under a `$ command`
        arguments = shlex.split(command, comments=True)[1:]
        result = CliRunner().invoke(app, arguments)
        expected = 3 if command.endswith("exit code 3") else 0
        said = f"{where}: {command}\n{result.output}\n{result.exception!r}"
        assert result.exit_code == expected, said


OTHERS = {"integrations.md"}
"""Pages about other libraries, which warn of their own matters."""


@pytest.fixture(scope="session")
def sample_predictions(tmp_path_factory):
    folder = tmp_path_factory.mktemp("predictions")
    for name, part in zip(("val", "test"), resnet18()):
        part.save(folder / f"{name}.npz")
    return folder


@pytest.mark.filterwarnings("ignore::focalcal.errors.FitWarning")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_run(page, tmp_path, monkeypatch, sample_predictions):
    printed = None
    for number, (kind, text) in enumerate(blocks(page), 1):
        where = f"{page.name}, block {number}"
        shutil.copytree(sample_predictions, tmp_path / str(number))
        monkeypatch.chdir(tmp_path / str(number))
        names = {"__name__": page.stem}
        if kind == "python":
            with contextlib.redirect_stdout(io.StringIO()) as out, warnings.catch_warnings():
                if page.name in OTHERS:
                    warnings.simplefilter("ignore")
                run_python(text, names, where)
            printed = out.getvalue()
        elif kind in SHELL:
            run_shell(text, where)
        elif kind == "text" and printed is not None:
            assert printed.strip() == text.strip(), f"{where}: the block above prints {printed!r}"
            printed = None
        else:
            assert kind in PROSE or kind.startswith("{"), f"{where}: language {kind!r} is not run"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_lead_somewhere(page):
    text = FENCE.sub("", page.read_text())
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if "://" not in target and not target.startswith(MADE):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_page_is_in_the_table_of_contents():
    index = (ROOT / "docs" / "index.md").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        listed = re.search(rf"^{page.stem}$", index, re.MULTILINE)
        assert listed or page.stem == "index", page


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built with warnings as errors; examples have tests of their own and are not run."""
    for needed in ("sphinx", "myst_parser", "furo", "sphinx_gallery"):
        pytest.importorskip(needed, reason=f"{needed} is not installed")
    place = tmp_path_factory.mktemp("site")
    options = ["-W", "--keep-going", "-q", "-D", "plot_gallery=0", "-b", "html"]
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *options, ROOT / "docs", place],
        capture_output=True,
        text=True,
        env=os.environ | {"FOCALCAL_DOCS_QUICK": "1"},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return place


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_site_builds_without_warnings(site):
    assert "Komisarenko" in (site / "theory.html").read_text()
    assert "<math" in (site / "theory.html").read_text()
    page = (site / "reference" / "objects" / "focalcal.metrics.ece.html").read_text()
    assert "See also" in page
    assert "sample_weight" in page
    assert "$ focalcal evaluate test.npz" in (site / "commands" / "evaluate.html").read_text()
    assert "plot_reliability" in (site / "gallery" / "index.html").read_text()


OPENED = (
    "index.html",
    "gallery/index.html",
    "gallery/plot_reliability.html",
    "reference/objects/focalcal.metrics.ece.html",
    "commands/evaluate.html",
    "tour.html",
    "ece.html",
    "losses.html",
)


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "dark")])
def test_pages_are_quiet_and_fit(site, width, scheme):
    with launched() as browser:
        for name in OPENED:
            page, complaints = opened(browser, site / name, width=width, scheme=scheme)
            assert complaints == [], name
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
            page.context.close()
