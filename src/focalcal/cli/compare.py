"""`focalcal compare`: is the second model better than the first?"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from focalcal.cli import _inputs, options, terminal
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
    bins: options.Bins = 15,
    resamples: options.Resamples = 1000,
    level: options.Level = 0.95,
    seed: options.Seed = 0,
    json: options.Json = False,
) -> None:
    """Paired differences of every metric, with intervals and a test.

    Samples are matched by their ids where both files have them, else by their order.
    """
    from focalcal import metrics

    given = inputs.predictions(first)
    a, b = _matched(given, inputs.predictions(second, classes=given.class_names))
    with terminal.working("resampling"):
        found = metrics.compare(None, a, b, bins=bins, resamples=resamples, level=level, seed=seed)
    if json:
        terminal.print_json({"verdict": _verdict(found), **found.to_dict()})
        return
    terminal.show(_verdict(found), style="bold")
    terminal.show(
        _table(found, first.stem, second.stem),
        f"–: cannot be told apart at {100 * level:g} %; each metric is tested by itself.",
    )


def _matched(a: Predictions, b: Predictions) -> tuple[Predictions, Predictions]:
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


def _verdict(found: Comparison) -> str:
    """Which model has the better headline metric, or that they cannot be told apart."""
    from focalcal.metrics import METRICS

    m, d = METRICS[HEADLINE], found[HEADLINE]
    p = "" if math.isnan(d.p_value) else f", {terminal.p_text(d.p_value)}"
    best = f"The {d.better} is better" if d.better else "The two cannot be told apart"
    infinite = math.isinf(d.first), math.isinf(d.second)
    if any(infinite):
        which = "two" if all(infinite) else "first" if infinite[0] else "second"
        best = f"The {which} gave a probability of 0 to a class that occurred"
    return f"{best}: {m.title} {m.text(d.first)} → {m.text(d.second)}{p}, {found.n:,} samples."


def _table(found: Comparison, first: str, second: str) -> Table:
    from rich.table import Table

    from focalcal.cli._slices import p_cell
    from focalcal.cli.evaluate import shown

    table = Table("metric", title=f"{first} and {second}: {found.n:,} samples")
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
            p_cell(d.p_value),
            (d.better or "differ") if told else "–",
        )
    return table


def _number(m: Any, value: float) -> str:
    return m.text(value).removesuffix(" %").replace("-", "−")
