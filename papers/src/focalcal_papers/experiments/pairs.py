"""Cross-entropy beside FLA-53: what most claims are judged by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from focalcal_papers.experiments.base import mean_and_spread, t95
from focalcal_papers.experiments.runs import Run, grouped
from focalcal_papers.experiments.settings import is_published


@dataclass(frozen=True)
class Pair:
    """Two losses on one data set and network, their seeds, compared by one metric in percent."""

    where: str
    first: list[float]
    second: list[float]

    @property
    def difference(self) -> float:
        return float(np.mean(self.second) - np.mean(self.first))

    @property
    def clear(self) -> bool:
        """Whether Welch's t-test finds the means apart at 5 %; single runs never are."""
        if min(len(self.first), len(self.second)) < 2:
            return False
        sizes = np.array([len(self.first), len(self.second)])
        errors = np.array([np.var(x, ddof=1) for x in (self.first, self.second)]) / sizes
        if not errors.any():
            return self.difference != 0
        df = errors.sum() ** 2 / (errors**2 / (sizes - 1)).sum()
        return bool(abs(self.difference) > t95(df) * errors.sum() ** 0.5)

    def __str__(self) -> str:
        return f"{self.where} {seed_mean(self.first)} → {seed_mean(self.second)}"


def n_seeds(values: Sequence[object]) -> str:
    return "1 run" if len(values) == 1 else f"{len(values)} seeds"


def seed_mean(values: Sequence[float]) -> str:
    return f"{mean_and_spread(values)} ({n_seeds(values)})"


def pairs(runs: Sequence[Run], stage: str, metric: str) -> list[Pair]:
    """Cross-entropy beside FLA-53 wherever both were trained in one published setting."""
    found = []
    for place, own in grouped(filter(published, runs), lambda run: run.place).items():
        values = (
            [100 * getattr(run, stage)[metric].value for run in own if run.loss == loss]
            for loss in ("ce", "fla-53")
        )
        found.append(Pair(place, *values))
    return [pair for pair in found if pair.first and pair.second]


def published(run: Run) -> bool:
    return is_published(run.settings)
