"""What `evaluate --by` prints: the worst slice first, then a line per slice."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from focalcal.cli import terminal

if TYPE_CHECKING:
    from rich.table import Table

    from focalcal.metrics import SlicedEvaluation


def show(result: SlicedEvaluation, title: str, *, json: bool) -> None:
    """Print slices for a person, or as JSON."""
    if json:
        terminal.print_json({"verdict": verdict(result), **result.to_dict()})
        return
    console = terminal.out()
    console.print(verdict(result), style="bold", markup=False)
    console.print(_table(result, title))
    console.print(
        f"p: test of calibration, corrected for {_tested(result)} slices (Holm); chance: ECE of a "
        "calibrated slice of that size."
    )
    small = [f"{s.name} ({s.n})" for s in result.slices if not s.enough]
    if small:
        console.print(f"Too few samples (under {result.least}): {', '.join(small)}.", markup=False)


def verdict(result: SlicedEvaluation) -> str:
    """The worst slice, or that none can be told from calibrated."""
    worst = result.worst
    if worst is None:
        return f"No slice of {_tested(result)} can be told from a calibrated one."
    return (
        f"Worst slice: {worst.name}, ECE {100 * worst.ece:.2f} % (chance alone "
        f"{100 * worst.expected_ece:.2f} %), {terminal.p_text(worst.p_value)}, {worst.n:,} samples."
    )


def _tested(result: SlicedEvaluation) -> int:
    return sum(s.enough for s in result.slices)


def _table(result: SlicedEvaluation, title: str) -> Table:
    from rich.table import Table

    from focalcal.metrics import METRICS

    # As many as 80 columns hold, in the order of their declaration; JSON has them all.
    metrics = [m for m in METRICS.values() if m.show == "report"][:2]
    table = Table(title=title)
    table.add_column("slice", overflow="fold", max_width=24)
    table.add_column("n", justify="right")
    for m in metrics:
        table.add_column(m.title, justify="right", max_width=14)
    for title in ("ECE, %", "chance, %", "p"):
        table.add_column(title, justify="right")
    order = sorted(result.slices, key=lambda s: (not s.enough, s.p_value, s.name))
    for s in order:
        cells = [m.text(s.metrics[m.name].value) if s.enough else "–" for m in metrics]
        ece = (f"{100 * s.ece:.2f}", f"{100 * s.expected_ece:.2f}") if s.enough else ("too few", "")
        p = "" if math.isnan(s.p_value) else terminal.p_text(s.p_value).removeprefix("p ")
        table.add_row(s.name, f"{s.n}", *cells, *ece, p.removeprefix("= "))
    return table
