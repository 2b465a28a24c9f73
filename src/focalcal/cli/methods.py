"""`focalcal methods`: the available calibrators and metrics."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table

from focalcal.cli import app, options, terminal


@app.command(example="focalcal methods")
def methods(
    metrics: Annotated[
        bool, typer.Option("--metrics", help="List the metrics instead of the calibrators.")
    ] = False,
    json: options.Json = False,
) -> None:
    """List the calibrators, or the metrics, with one line each."""
    if metrics:
        records = _metrics()
        table = Table("metric", "what it is", "better", box=None)
        cells = [(m["name"], m["explanation"], m["better"]) for m in records]
    else:
        records = _calibrators()
        table = Table("method", "what it does", "keeps class", box=None)
        keeps = {True: "yes", False: ""}
        cells = [(m["method"], m["summary"], keeps[m["preserves_accuracy"]]) for m in records]
    for row in cells:
        table.add_row(*row)
    terminal.result(json, records, table)


def _calibrators() -> list[dict[str, Any]]:
    from focalcal.calibrators import METHODS

    return [
        {
            "method": name,
            "summary": kind.summary,
            "preserves_accuracy": kind.preserves_accuracy,
            "settings": list(kind().get_params(deep=False)),
        }
        for name, kind in METHODS.items()
    ]


def _metrics() -> list[dict[str, Any]]:
    from focalcal.metrics import METRICS

    fields = ("name", "title", "explanation", "unit", "better", "why", "streams")
    kinds = {"bootstrap": "bootstrap", None: None}
    return [
        {field: getattr(m, field) for field in fields}
        | {
            "interval": kinds.get(m.interval, "closed form"),
            "exact_stream": m.streams and m.bound is None,
        }
        for m in METRICS.values()
    ]
