"""Temperature scaling: one number divides all logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from focalcal._arrays import Array, log_softmax, namespace
from focalcal.calibrators._focal_nll import NllScores
from focalcal.calibrators._newton import Optimum
from focalcal.calibrators.base import Calibrator, FitData
from focalcal.calibrators.grid import TopScores, grid_search, line_search
from focalcal.calibrators.sums import SampledData, best_temperature, sums_grid
from focalcal.errors import InputError

OBJECTIVES = ("nll", "ece", "adaptive_ece")
TEMPERATURES = tuple((np.arange(1, 100) / 10).tolist())
"""The search grid of Mukhoti et al. (2020) for ECE: 0.1, 0.2, …, 9.9."""


class SearchedScaling(Calibrator):
    """A temperature, and γ, by Newton on the NLL or by search for the lowest calibration error."""

    preserves_accuracy: ClassVar[bool] = True
    takes_sums: ClassVar[bool] = True
    grid: ClassVar[tuple[float, ...]]
    """The temperatures that are searched by default."""

    def _check_params(self) -> None:
        if self.objective not in OBJECTIVES:
            raise InputError(f"expected objective in {OBJECTIVES}, got {self.objective!r}")
        self._grid()

    def _search(self) -> str:
        return "gradient" if self.objective == "nll" else "grid"

    def _grid(self) -> dict[str, np.ndarray]:
        """The `gammas` and `temperatures` of a search, positive and finite."""
        grid = self.grid if self.temperatures is None else self.temperatures
        grid = np.asarray(grid, dtype=np.float64)
        if grid.ndim != 1 or len(grid) == 0 or not np.all((grid > 0) & np.isfinite(grid)):
            raise InputError(
                "expected temperatures as a non-empty list of positive numbers, "
                f"got {np.array2string(grid, threshold=5)}"
            )
        return {"gammas": self._gammas(), "temperatures": grid}

    def _gammas(self) -> np.ndarray:
        return np.zeros(1)

    def _best(self, data: FitData) -> Optimum:
        """The optimum by NLL."""
        return best_temperature(data)

    def _keep(self, gamma: float, temperature: float) -> None:
        self.temperature_ = temperature

    def _check_state(self) -> None:
        check_temperature(self.temperature_)

    def _fit(self, data: FitData) -> dict[str, Any]:
        search = self._search()
        if search == "gradient":
            best = self._best(data)
            self._keep(best.gamma, best.temperature)
            return nll_outcome(best)
        grid = self._grid()
        if isinstance(data, SampledData):
            if search == "line" or self.objective == "nll":
                raise InputError(
                    "expected the search 'grid' by ECE, or 'gradient' by NLL, for a fit at scale, "
                    f"got search={search!r}, objective={self.objective!r}"
                )
            found, before = sums_grid(data, self.objective, self.bins, **grid)
            self._keep(found.gamma, found.temperature)
            measured = {"before": before, "after": found.error}
            return found.outcome(self.objective, **grid) | measured
        nll = self.objective == "nll"
        scores = NllScores(data) if nll else TopScores(data, self.objective, self.bins)
        found = (grid_search if search == "grid" else line_search)(scores, **grid)
        self._keep(found.gamma, found.temperature)
        outcome = found.outcome(self.objective, **grid)
        return outcome if nll else outcome | scores.measured(self._log_proba)


class TemperatureScaling(SearchedScaling):
    """p = softmax(z / T).

    objective: "nll" (convex in 1/T, by safeguarded Newton), "ece" (equal-width bins) or
    "adaptive_ece" (equal-mass bins); temperatures: the grid for an ECE, by default 0.1, …, 9.9,
    of which the first of equals is taken; bins: number of bins of the ECE; task: "auto" or
    "multilabel", as in `Calibrator`.

    Fitted: `temperature_`. With a warning it is infinite if the logits are worse than chance on the
    calibration data, a ten-thousandth of their spread if every calibration sample is classified
    correctly (a lower T is always better), and 1 if all logits of every sample are equal.

    >>> rng = np.random.default_rng(0)
    >>> p = np.exp(z := rng.normal(size=(5000, 4))) / np.exp(z).sum(axis=1, keepdims=True)
    >>> y = (p.cumsum(axis=1) < rng.random((5000, 1))).sum(axis=1)
    >>> round(TemperatureScaling().fit(3 * z, y).temperature_, 1)
    3.0

    Guo et al. 2017, Sec. 4.2; the ECE search is Mukhoti et al. 2020.
    """

    method: ClassVar[str] = "temperature"
    summary: ClassVar[str] = "one temperature for all logits, by NLL or by ECE"
    state: ClassVar[dict[str, str | None]] = {"temperature_": ""}
    grid: ClassVar[tuple[float, ...]] = TEMPERATURES

    def __init__(
        self,
        objective: str = "nll",
        temperatures: Sequence[float] | None = None,
        bins: int = 15,
        task: str = "auto",
    ) -> None:
        self.objective = objective
        self.temperatures = temperatures
        self.bins = bins
        self.task = task

    def _log_proba(self, logits: Array) -> Array:
        return log_softmax(scaled(logits, self.temperature_))


def nll_outcome(best: Optimum) -> dict[str, Any]:
    """Fields for `Diagnostics` of an optimum by NLL."""
    warnings = degenerate_notes(best.kind, best.temperature, best.gamma)
    if not best.converged:
        warnings.append(f"the search did not converge in {best.iterations} passes")
    return {
        "after": best.loss,
        "iterations": best.iterations,
        "converged": best.converged,
        "at_edge": best.kind in ("chance", "separable", "gamma"),
        "warnings": tuple(warnings),
    }


def degenerate_notes(kind: str, temperature: float, gamma: float = 0.0) -> list[str]:
    """What to say when the optimum is at an end of its range, or any temperature is as good."""
    notes = {
        "chance": "the logits are worse than chance on the calibration data, so the best "
        "temperature is infinite and every prediction is uniform; check the labels",
        "separable": "every calibration sample is classified correctly, so a lower temperature "
        f"is always better; stopped at T = {temperature:.3g}, use more data",
        "flat": "all logits of each sample are equal, so every temperature gives the same "
        "probabilities; kept T = 1",
        "gamma": f"gamma ran to the end of its range, {gamma:g}; the fit is valid but gamma "
        "is not meaningful: widen gamma_range, or use temperature scaling",
    }
    return [notes[kind]] if kind in notes else []


def scaled(logits: Array, temperature: float) -> Array:
    """z/T with the row's largest logit moved to 0, so that tiny T cannot overflow."""
    xp = namespace(logits)
    return (logits - xp.max(logits, axis=-1, keepdims=True)) * (1.0 / temperature)


def check_temperature(temperature: float) -> None:
    """Refuse temperatures of a file that are not positive (infinity is)."""
    if not temperature > 0:
        raise InputError(f"expected a positive temperature, got {temperature}")
