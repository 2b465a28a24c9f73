"""A figure as a Plotly description: plain dictionaries, with its text and table alternatives.

Colours are names such as "@before"; the page's script replaces them with colours of the light or
dark theme.
"""

from __future__ import annotations

import dataclasses
import html
import json
from collections.abc import Iterable, Sequence
from typing import Any

from focalcal.metrics import Estimate
from focalcal.metrics.summary import plain

LEGEND = {"orientation": "h", "y": 1.02, "yanchor": "bottom"}
DOTTED = {"dash": "dot", "width": 1.5}
SILENT = {"hoverinfo": "skip", "showlegend": False}
"""Settings of a trace without a tooltip or a legend entry."""


@dataclasses.dataclass(frozen=True)
class Figure:
    """A figure for the page: traces and layout, and its text and table alternatives.

    choices: sets of traces to pick from, as (label, traces), in place of `traces`; picked with a
    slider if `slides`, which starts at position `start`.
    """

    title: str
    layout: dict[str, Any]
    id: str = ""
    text: str = ""
    traces: Sequence[dict[str, Any]] = ()
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    height: int = 360
    choices: tuple[tuple[str, list[dict[str, Any]]], ...] = ()
    slides: bool = False
    start: int = 0

    def spec(self) -> dict[str, Any]:
        """What the script draws, with numbers rounded to six digits."""
        record = {
            "traces": self.traces,
            "layout": {"legend": LEGEND} | self.layout,
            "height": self.height,
            "choices": [traces for _, traces in self.choices],
        }
        return json.loads(json.dumps(plain(record)), parse_float=lambda x: float(f"{float(x):.6g}"))


def table(*columns: tuple[str, Iterable[str]]) -> dict[str, Any]:
    """The table alternative of a figure, as its `header` and `rows`, from named columns."""
    names, cells = zip(*columns)
    return {"header": names, "rows": tuple(zip(*cells, strict=True))}


def axis(title: str, **more: Any) -> dict[str, Any]:
    return {"title": {"text": title}, **more}


def percent_axis(title: str, **more: Any) -> dict[str, Any]:
    """An axis from 0 to 1, in per cent."""
    return axis(title, range=[0, 1.01], tickformat=".0%", **more)


def by_name(title: str, **more: Any) -> dict[str, Any]:
    """A layout with names on the y axis and numbers from 0 on the x axis; `more`: of the y axis."""
    return {"xaxis": axis(title, rangemode="tozero"), "yaxis": {"type": "category"} | more}


def label(name: str, k: int) -> str:
    """A name as an axis label, escaped because Plotly interprets some HTML."""
    name = name if len(name) <= 24 else f"{name[:20]}… ({k})"
    return html.escape(name, quote=False)


def line(x: Any, y: Any, name: str, colour: str = "", **more: Any) -> dict[str, Any]:
    """A line in the colour "@name" if none is given; `more`: further settings of the trace."""
    stroke = {"color": colour or f"@{name}", "width": 2.5} | more.pop("line", {})
    trace = {"type": "scatter", "mode": "lines", "x": x, "y": y, "name": name, "line": stroke}
    return trace | more


def points(x: Any, y: Any, name: str, colour: Any = "", **more: Any) -> dict[str, Any]:
    """Markers, not clipped at the edges; arguments as in `line`."""
    marker = {"color": colour or f"@{name}", "size": 11} | more.pop("marker", {})
    trace = {"type": "scatter", "mode": "markers", "x": x, "y": y, "name": name, "marker": marker}
    return trace | {"cliponaxis": False} | more


def band(x: Sequence[Any], low: Any, high: Any, colour: str) -> dict[str, Any]:
    """The area between two curves."""
    fill = {"fill": "toself", "fillcolor": f"{colour}-band", "line": {"width": 0}}
    return line([*x, *reversed(x)], [*high, *reversed(low)], "", colour, **fill, **SILENT)


def error_bars(estimates: Sequence[Estimate], colour: str, scale: float = 100) -> dict[str, Any]:
    """Intervals of estimates, as Plotly's `error_x` or `error_y`."""
    return {
        "type": "data",
        "symmetric": False,
        "array": [scale * (e.high - e.value) for e in estimates],
        "arrayminus": [scale * (e.value - e.low) for e in estimates],
        "color": colour,
    }
