"""The table of calibrators, shared by the page and the Markdown."""

from __future__ import annotations

import dataclasses

from focalcal.metrics import Estimate
from focalcal.report.data import MethodResult, ModelReport


@dataclasses.dataclass(frozen=True)
class Column:
    """A metric of the table: how it is called, scaled and printed; `best` is "low", "high", ""."""

    metric: str
    title: str
    scale: float = 100.0
    digits: int = 2
    best: str = "low"

    def value(self, e: Estimate) -> str:
        return "–" if e.value != e.value else f"{self.scale * e.value:.{self.digits}f}"

    def interval(self, e: Estimate) -> str:
        if e.low != e.low:
            return ""
        low, high = self.scale * e.low, self.scale * e.high
        return f"{low:.{self.digits}f} – {high:.{self.digits}f}"


COLUMNS = (
    Column("ece", "ECE, %"),
    Column("adaptive_ece", "equal-mass ECE, %"),
    Column("smooth_ece", "smooth ECE, %"),
    Column("classwise_ece", "class-wise ECE, %", digits=3),
    Column("nll", "NLL", scale=1, digits=4),
    Column("brier", "Brier", scale=1, digits=4),
    Column("accuracy", "accuracy, %", best="high"),
    Column("confidence_gap", "confidence − accuracy, %", best=""),
)


def best(model: ModelReport, column: Column) -> float | None:
    """The best value of a column, None where the column has no better end."""
    if not column.best:
        return None
    values = [m.evaluation[column.metric].value for m in model.methods]
    values = [v for v in values if v == v]
    return (min if column.best == "low" else max)(values) if values else None


def parameters(result: MethodResult) -> str:
    """Fitted numbers in a line, as in "γ = 0.5, T = 1.2"."""
    letters = {"temperature": "T", "gamma": "γ"}
    return ", ".join(f"{letters.get(k, k)} = {v:.4g}" for k, v in result.parameters.items())
