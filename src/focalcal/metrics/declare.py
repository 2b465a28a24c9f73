"""A metric is declared once: a function of `CalibrationStats`, its interval and how it is shown.

`evaluate`, JSON, tables, report, streaming, Dask, the torchmetrics classes, `focalcal methods` and
the documentation read `METRICS`; nothing else lists metrics.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from focalcal.metrics.intervals import Interval
from focalcal.metrics.sample import Sample, of_samples
from focalcal.stats import SUMS, CalibrationStats


@dataclasses.dataclass(frozen=True, kw_only=True)
class Metric:
    """A declared metric.

    title: its displayed name; unit: "%" or ""; range: least and largest value; better: "lower",
    "higher" or ""; needs: the parts of the statistics it reads, of "sums", "top", "order",
    "classes" and "even"; interval: "bootstrap", a function (value, sample, level) → (low, high),
    or None, for the reason `why`; tested: a calibration error of the top label, 0 for calibrated
    data, whose interval reaches 0 unless the test rejects; bound: how far the value from a
    histogram can be from the exact one; within: "right", "wrong" or "high" if it reads only those
    samples; show: "report" (there and in the terminal), "terminal", or "" (JSON only); digits:
    printed after the decimal point, by default 2 for "%" and 4 otherwise.
    """

    name: str
    title: str
    explanation: str
    of: Callable[[CalibrationStats], Any]
    unit: str = "%"
    range: tuple[float, float] = (0.0, 1.0)
    better: str = "lower"
    needs: tuple[str, ...] = ("top",)
    interval: str | Interval | None = "bootstrap"
    why: str = ""
    tested: bool = False
    bound: Callable[[CalibrationStats], float] | None = None
    within: str = ""
    show: str = "report"
    digits: int | None = None

    @property
    def streams(self) -> bool:
        """Whether it can be computed from merged statistics, exactly or within a bound."""
        return "even" not in self.needs and ("order" not in self.needs or self.bound is not None)

    @property
    def resampled(self) -> bool:
        """Whether a bootstrap can recompute it: from sums, bins and the order of confidences."""
        return not {"classes", "even"} & set(self.needs)

    def text(self, value: float) -> str:
        """A value as text: "12.34 %", "0.1234", "−∞", or "–" where it is undefined."""
        digits = (2 if self.unit == "%" else 4) if self.digits is None else self.digits
        if self.unit == "%" and not math.isinf(value):
            return percent(value, digits)
        return decimal(value, f"z.{digits}f")

    @property
    def heading(self) -> str:
        """The heading of a column of numbers without units, such as "ECE, %"."""
        return f"{self.title}, %" if self.unit == "%" and "%" not in self.title else self.title

    def number(self, value: float) -> str:
        """`text` without the unit."""
        return self.text(value).removesuffix(" %")


def named(found: Mapping[str, Any], name: str) -> Any:
    """The entry with this name; otherwise a KeyError that lists the names."""
    if name not in found:
        listed = ", ".join([*found][:40]) + (", …" if len(found) > 40 else "")
        raise KeyError(f"expected one of {listed}; got {name!r}")
    return found[name]


def decimal(x: float, form: str = "z.4g") -> str:
    """A number formatted for people: "−", never "−0.00", "∞", and "–" if undefined."""
    if math.isnan(x):
        return "–"
    return f"{x:{form}}".replace("inf", "∞").replace("-", "−")


def percent(x: float, digits: int = 2) -> str:
    """A share as text: "12.34 %", or "–" where it is undefined."""
    return "–" if math.isnan(x) else f"{decimal(100 * x, f'z.{digits}f')} %"


def p_text(p: float) -> str:
    """A p-value as text: "p = .031", or "p < .001" where fewer digits are known."""
    return "p < .001" if p < 0.001 else f"p = {p:.3f}".replace("0.", ".")


def p_cell(p: float) -> str:
    """A p-value for a column with the heading "p"; empty if there is none."""
    return "" if math.isnan(p) else p_text(p).removeprefix("p ").removeprefix("= ")


METRICS: dict[str, Metric] = {}
"""Every declared metric, in the order of declaration."""


def metric(
    title: str,
    *,
    name: str | None = None,
    sums: dict[str, Callable[..., np.ndarray]] | None = None,
    **fields: Any,
) -> Callable[[Callable[[CalibrationStats], Any]], Callable[..., float]]:
    """Declare a metric by its function of `CalibrationStats`; the returned function takes data.

    fields: those of `Metric`; sums: further sums over samples, functions of (columns, threshold).

    The function must take statistics with leading axes, one row per resample. Its docstring's
    first line is the explanation shown to users.
    """

    def declare(function: Callable[[CalibrationStats], Any]) -> Callable[..., float]:
        own = name or function.__name__
        explanation = (function.__doc__ or title).strip().splitlines()[0]
        found = Metric(name=own, title=title, explanation=explanation, of=function, **fields)
        METRICS[own] = found
        SUMS.update(sums or {})

        def measure(sample: Sample) -> float:
            return float(function(sample.stats()))

        measure.__name__ = measure.__qualname__ = own
        measure.__doc__, measure.__module__ = function.__doc__, function.__module__
        return of_samples(*found.needs)(measure)

    return declare
