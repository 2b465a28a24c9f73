"""Experiments, their findings and results."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import stdtrit

from focalcal.metrics import Estimate
from focalcal_papers.experiments.runs import Run, grouped
from focalcal_papers.figures import Panel, Table

SCALES = ("smoke", "lite", "paper")
STORED = "stored"
"""Used instead of a scale for results of stored runs."""
Z95 = 1.96
MARGIN = 0.25
"""A trained network agrees with a printed value up to its own interval and this share of it."""


@dataclass(frozen=True)
class Finding:
    """One number: ours with its interval and sample size, beside the paper's if it has one.

    tolerance: how far apart the two may be; without it the paper's value, ± `MARGIN` of itself, has
    to meet our interval. reason: why `ours` is None. setting: the paper's setting if it differs
    from ours (its network, its epochs); values are then only similar or unlike. With several
    `seeds`, `ours` is the mean, `spread` their standard deviation, and the interval ± 1.96 standard
    deviations of one run, see `of_seeds`.
    """

    what: str
    ours: float | None = None
    paper: float | None = None
    low: float | None = None
    high: float | None = None
    n: int | None = None
    tolerance: float | None = None
    reason: str = ""
    setting: str = ""
    seeds: int | None = None
    spread: float | None = None

    @classmethod
    def of(
        cls, what: str, e: Estimate, paper: float | None = None, scale: float = 1, **more: Any
    ) -> Finding:
        """An estimate times `scale` with its interval and n; no value if it is undefined."""
        if not math.isfinite(e.value):
            return cls(what, None, paper, n=e.n, reason="undefined: no such sample", **more)
        ends = (scale * e.low, scale * e.high) if math.isfinite(e.low) else (None, None)
        return cls(what, scale * e.value, paper, *ends, e.n, **more)

    @classmethod
    def percent(cls, what: str, e: Estimate, paper: float | None = None, **more: Any) -> Finding:
        """An estimate in percent.

        >>> Finding.percent("ECE %", Estimate(0.02, 0.01, 0.03, 100)).high
        3.0
        """
        return cls.of(what, e, paper, 100, **more)

    @classmethod
    def mean(cls, what: str, values: Any, paper: float | None = None) -> Finding:
        """A mean with its 95 % interval by Student's t."""
        values = np.asarray(values, dtype=float)
        mean, spread = float(values.mean()), values.std(ddof=min(1, len(values) - 1))
        half = t95(len(values) - 1) * float(spread) / len(values) ** 0.5
        return cls(what, mean, paper, mean - half, mean + half, len(values))

    @classmethod
    def of_seeds(
        cls, what: str, each: Sequence[Estimate], paper: float | None = None, **more: Any
    ) -> Finding:
        """One value in percent from several seeds; from a single one as `percent`.

        The interval is the mean ± 1.96 standard deviations of one run: the spread of the seeds and
        the sampling error of the test set that they share. By Student's t a 95 % interval of one
        more run is 1.5 times as wide with five seeds and eight times with two. As a printed value
        agrees if it meets the interval, the narrow one is the stricter test.

        >>> two = [Estimate(0.02, 0.02, 0.02, 9), Estimate(0.04, 0.04, 0.04, 9)]
        >>> f = Finding.of_seeds("ECE %", two)
        >>> f.ours, f.seeds, round(f.spread, 3)
        (3.0, 2, 1.414)
        """
        values = 100 * np.array([e.value for e in each])
        if len(each) == 1 or not np.isfinite(values).all():
            return cls.percent(what, each[0], paper, **more)
        mean, spread = float(values.mean()), float(values.std(ddof=1))
        half = Z95 * math.hypot(spread, sampling_error(each))
        ends = (mean - half, mean + half)
        more |= {"seeds": len(each), "spread": spread}
        return cls(what, mean, paper, *ends, each[0].n, **more)

    @property
    def verdict(self) -> str:
        """agrees, differs, similar, unlike, not run, or measured if the paper has no number.

        >>> Finding("T", ours=0.7744, paper=0.78, tolerance=0.005).verdict
        'differs'
        """
        if self.ours is None:
            return "not run"
        if self.paper is None:
            return "measured"
        if self.tolerance is not None:
            near = abs(self.ours - self.paper) <= self.tolerance
        else:
            low = self.ours if self.low is None else self.low
            high = self.ours if self.high is None else self.high
            slack = MARGIN * abs(self.paper)
            near = low - slack <= self.paper <= high + slack
        if self.setting:
            return "similar" if near else "unlike"
        return "agrees" if near else "differs"

    @property
    def text(self) -> str:
        """Our value as tables show it: mean ± standard deviation of seeds, or one run's interval.

        >>> Finding("ECE %", 2.5, low=2.25, high=2.75).text
        '2.5 [2.25, 2.75]'
        """
        if self.ours is None:
            return "—"
        if self.spread is not None:
            return f"{self.ours:.2f} ± {self.spread:.2f} ({self.seeds} seeds)"
        if self.low is None or self.high is None:
            return f"{self.ours:.4g}"
        return f"{self.ours:.4g} [{self.low:.4g}, {self.high:.4g}]"

    def to_dict(self) -> dict[str, Any]:
        """Only what is set, with NaN and infinity as None."""
        plain = {k: v for k, v in dataclasses.asdict(self).items() if v not in (None, "")}
        finite = {
            k: None if isinstance(v, float) and not math.isfinite(v) else v
            for k, v in plain.items()
        }
        return finite | {"verdict": self.verdict}

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> Finding:
        return cls(**{k: v for k, v in record.items() if k != "verdict"})


