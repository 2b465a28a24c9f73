"""Sphinx: `make docs` builds the site with warnings as errors."""

from pathlib import Path

from focalcal import __version__
from focalcal_papers.errata import errata

project = "focalcal"
author = "The focalcal authors"
copyright = "2026, the focalcal authors"
release = version = __version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
]
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
autodoc_default_options = {"members": True, "show-inheritance": False}
autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_google_docstring = True
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"focalcal {__version__}"
# Pages other than these are read on the code's host too, where links to source files lead out.
suppress_warnings = ["myst.xref_missing", "myst.header", "toc.empty_glob"]


def _rows() -> str:
    lines = ["| paper | where | printed | true | evidence |", "|---|---|---|---|---|"]
    for e in errata():
        numbers = "; ".join(f"{name}: {value:.4g}" for name, value in e.evidence.items())
        cells = (e.paper, e.where, e.printed, e.true, numbers)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _include_errata(app, docname, source) -> None:
    source[0] = source[0].replace("<!-- errata -->", _rows()) if docname == "theory" else source[0]


def _include_quality(app, docname, source) -> None:
    """The quality table lives with the benchmark that makes it; the page shows the same lines."""
    if docname != "calibrators":
        return
    notes = (Path(__file__).parents[1] / "benchmarks" / "README.md").read_text()
    start, end = "<!-- quality:start -->", "<!-- quality:end -->"
    if start in notes and end in notes:
        table = notes.split(start)[1].split(end)[0]
        source[0] = source[0].replace("<!-- quality -->", table)


def _skip_foreign(app, what, name, obj, skip, options) -> bool | None:
    """scikit-learn's own methods refer to its own glossary; they are documented there."""
    own = getattr(obj, "__module__", None) or "focalcal"
    return True if own.split(".")[0] in ("sklearn", "torch") else None


def _escape_bars(app, what, name, obj, options, lines) -> None:
    """|x| in a docstring is an absolute value, not a reStructuredText substitution."""
    lines[:] = [line if ">>>" in line else line.replace("|", "\\|") for line in lines]


def setup(app) -> None:
    app.connect("autodoc-process-docstring", _escape_bars)
    app.connect("autodoc-skip-member", _skip_foreign)
    app.connect("source-read", _include_errata)
    app.connect("source-read", _include_quality)
