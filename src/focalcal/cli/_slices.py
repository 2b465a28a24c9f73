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
    tested = sum(s.enough for s in result.slices)
    verdict = f"No slice of {tested} can be told from a calibrated one."
    if (worst := result.worst) is not None:
        verdict = (
            f"Worst slice: {worst.name}, ECE {100 * worst.ece:.2f} % (chance alone "
            f"{100 * worst.expected_ece:.2f} %), {terminal.p_text(worst.p_value)}, "
            f"{worst.n:,} samples."
        )
    if json:
        terminal.print_json({"verdict": verdict, **result.to_dict()})
        return
    terminal.show(verdict, style="bold")
    terminal.show(
        _table(result, title),
        f"p: test of calibration, corrected for {tested} slices (Holm); chance: ECE of a "
        "calibrated slice of that size.",
    )
    small = [f"{s.name} ({s.n})" for s in result.slices if not s.enough]
    if small:
        terminal.show(f"Too few samples (under {result.least}): {', '.join(small)}.")


def _table(result: SlicedEvaluation, title: str) -> Table:
    from rich.table import Table

    from focalcal.metrics import METRICS

    # As many as 80 columns hold, in the order of their declaration; JSON has them all.
    metrics = [m for m in METRICS.values() if m.show == "report"][:2]
    table = Table(title=title)
    table.add_column("slice", overflow="fold", max_width=24)
    for heading in ("n", *(m.title for m in metrics), "ECE, %", "chance, %", "p"):
        table.add_column(heading, justify="right", max_width=14)
    for s in sorted(result.slices, key=lambda s: (not s.enough, s.p_value, s.name)):
        cells = [m.text(s.metrics[m.name].value) if s.enough else "–" for m in metrics]
        ece = (f"{100 * s.ece:.2f}", f"{100 * s.expected_ece:.2f}") if s.enough else ("too few", "")
        table.add_row(s.name, f"{s.n}", *cells, *ece, p_cell(s.p_value))
    return table


def p_cell(p: float) -> str:
    """A p-value under the heading "p"; empty where there is none."""
    return "" if math.isnan(p) else terminal.p_text(p).removeprefix("p ").removeprefix("= ")