def t95(df: float) -> float:
    """The half-width of a 95 % interval in standard errors, for `df` ≥ 1 degrees of freedom.

    >>> round(t95(4), 3), round(t95(1e6), 2)
    (2.776, 1.96)
    """
    return float(stdtrit(max(df, 1), 0.975))


def sampling_error(each: Sequence[Estimate]) -> float:
    """Mean standard error in percent of seeds' values; 0 where they have no interval, as MCE."""
    widths = [e.high - e.low for e in each if math.isfinite(e.low)]
    return 100 * float(np.mean(widths)) / (2 * Z95) if widths else 0.0


def mean_and_spread(values: Sequence[float], digits: int = 2) -> str:
    """The mean ± standard deviation; of a single value only that.

    >>> mean_and_spread([1.0, 3.0]), mean_and_spread([2.0], digits=1)
    ('2.00 ± 1.41', '2.0')
    """
    if len(values) == 1:
        return f"{values[0]:,.{digits}f}"
    return f"{np.mean(values):,.{digits}f} ± {np.std(values, ddof=1):,.{digits}f}"


@dataclass(frozen=True)
class Analysis:
    """Findings, a short conclusion, and panels to draw.

    tables: the same numbers arranged for reading, where there are many findings.
    """

    findings: tuple[Finding, ...]
    conclusion: str
    panels: tuple[Panel, ...] = ()
    tables: tuple[Table, ...] = ()

    @classmethod
    def not_run(cls, what: str, reason: str) -> Analysis:
        return cls((Finding(what, reason=reason),), f"Not run: {reason}.")


@dataclass(frozen=True)
class Material:
    """What an analysis works on: trained runs, and the folder with published predictions."""

    scale: str
    runs: tuple[Run, ...] = ()
    data: Path | None = None
    missing: dict[str, str] = field(default_factory=dict)
    """Recipes that could not be run, and why."""

    def by_loss(self) -> dict[str, Run]:
        """One run per loss, the first seed, all of the network that most losses were run on.

        Of several such networks the papers' own, ResNet-50.
        """
        by_place = grouped(self.runs, lambda run: run.place)
        places = {place: grouped(own, lambda run: run.loss) for place, own in by_place.items()}
        chosen = max(places, key=lambda k: (len(places[k]), k.endswith(" resnet50")), default="")
        return {loss: own[0] for loss, own in places.get(chosen, {}).items()}


Analyse = Callable[[Material], Analysis]


@dataclass(frozen=True)
class Experiment:
    """A named table, figure or question.

    claim: the paper's statement. recipes: settings of training runs by label for a scale, none for
    theory. accepts: which stored runs (by their settings) belong to it; losses: only those, if any.
    measures: what is measured with the runs' weights, "curvature" or "shift". files: published
    predictions to read if --data holds them. from_tables: whether the papers' printed tables alone
    give a result. made_up: whether it is about synthetic data, which are otherwise stand-ins for
    real data. records: whether it needs only the records of stored runs, not their predictions.
    """

    name: str
    title: str
    claim: str
    analyse: Analyse
    recipes: Callable[[str], dict[str, dict[str, Any]]] = lambda scale: {}
    accepts: Callable[[dict[str, Any]], bool] = lambda settings: False
    losses: tuple[str, ...] = ()
    measures: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    from_tables: bool = False
    made_up: bool = False
    records: bool = False

    @property
    def theory(self) -> bool:
        """Whether it is the same at every scale: nothing is trained and no file is read."""
        return not self.recipes("smoke") and not self.files

    def accepted(self, stored: Iterable[Run]) -> list[Run]:
        """The stored runs that belong to it, with predictions where it needs them."""
        readable = (run for run in stored if run.predicted or self.records)
        return [run for run in readable if self.accepts(run.settings)]

    def used(self, stored: Iterable[Run]) -> list[Run]:
        """The accepted runs that its analysis reads: of its losses, with what it measures."""
        return [
            run
            for run in self.accepted(stored)
            if (not self.losses or run.loss in self.losses)
            and all(getattr(run, name) is not None for name in self.measures)
        ]


class Experiments(dict[str, Experiment]):
    """Experiments by name, declared beside their analyses."""

    def declare(
        self, name: str, title: str, claim: str, **more: Any
    ) -> Callable[[Analyse], Analyse]:
        """The decorated function analyses this experiment; for `more` see `Experiment`."""

        def add(analyse: Analyse) -> Analyse:
            self[name] = Experiment(name, title, claim, analyse, **more)
            return analyse

        return add


@dataclass(frozen=True)
class Result:
    """An experiment that was run. `comparable` is False where stand-in data were used."""

    name: str
    scale: str
    findings: tuple[Finding, ...]
    conclusion: str
    comparable: bool
    runs: tuple[str, ...] = ()
    provenance: dict[str, Any] = field(default_factory=dict)
    tables: tuple[Table, ...] = ()
    panels: tuple[Panel, ...] = field(default=(), compare=False)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; the panels are drawn, not stored."""
        plain = {
            f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "panels"
        }
        return plain | {
            "findings": [f.to_dict() for f in self.findings],
            "runs": list(self.runs),
            "tables": [dataclasses.asdict(t) for t in self.tables],
        }

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> Result:
        findings = tuple(Finding.from_dict(f) for f in record["findings"])
        tables = tuple(
            Table(t["title"], tuple(t["columns"]), tuple(map(tuple, t["rows"])))
            for t in record.get("tables", ())
        )
        listed = {"findings": findings, "runs": tuple(record["runs"]), "tables": tables}
        return cls(**(record | listed))
