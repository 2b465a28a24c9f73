"""`focalcal methods`: the available calibrators and metrics."""

from __future__ import annotations

from typing import Annotated

from focalcal.cli import app, terminal


@app.command(example="focalcal methods")
def methods(
    metrics: Annotated[bool, "List the metrics instead of the calibrators."] = False,
) -> terminal.Result:
    """List the calibrators, or the metrics, with one line each."""
    return _metrics() if metrics else _calibrators()


def _calibrators() -> terminal.Result:
    from focalcal.calibrators import METHODS

    records, rows = [], []
    for name, kind in METHODS.items():
        keeps, settings = kind.preserves_accuracy, list(kind().get_params(deep=False))
        record = {"method": name, "summary": kind.summary, "preserves_accuracy": keeps}
        records.append(record | {"settings": settings})
        rows.append((name, kind.summary, "yes" if keeps else ""))
    table = terminal.table(("method", "summary", "keeps class"), rows, text=3)
    return terminal.Result(records, [table])


def _metrics() -> terminal.Result:
    from focalcal.metrics import METRICS

    fields = ("name", "title", "explanation", "unit", "better", "why", "streams")
    records, rows = [], []
    for m in METRICS.values():
        kind = m.interval if m.interval in ("bootstrap", None) else "closed form"
        record = {field: getattr(m, field) for field in fields} | {"interval": kind}
        records.append(record | {"exact_stream": m.streams and m.bound is None})
        rows.append((m.name, m.explanation, m.better))
    table = terminal.table(("metric", "definition", "better"), rows, text=3)
    return terminal.Result(records, [table])
