"""One self-contained page: pieces of HTML, each escaped where it enters, and the frame."""

from __future__ import annotations

import functools
import html
import importlib.resources
import json
import string
from collections.abc import Iterable, Sequence
from typing import Any

from focalcal import __version__
from focalcal.report.figure import Figure


def esc(text: Any) -> str:
    """Text for HTML content and attributes."""
    return html.escape(str(text), quote=True)


def script_json(record: Any) -> str:
    """JSON for a script element: no `<`, so nothing inside can end the element."""
    return (
        json.dumps(record, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        .replace("<", "\\u003c")
        .replace("\u2028", "\\u2028")
        .replace("\u2029", "\\u2029")
    )


@functools.cache
def asset(name: str) -> str:
    return (importlib.resources.files("focalcal.report") / "assets" / name).read_text("utf-8")


def frame(
    *,
    title: str,
    lead: str,
    links: Iterable[tuple[str, str]],
    body: str,
    figures: Iterable[Figure],
    foot: str,
) -> str:
    """The whole page; `title`, `lead`, `foot` and the links' labels are text, `body` is HTML."""
    from plotly.offline import get_plotlyjs

    return string.Template(asset("page.html")).substitute(
        version=__version__,
        title=esc(title),
        lead=esc(lead),
        foot=esc(foot),
        links="".join(f'<li><a href="#{esc(at)}">{esc(name)}</a></li>' for at, name in links),
        body=body,
        figures=script_json({f.id: f.spec() for f in figures}),
        style=asset("style.css"),
        plotly=get_plotlyjs(),
        script=asset("page.js"),
    )


def section(id: str, title: str, *content: str, level: int = 2) -> str:
    return (
        f'<section id="{esc(id)}" aria-labelledby="{esc(id)}-title">'
        f'<h{level} id="{esc(id)}-title">{esc(title)}</h{level}>{"".join(content)}</section>'
    )


def paragraph(text: str) -> str:
    return f"<p>{esc(text)}</p>"


def table(
    caption: str, header: Sequence[str], rows: Iterable[Sequence[str]], *, wide: bool = False
) -> str:
    """A plain table of text; the first cell of a row is its header. It scrolls when too wide."""
    head = "".join(f'<th scope="col">{esc(cell)}</th>' for cell in header)
    body = "".join(
        f'<tr><th scope="row">{esc(row[0])}</th>'
        + "".join(f"<td>{esc(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows
    )
    return scroll(
        f"<table{' class=wide' if wide else ''}><caption>{esc(caption)}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>",
        caption,
    )


def scroll(content: str, label: str) -> str:
    """A region that scrolls sideways, by keyboard too."""
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{esc(label)}">{content}</div>'
    )


def figure(f: Figure, *, label: str | None = None) -> str:
    """A figure with its sentence, and its numbers as a table for those who want or need them."""
    words = f.text or f.title
    caption = f"<figcaption>{esc(f.text)}</figcaption>" if f.text else ""
    control = _picker(f, label or "Show") if f.choices else ""
    numbers = ""
    if f.rows:
        shown = table(f.title, f.header, f.rows)
        numbers = f"<details><summary>Numbers of this figure</summary>{shown}</details>"
    return (
        f'<figure><p class="title">{esc(f.title)}</p>{control}'
        f'<div class="chart" id="{f.id}" role="img" aria-label="{esc(f.title)}: {esc(words)}" '
        f'style="min-height:{f.height}px"></div>{caption}{numbers}</figure>'
    )


def pair(made: Sequence[Figure], drawn: list[Figure], *, label: str | None = None) -> str:
    """Figures side by side where there is room; they are added to `drawn`."""
    drawn += made
    return f'<div class="pair">{"".join(figure(f, label=label) for f in made)}</div>'


def _picker(f: Figure, label: str) -> str:
    """The control that picks among a figure's choices: a list, or a slider with its word."""
    id, names = f"{f.id}-pick", [name for name, _ in f.choices]
    if f.slides:
        words = esc(json.dumps(names, ensure_ascii=False))
        control = (
            f'<input type="range" id="{id}" min="0" max="{len(names) - 1}" value="{f.start}" '
            f'aria-valuetext="{esc(names[f.start])}" data-picks="{f.id}" data-words="{words}">'
            f'<output for="{id}">{esc(names[f.start])}</output>'
        )
    else:
        options = "".join(f'<option value="{i}">{esc(n)}</option>' for i, n in enumerate(names))
        control = f'<select id="{id}" data-picks="{f.id}">{options}</select>'
    return f'<div class="controls"><label for="{id}">{esc(label)}</label>{control}</div>'


def slider(id: str, label: str, lines: Sequence[str], at: int) -> str:
    """A slider that says one of the given lines at each of its positions."""
    return (
        f'<div class="controls"><label for="{id}">{esc(label)}</label>'
        f'<input type="range" id="{id}" min="0" max="{len(lines) - 1}" value="{at}" '
        f'data-says="{esc(json.dumps(list(lines), ensure_ascii=False))}"></div>'
        f'<output for="{id}">{esc(lines[at])}</output>'
    )


def definitions(pairs: Iterable[tuple[str, Any]]) -> str:
    items = "".join(f"<dt>{esc(key)}</dt><dd>{esc(value)}</dd>" for key, value in pairs)
    return f"<dl>{items}</dl>"


def code(text: str) -> str:
    return f'<pre tabindex="0"><code>{esc(text)}</code></pre>'
