"""The table of calibrators, shared by the page and the Markdown."""

from __future__ import annotations

from focalcal.metrics import METRICS, Estimate, Metric
from focalcal.report.data import MethodResult, ModelReport


def columns() -> list[Metric]:
    """The declared metrics that a report shows, in the order of declaration."""
    return [m for m in METRICS.values() if m.show == "report"]


def title(m: Metric) -> str:
    """A column's heading: values in per cent are printed without the sign."""
    return f"{m.title}, %" if m.unit == "%" else m.title


def number(m: Metric, x: float) -> str:
    return m.text(x).removesuffix(" %").replace("-", "−")


def value(m: Metric, e: Estimate) -> str:
    return number(m, e.value)


def interval(m: Metric, e: Estimate) -> str:
    """Its interval, empty if it has none."""
    if e.low != e.low:
        return ""
    return " – ".join(number(m, end) for end in (e.low, e.high))


def best(model: ModelReport, m: Metric) -> float | None:
    """The best value of a column, None where the column has no better end."""
    values = [r.evaluation[m.name].value for r in model.methods]
    values = [v for v in values if v == v]
    if not m.better or not values:
        return None
    return (min if m.better == "lower" else max)(values)


def parameters(result: MethodResult) -> str:
    """Fitted numbers in a line, as in "γ = 0.5, T = 1.2"."""
    letters = {"temperature": "T", "gamma": "γ"}
    return ", ".join(f"{letters.get(k, k)} = {v:.4g}" for k, v in result.parameters.items())
