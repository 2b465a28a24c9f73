"""Sphinx: `make docs` builds the site offline, with warnings as errors.

Pages that follow from the code (commands, reference, metrics, errata) are written by the modules
in `_ext/` into folders that git ignores.
"""

import os
import sys
import warnings
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

import commands  # noqa: E402
import inventories  # noqa: E402
import pictures  # noqa: E402
import reference  # noqa: E402
import thumbnails  # noqa: E402

from focalcal import __version__  # noqa: E402
from focalcal.metrics.declare import METRICS  # noqa: E402
from focalcal_papers.errata import errata  # noqa: E402

project = "focalcal"
author = "The focalcal authors"
copyright = "2026, the focalcal authors"
release = version = __version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "mathml",
    "parameters",
]
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
templates_path = ["_templates"]
exclude_patterns = ["_build", "_ext", "_templates", "gallery/*.ipynb", "gallery/*.py.md5"]
autosummary_generate = True
autodoc_typehints = "none"
autodoc_member_order = "bysource"
default_role = "py:obj"
# Written before Sphinx looks for pages: autosummary makes stubs only for those it finds.
reference.write_pages(HERE / "reference")
commands.write_pages(HERE / "commands")
intersphinx_mapping = inventories.write_inventories(HERE / "_build" / "inventories")
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True
html_math_renderer = "mathml"
html_theme = "furo"
html_title = f"focalcal {__version__}"
html_static_path = ["_static"]
html_css_files = ["focalcal.css"]
html_extra_path = ["_build/extra"]
# Pages other than these are read on the code's host too, where links to source files lead out.
suppress_warnings = ["myst.xref_missing", "myst.header", "toc.empty_glob", "config.cache"]
sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"/plot_",
    "within_subsection_order": "thumbnails.Order",
    "download_all_examples": False,
    "min_reported_time": 60,
    "show_memory": False,
    "remove_config_comments": True,
    "image_scrapers": ("matplotlib",),
    "reset_modules": ("matplotlib", "style.for_gallery"),
    "show_signature": False,
    "capture_repr": (),
    "notebook_images": False,
}

QUICK = bool(os.environ.get("FOCALCAL_DOCS_QUICK"))
"""Whether to leave out what takes minutes: the examples, the demo report and the theory page."""


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(c.replace("|", "\\|") for c in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _errata() -> str:
    rows = [
        (
            e.paper,
            e.where,
            e.printed,
            e.true,
            "; ".join(f"{name}: {value:.4g}" for name, value in e.evidence.items()),
        )
        for e in errata()
    ]
    return _table(("paper", "where", "printed", "true", "evidence"), rows)


def _between(path: Path, mark: str) -> str:
    """The part of a file between two comments: a table lives with the benchmark that makes it."""
    start, end = f"<!-- {mark}:start -->", f"<!-- {mark}:end -->"
    text = path.read_text()
    return text.split(start)[1].split(end)[0] if start in text and end in text else ""


def _metrics() -> str:
    rows = []
    for m in METRICS.values():
        kind = m.interval if isinstance(m.interval, str) else "closed form"
        streams = "–" if not m.streams else "within a bound" if m.bound else "exact"
        rows.append(
            (
                f"`{m.name}`",
                m.explanation,
                m.better or "–",
                kind if m.interval else f"none: {m.why}",
                streams,
            )
        )
    return _table(("metric", "what it is", "better", "interval", "streaming"), rows)


INCLUDES = {
    "<!-- metrics -->": _metrics,
    "<!-- errata -->": _errata,
    "<!-- quality -->": lambda: _between(HERE.parent / "benchmarks" / "README.md", "quality"),
}


WITH_OUTPUT = ("tour",)
"""Pages that show what their commands print."""


def _include(app, docname, source) -> None:
    source[0] = pictures.with_pictures(source[0], "/_build/pictures")
    if docname in WITH_OUTPUT:
        source[0] = commands.with_output(source[0])
    for mark, text in INCLUDES.items():
        if mark in source[0]:
            source[0] = source[0].replace(mark, text())


def _write_extra(app) -> None:
    """Pictures, the demo report and the theory page; a quick build has the pictures only."""
    pictures.write_pictures(HERE / "_build" / "pictures")
    if QUICK:
        return
    folder = HERE / "_build" / "extra"
    from typer.testing import CliRunner

    from focalcal.cli import app as program

    for arguments in (["demo", "-o", "demo-report.html"], ["theory", "-o", "theory-page.html"]):
        arguments[-1] = str(folder / arguments[-1])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = CliRunner().invoke(program, arguments)
        if result.exit_code:
            raise RuntimeError(f"focalcal {' '.join(arguments)}: {result.output}")


def _write_cards(app, config) -> None:
    thumbnails.write_cards(HERE / "_build" / "cards", run=not QUICK)


def _skip_foreign(app, what, name, obj, skip, options) -> bool | None:
    """scikit-learn's and torch's own methods are documented there."""
    own = getattr(obj, "__module__", None) or "focalcal"
    return True if own.split(".")[0] in ("sklearn", "torch", "torchmetrics") else None


def _escape_bars(app, what, name, obj, options, lines) -> None:
    """|x| in a docstring is an absolute value, not a reStructuredText substitution."""
    lines[:] = [line if ">>>" in line else line.replace("|", "\\|") for line in lines]


def setup(app) -> None:
    (HERE / "_build" / "extra").mkdir(parents=True, exist_ok=True)
    # Before sphinx-gallery, which copies the cards as thumbnails.
    app.connect("config-inited", _write_cards, priority=1)
    app.connect("autodoc-process-docstring", _escape_bars)
    app.connect("autodoc-skip-member", _skip_foreign)
    app.connect("builder-inited", _write_extra)
    app.connect("source-read", _include)
