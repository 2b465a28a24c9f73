"""What `evaluate --by` prints: the worst slice first, then a line per slice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from focalcal.cli import terminal

if TYPE_CHECKING:
    from rich.table import Table

    from focalcal.metrics import SlicedEvaluation


def show(result: SlicedEvaluation, title: str, *, json: bool) -> None:
    """Print slices for a person, or as JSON."""
    terminal.result(
        json,
        {"verdict": result.verdict, **result.to_dict()},
        terminal.styled(result.verdict, "bold"),
        _table(result, title),
        f"p: test of calibration, corrected for {result.tested} slices (Holm); chance: ECE of a "
        "calibrated slice of that size.",
        *filter(None, [result.too_few]),
    )


def _table(result: SlicedEvaluation, title: str) -> Table:
    from focalcal.metrics import METRICS

    # As many as 80 columns hold, in the order of their declaration; JSON has them all.
    metrics = [m for m in METRICS.values() if m.show == "report"][:2]
    rows = []
    for s in sorted(result.slices, key=lambda s: (not s.enough, s.p_value, s.name)):
        cells = [m.text(s.metrics[m.name].value) if s.enough else "–" for m in metrics]
        ece = (f"{100 * s.ece:.2f}", f"{100 * s.expected_ece:.2f}") if s.enough else ("too few", "")
        rows.append((s.name, f"{s.n}", *cells, *ece, terminal.p_cell(s.p_value)))
    header = ("slice", "n", *(m.title for m in metrics), "ECE, %", "chance, %", "p")
    return terminal.table(header, rows, title)
