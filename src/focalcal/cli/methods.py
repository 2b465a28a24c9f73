"""`focalcal methods`: the available calibrators and metrics."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from focalcal.cli import options, terminal


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: focalcal methods")(methods)


def methods(
    metrics: Annotated[
        bool, typer.Option("--metrics", help="List the metrics instead of the calibrators.")
    ] = False,
    json: options.Json = False,
) -> None:
    """List the calibrators, or the metrics, with one line each."""
    from rich.table import Table

    records = _metrics() if metrics else _calibrators()
    if json:
        terminal.print_json(records)
    elif metrics:
        table = Table("metric", "what it is", "better", box=None)
        for m in records:
            table.add_row(m["name"], m["explanation"], m["better"])
        terminal.show(table)
    else:
        table = Table("method", "what it does", "keeps class", box=None)
        for m in records:
            table.add_row(m["method"], m["summary"], "yes" if m["preserves_accuracy"] else "")
        terminal.show(table)


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
