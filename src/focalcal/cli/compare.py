"""`focalcal compare`: is the second model better than the first?"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from focalcal.cli import _inputs, terminal
from focalcal.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from focalcal.metrics import Comparison
    from focalcal.predictions import Predictions

EPILOG = f"Example: focalcal compare before.npz after.npz. {_inputs.LAYOUTS}"
HEADLINE = "nll"
"""The metric of the first line: a proper score, which falls only if probabilities get better."""


def register(app: typer.Typer) -> None:
    app.command(epilog=EPILOG)(compare)


def compare(
    first: Annotated[Path, typer.Argument(help="Predictions of the first model.")],
    second: Annotated[Path, typer.Argument(help="Those of the second, on the same samples.")],
    inputs: _inputs.Inputs,
    bins: Annotated[int, typer.Option(help="Number of bins.", min=1)] = 15,
    resamples: Annotated[int, typer.Option(help="Paired bootstrap resamples.", min=2)] = 1000,
    level: Annotated[float, typer.Option(help="Coverage of the intervals.")] = 0.95,
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Paired differences of every metric, with intervals and a test.

    Samples are matched by their ids where both files have them, else by their order.
    """
    from focalcal import metrics

    given = inputs.predictions(first)
    a, b = matched(given, inputs.predictions(second, classes=given.class_names))
    with terminal.working("resampling"):
        found = metrics.compare(None, a, b, bins=bins, resamples=resamples, level=level, seed=seed)
    if json:
        terminal.print_json({"verdict": verdict(found), **found.to_dict()})
        return
    console = terminal.out()
    console.print(verdict(found), style="bold", markup=False)
    console.print(_table(found, first.stem, second.stem))
    console.print(f"–: cannot be told apart at {100 * level:g} %; each metric is tested by itself.")


def matched(a: Predictions, b: Predictions) -> tuple[Predictions, Predictions]:
    """The samples that both have, in one order: by id where both have ids."""
    import numpy as np

    if a.ids is None or b.ids is None:
        if a.n != b.n:
            raise InputError(
                f"expected the same samples in both files, got {a.n} and {b.n} rows; give both "
                "an id column"
            )
        return a, b
    for given in (a, b):
        if len(np.unique(given.ids)) != given.n:
            raise InputError("expected each id once, got one twice")
    common, rows, others = np.intersect1d(a.ids, b.ids, return_indices=True)
    if len(common) == 0:
        raise InputError("expected ids that both files have, got none")
    return a.take(rows), b.take(others)


def verdict(found: Comparison) -> str:
    """Which model has the better headline metric, or that they cannot be told apart."""
    from focalcal.metrics import METRICS

    m, d = METRICS[HEADLINE], found[HEADLINE]
    values = f"{m.title} {m.text(d.first)} → {m.text(d.second)}"
    p = "" if math.isnan(d.p_value) else f", {terminal.p_text(d.p_value)}"
    if not d.better:
        return f"The two cannot be told apart: {values}{p}, {found.n:,} samples."
    return f"The {d.better} is better: {values}{p}, {found.n:,} samples."


def _table(found: Comparison, first: str, second: str) -> Table:
    from rich.table import Table

    from focalcal.cli.evaluate import shown

    table = Table(title=f"{first} and {second}: {found.n:,} samples")
    table.add_column("metric")
    for title in ("first", "second", "second − first", "p", "better"):
        table.add_column(title, justify="right")
    for m, d in shown(found.metrics):
        half = (d.difference.high - d.difference.low) / 2
        change = _number(m, d.difference.value)
        if not math.isnan(half):
            change += f" ± {_number(m, half)}"
        told = d.p_value <= 1 - found.level
        table.add_row(
            m.title + (", %" if m.unit == "%" and "%" not in m.title else ""),
            _number(m, d.first),
            _number(m, d.second),
            change,
            ""
            if math.isnan(d.p_value)
            else terminal.p_text(d.p_value).removeprefix("p ").removeprefix("= "),
            (d.better or "differ") if told else "–",
        )
    return table


def _number(m: Any, value: float) -> str:
    return m.text(value).removesuffix(" %").replace("-", "−")
