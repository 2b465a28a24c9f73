"""One self-contained page: pieces of HTML, from templates that escape every value, in a frame."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable
from typing import Any

import jinja2
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from focalcal import __version__
from focalcal.report.figure import Figure


def script_json(record: Any) -> Markup:
    """JSON for a script element: no `<`, so nothing inside can end the element."""
    settings = {"allow_nan": False, "ensure_ascii": False, "separators": (",", ":")}
    return Markup(isolated(htmlsafe_json_dumps(record, json.dumps, **settings)))


_RIGHT_TO_LEFT = "[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]+"
_RUN = re.compile(f"{_RIGHT_TO_LEFT}(?:[ \\d_-]*{_RIGHT_TO_LEFT})*")


def isolated(text: str) -> str:
    """Isolate Hebrew or Arabic names, so that they do not reorder the rest of their line.

    Like the element bdi, but isolating marks also work in attributes and figures.
    """
    return _RUN.sub("\u2068\\g<0>\u2069", text)


@jinja2.pass_eval_context
def _shown(context: Any, value: Any) -> Any:
    """Text to be shown literally; in Markdown, escaped so as not to form HTML, cells or lines."""
    if context.autoescape:
        return value if isinstance(value, Markup) else isolated(str(value))
    text = str(value)
    for old, new in (("&", "&amp;"), ("<", "&lt;"), ("|", "\\|"), ("\n", " "), ("\r", " ")):
        text = text.replace(old, new)
    return text


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("focalcal.report", "assets"),
        autoescape=lambda name: not name.endswith(".md"),
        finalize=_shown,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["json"] = functools.partial(json.dumps, ensure_ascii=False)
    return environment


def fill(name: str, **values: Any) -> str:
    """A template of `assets/`, filled in."""
    return _environment().get_template(name).render(**values)


def piece(name: str, *values: Any) -> Markup:
    """A piece of `assets/pieces.html`, filled in."""
    return getattr(_environment().get_template("pieces.html").module, name)(*values)


def frame(*, body: str, figures: Iterable[Figure], **texts: Any) -> str:
    """The whole page: `body` is HTML.

    texts: `title`, `lead`, `foot`, and `links` as pairs of an id and a label.
    """
    from plotly.offline import get_plotlyjs

    return fill(
        "page.html",
        version=__version__,
        body=Markup(body),
        figures=script_json({f.id: f.spec() for f in figures}),
        plotly=Markup(get_plotlyjs()),
        **texts,
    )
