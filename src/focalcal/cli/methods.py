"""`focalcal methods`: the calibrators there are."""

from __future__ import annotations

from typing import Annotated

import typer

from focalcal.cli import terminal


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: focalcal methods")(methods)


def methods(
    metrics: Annotated[
        bool, typer.Option("--metrics", help="List the metrics instead of the calibrators.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """List the calibrators, or the metrics, with one line each."""
    if metrics:
        _metrics(json)
        return
    from focalcal.calibrators import METHODS

    if json:
        terminal.print_json(
            [
                {
                    "method": name,
                    "summary": kind.summary,
                    "preserves_accuracy": kind.preserves_accuracy,
                    "settings": list(kind().get_params(deep=False)),
                }
                for name, kind in METHODS.items()
            ]
        )
        return
    from rich.table import Table

    table = Table("method", "what it does", "keeps class", box=None)
    for name, kind in METHODS.items():
        table.add_row(name, kind.summary, "yes" if kind.preserves_accuracy else "")
    terminal.out().print(table)


def _metrics(json: bool) -> None:
    from focalcal.metrics import METRICS

    if json:
        fields = ("name", "title", "explanation", "unit", "better", "why")
        kinds = {"bootstrap": "bootstrap", None: None}
        terminal.print_json(
            [
                {field: getattr(m, field) for field in fields}
                | {
                    "interval": kinds.get(m.interval, "closed form"),
                    "streams": m.streams,
                    "exact_stream": m.streams and m.bound is None,
                }
                for m in METRICS.values()
            ]
        )
        return
    from rich.table import Table

    table = Table("metric", "what it is", "better", box=None)
    for m in METRICS.values():
        table.add_row(m.name, m.explanation, m.better)
    terminal.out().print(table)
