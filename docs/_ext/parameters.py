"""Docstrings to pages: arguments become a table, and every page ends in "see also".

Our docstrings name arguments in prose, `y_true: (N,) labels; bins: how many`. Such a paragraph is
turned into a table of the arguments in the signature, with their defaults.
"""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

JOINED = r", | and | or "
ENTRY = re.compile(rf"(?:(?<=[;.] )|^)(\w+(?:(?:{JOINED})\w+)*): ")
COMMON = {
    "y_true": "(N,) labels: class indices or names",
    "y_prob": "(N, K) probabilities, or (N,) for class 1 of a binary classifier",
    "logits": "(N, K) logits instead of probabilities; everything stays in log space",
    "confidence": "(N,) forecasts of an event, instead of probabilities",
    "bins": "number of bins of confidence",
    "level": "coverage of the intervals",
    "resamples": "number of bootstrap resamples",
    "sample_weight": "(N,) how many samples each row stands for",
    "seed": "seed of the random numbers",
    "threshold": "confidence at or above which a prediction counts as highly confident",
    "progress": "called with the fraction done",
    "weight": "(C,) weights of the classes",
    "ignore_index": "label of samples to ignore",
    "label_smoothing": "share of the target that is spread over all classes",
    "reduction": '"mean", "sum" or "none"',
    "task": '"multilabel" for several labels per sample',
    "title": "heading of the figure",
}
"""Common meanings of arguments, for docstrings that do not repeat them."""
REFERENCE = re.compile(r"(?<!`)`([A-Za-z_][\w.]*)`(?!`)")


def parameters(obj: Any) -> dict[str, inspect.Parameter]:
    try:
        found = dict(inspect.signature(obj).parameters)
    except (TypeError, ValueError):
        return {}
    return {name: p for name, p in found.items() if name != "self"}


def split_entries(paragraph: str, known: set[str]) -> list[tuple[str, str]]:
    """(names, text) pairs if the whole paragraph is a list of arguments, else nothing.

    >>> split_entries("x: (N,) values; bins: how many.", {"x", "bins"})
    [('x', '(N,) values'), ('bins', 'how many.')]
    """
    starts = [m for m in ENTRY.finditer(paragraph) if set(re.split(JOINED, m[1])) <= known]
    if not starts or starts[0].start() != 0:
        return []
    ends = [m.start() for m in starts[1:]] + [len(paragraph)]
    return [(m[1], paragraph[m.end() : end].strip().rstrip(";")) for m, end in zip(starts, ends)]


def _default(names: str, given: dict[str, inspect.Parameter]) -> str:
    values = [given[name].default for name in re.split(JOINED, names) if name in given]
    shown = {repr(v) for v in values if v is not inspect.Parameter.empty}
    text = shown.pop() if len(shown) == 1 else ""
    return f"``{text}``" if text and len(text) < 30 and " at 0x" not in text else ""


def table(entries: list[tuple[str, str]], given: dict[str, inspect.Parameter]) -> list[str]:
    lines = [".. list-table::", "   :header-rows: 1", "   :widths: 18 14 68", ""]
    rows = [("argument", "default", "meaning")]
    rows += [(f"``{names}``", _default(names, given), text) for names, text in entries]
    for row in rows:
        lines += [f"   {'*' if i == 0 else ' '} - {cell}" for i, cell in enumerate(row)]
    return [*lines, ""]


def _paragraphs(lines: list[str]) -> list[list[str]]:
    found: list[list[str]] = [[]]
    for line in lines:
        if line.strip():
            found[-1].append(line)
        elif found[-1]:
            found.append([])
    return [p for p in found if p]


def _position(name: str, order: list[str]) -> int:
    return order.index(name) if name in order else len(order)


def _see_also(obj: Any, name: str, text: str) -> list[str]:
    """What the docstring mentions in backticks, and the neighbours in its module."""
    module = importlib.import_module(name.rsplit(".", 1)[0])
    public = list(getattr(module, "__all__", []))
    own = name.rsplit(".", 1)[1]
    named = [n for n in dict.fromkeys(REFERENCE.findall(text)) if n in public and n != own]
    home = getattr(obj, "__module__", None)
    near = [n for n in public if n != own and getattr(getattr(module, n), "__module__", 0) == home]
    links = list(dict.fromkeys([*named, *near]))[:6]
    refs = ", ".join(f":py:obj:`~{module.__name__}.{n}`" for n in links)
    return ["", ".. seealso::", f"   {refs}", ""] if refs else []


def process(app, what, name, obj, options, lines) -> None:
    if what not in ("function", "class"):
        return
    text = "\n".join(lines)
    given = parameters(obj)
    known = set(given) | set(getattr(obj, "__dataclass_fields__", {}))
    out: list[str] = []
    for paragraph in _paragraphs(lines):
        entries = split_entries(" ".join(line.strip() for line in paragraph), known)
        if entries:
            named = {n for names, _ in entries for n in re.split(JOINED, names)}
            entries += [(name, COMMON.get(name, "")) for name in given if name not in named]
            order = list(given)
            entries.sort(key=lambda e: _position(re.split(JOINED, e[0])[0], order))
        out += table(entries, given) if entries else [*paragraph, ""]
    own_page = name.count(".") == 2 or what == "class"
    lines[:] = out + (_see_also(obj, name, text) if own_page else [])


def setup(app) -> dict[str, bool]:
    # After the handler that escapes bars, so that a table's cells are escaped too.
    app.connect("autodoc-process-docstring", process, priority=900)
    return {"parallel_read_safe": True}
