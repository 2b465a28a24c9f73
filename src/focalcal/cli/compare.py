"""`focalcal compare`: is the second model better than the first?"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from focalcal.cli import _inputs, app, options, terminal
from focalcal.errors import FileFormatError, InputError

if TYPE_CHECKING:
    from focalcal.metrics import Comparison
    from focalcal.predictions import Predictions

HEADLINE = "nll"
"""The metric of the first line: a proper score, which falls only if probabilities improve."""


@app.command(example="focalcal compare before.npz after.npz")
def compare(
    first: Annotated[Path, "Predictions of the first model."],
    second: Annotated[Path, "Predictions of the second model on the same samples."],
    inputs: _inputs.Inputs,
    bins: options.Bins = 15,
    resamples: options.Resamples = 1000,
    level: options.Level = 0.95,
    seed: options.Seed = 0,
) -> terminal.Result:
    """Test which of two models is better, metric by metric.

    Prints paired differences with intervals and p-values. Samples are matched by id if both files
    have ids, otherwise by order. If one file lacks the columns of an option, as files written by
    `apply` do, it is read by the usual names.
    """
    from focalcal import metrics

    given, missing = _read(inputs, first)
    other, also = _read(inputs, second, classes=given.class_names)
    if missing and also:  # the option is misspelt: do not read other columns instead
        raise missing
    a, b = _matched(given, other)
    with terminal.working("resampling"):
        found = metrics.compare(None, a, b, bins=bins, resamples=resamples, level=level, seed=seed)
    verdict = _verdict(found)
    header = ("metric", "first", "second", "second − first", "p", "better")
    names = [path.stem for path in (first, second)]
    if names[0] == names[1]:
        names = [f"{path.absolute().parent.name}/{path.stem}" for path in (first, second)]
    title = f"{names[0]} and {names[1]}: {terminal.count(found.n, 'sample')}"
    parts = [
        terminal.Text(verdict, "bold"),
        terminal.table(header, _rows(found), title),
        f"–: cannot be told apart at {100 * level:g} %; each metric is tested on its own.",
    ]
    return terminal.Result({"verdict": verdict, **found.to_dict()}, parts)


def _read(
    inputs: _inputs.Inputs, file: Path, **options: Any
) -> tuple[Predictions, FileFormatError | None]:
    """A file read with the options; or else by the usual names, with the error of the options."""
    usual = dataclasses.replace(inputs, **dict.fromkeys(_inputs.VALUES))
    try:
        return inputs.predictions(file, **options), None
    except FileFormatError as error:
        try:
            return usual.predictions(file, **options), error
        except FileFormatError:
            raise error from None


def _matched(a: Predictions, b: Predictions) -> tuple[Predictions, Predictions]:
    """The samples that both have, in the same order: matched by id if both have ids."""
    import numpy as np

    from focalcal.predictions import id_texts

    if a.ids is None or b.ids is None:
        if a.n != b.n:
            raise InputError(
                f"expected the same samples in both files, got {a.n} and {b.n} rows; give both "
                "an id column"
            )
        return a, b
    keys = [id_texts(given.ids) for given in (a, b)]
    if any(len(np.unique(ids)) != len(ids) for ids in keys):
        raise InputError("expected each id once, got one twice")
    common, rows, others = np.intersect1d(*keys, return_indices=True)
    if len(common) == 0:
        raise InputError("expected ids that both files have, got none")
    if len(common) < max(a.n, b.n):
        terminal.note(f"{len(common):,} samples have the same ids; {a.n:,} and {b.n:,} were given")
    return a.take(rows), b.take(others)


def _verdict(found: Comparison) -> str:
    """Which model has the better headline metric, or that they cannot be told apart."""
    from focalcal.metrics import METRICS
    from focalcal.metrics.declare import p_text

    m, d = METRICS[HEADLINE], found[HEADLINE]
    p = "" if math.isnan(d.p_value) else f", {p_text(d.p_value)}"
    best = f"The {d.better} is better" if d.better else "The two cannot be told apart"
    infinite = math.isinf(d.first), math.isinf(d.second)
    if any(infinite):
        which = "two" if all(infinite) else "first" if infinite[0] else "second"
        best = f"The {which} gave a probability of 0 to a class that occurred"
    change = f"{m.title} {m.text(d.first)} → {m.text(d.second)}{p}"
    return f"{best}: {change}, {terminal.count(found.n, 'sample')}."


def _rows(found: Comparison) -> Iterator[tuple[str, ...]]:
    from focalcal.cli.evaluate import shown
    from focalcal.metrics.declare import p_cell

    for m, d in shown(found.metrics):
        half = (d.difference.high - d.difference.low) / 2
        change = m.number(d.difference.value)
        if not math.isnan(half):
            change += f" ± {m.number(half)}"
        better = (d.better or "differ") if d.p_value <= 1 - found.level else "–"
        better = "" if math.isnan(d.p_value) else better
        values = m.number(d.first), m.number(d.second)
        yield m.heading, *values, change, p_cell(d.p_value), better
