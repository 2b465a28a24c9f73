"""`focalcal methods`: the available calibrators and metrics."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from focalcal.cli import app, terminal


@app.command(example="focalcal methods")
def methods(
    metrics: Annotated[
        bool, typer.Option("--metrics", help="List the metrics instead of the calibrators.")
    ] = False,
) -> terminal.Result:
    """List the calibrators, or the metrics, with one line each."""
    return _metrics() if metrics else _calibrators()


def _calibrators() -> terminal.Result:
    from focalcal.calibrators import METHODS

    records = []
    table = Table("method", "what it does", "keeps class", box=None)
    for name, kind in METHODS.items():
        keeps, settings = kind.preserves_accuracy, list(kind().get_params(deep=False))
        record = {"method": name, "summary": kind.summary, "preserves_accuracy": keeps}
        records.append(record | {"settings": settings})
        table.add_row(name, kind.summary, "yes" if keeps else "")
    return terminal.Result(records, [table])


def _metrics() -> terminal.Result:
    from focalcal.metrics import METRICS

    fields = ("name", "title", "explanation", "unit", "better", "why", "streams")
    kinds = {"bootstrap": "bootstrap", None: None}
    records = []
    table = Table("metric", "what it is", "better", box=None)
    for m in METRICS.values():
        record = {field: getattr(m, field) for field in fields}
        record["interval"] = kinds.get(m.interval, "closed form")
        records.append(record | {"exact_stream": m.streams and m.bound is None})
        table.add_row(m.name, m.explanation, m.better)
    return terminal.Result(records, [table])
