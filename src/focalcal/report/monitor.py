"""The history of a monitor as one HTML page that opens offline."""

from __future__ import annotations

import math
from typing import Any

from focalcal import __version__
from focalcal.metrics.declare import METRICS
from focalcal.metrics.monitoring import ADVICE, TESTS, Monitor
from focalcal.report import figure as draw
from focalcal.report import page
from focalcal.report.figure import Figure

COLOURS = ("@before", "@after", "@third")
DOTS = {"mode": "lines+markers", "marker": {"size": 6}}
"""Settings that keep a line visible with a single batch."""


def render(monitor: Monitor) -> str:
    """The whole page as text."""
    figures = [accuracy(monitor), evidence(monitor)] if monitor.results else []
    figures += [metrics(monitor)] if any(r.metrics for r in monitor.results) else []
    rows = [
        (
            r.name,
            f"{r.n:,}",
            f"{r.labelled:,}",
            ", ".join(r.alarms) or "–",
            "yes" if r.trusted else f"no: {r.caution}",
        )
        for r in monitor.results
    ]
    return page.frame(
        title="Calibration monitor",
        lead=monitor.verdict,
        links=[("history", "History"), ("batches", "Batches")],
        body=page.fill("monitor.html", monitor=monitor, figures=figures, rows=rows, advice=ADVICE),
        figures=figures,
        foot=f"Written by focalcal {__version__}; reference of {monitor.reference['n']:,} samples.",
    )


def accuracy(monitor: Monitor) -> Figure:
    """Expected accuracy with its interval, and measured accuracy if there are labels."""
    names, at = [r.name for r in monitor.results], _labels(monitor)
    expected = [r.expected_accuracy for r in monitor.results]
    value, low, high = ([100 * getattr(e, x) for e in expected] for x in ("value", "low", "high"))
    measured = [(x, r.accuracy) for x, r in zip(at, monitor.results) if r.accuracy]
    cells = [f"{100 * r.accuracy.value:.2f}" if r.accuracy else "–" for r in monitor.results]
    return Figure(
        id="fig-accuracy",
        title="Accuracy, %: expected and measured",
        text="Expected accuracy is the mean confidence. Bars and band are intervals; measured "
        "points below the band indicate over-confidence.",
        traces=[
            draw.band(at, low, high, "@after"),
            draw.line(at, value, "expected", "@after", **DOTS),
            draw.points(
                [x for x, _ in measured],
                [100 * e.value for _, e in measured],
                "measured",
                "@before",
                marker={"size": 8},
                error_y=draw.error_bars([e for _, e in measured], "@before"),
            ),
        ],
        layout=_layout("accuracy, %"),
        **draw.table(
            ("batch", names),
            ("expected, %", [f"{v:.2f}" for v in value]),
            ("measured, %", cells),
        ),
    )


def evidence(monitor: Monitor) -> Figure:
    """−log10 of the p-value of each test, with the line above which it is an alarm."""
    at, limit = _labels(monitor), -math.log10(monitor.threshold)
    rows = [[-math.log10(max(r.p_values[t], 1e-16)) for r in monitor.results] for t in TESTS]
    traces = [draw.line(at, y, t, c, **DOTS) for y, t, c in zip(rows, TESTS, COLOURS)]
    alarm = _level(at, limit, "alarm", "@wrong")
    return Figure(
        id="fig-evidence",
        title="Evidence: −log10 of the anytime-valid p-values",
        text=" ".join(f"“{name}”: {meaning}." for name, meaning in TESTS.items()),
        traces=[*traces, alarm],
        layout=_layout("−log10 p", rangemode="tozero"),
        header=("batch", *(f"p {t}" for t in TESTS)),
        rows=tuple((r.name, *(f"{r.p_values[t]:.3g}" for t in TESTS)) for r in monitor.results),
    )


def metrics(monitor: Monitor) -> Figure:
    """One declared metric at a time over the labelled batches, with the reference as a line."""
    labelled = [r for r in monitor.results if r.metrics]
    names, at = [r.name for r in labelled], _labels(monitor)
    measured = [x for x, r in zip(at, monitor.results) if r.metrics]
    choices, cells = [], []
    for m in METRICS.values():
        if not m.show or m.name not in monitor.reference["metrics"]:
            continue
        scale = 100 if m.unit == "%" else 1
        found: list[Any] = [monitor.reference["metrics"], *(r.metrics for r in labelled)]
        before, *values = (math.nan if (x := f.get(m.name)) is None else x for f in found)
        # The reference comes first, so that the axis includes batches without labels.
        traces = [
            _level(at, scale * before, "reference", "@before"),
            draw.line(measured, [scale * x for x in values], "batch", "@after", **DOTS),
        ]
        choices.append((m.title + (", %" if m.unit == "%" else ""), traces))
        cells.append((m.title, map(m.text, values)))
    return Figure(
        id="fig-metrics",
        title="A metric over the labelled batches",
        text="The dotted line is the reference. Calibration errors are larger in small batches. "
        "A batch is kept as sums, which have no intervals: whether a change is more than chance is "
        "for the p-values to say.",
        layout=_layout("value"),
        choices=tuple(choices),
        **draw.table(("batch", names), *cells),
    )


def _labels(monitor: Monitor) -> list[str]:
    """The names of the batches as axis labels."""
    return [draw.label(r.name, i) for i, r in enumerate(monitor.results)]


def _level(at: list[str], value: float, name: str, colour: str) -> dict[str, Any]:
    """A dotted line at one value, or a dash if there is only one batch."""
    mode, dash = "lines" if len(at) > 1 else "markers", {"symbol": "line-ew-open", "size": 40}
    return draw.line(at, [value] * len(at), name, colour, mode=mode, marker=dash, line=draw.DOTTED)


def _layout(title: str, **more: Any) -> dict[str, Any]:
    return {"xaxis": {"type": "category"}, "yaxis": draw.axis(title, **more)}
