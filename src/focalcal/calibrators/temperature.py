"""No calibration, temperature scaling, and mixtures of both with the uniform distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import scipy.optimize

from focalcal._arrays import Array, like, log_softmax, logsumexp, namespace
from focalcal._checks import check_gamma
from focalcal.bins import check_bins
from focalcal.calibrators._floor import temperature_loss
from focalcal.calibrators._newton import Optimum, fit_inverse_temperature
from focalcal.calibrators.base import Calibrator, FitData, softmax_nll, solved
from focalcal.calibrators.grid import Best, TopScores, grid_search, line_search
from focalcal.calibrators.sums import SampledData, best_temperature, sums_grid
from focalcal.errors import InputError

OBJECTIVES = ("nll", "ece", "adaptive_ece")
TEMPERATURES = tuple((np.arange(1, 100) / 10).tolist())
"""The search grid of Mukhoti et al. (2020) for ECE: 0.1, 0.2, …, 9.9."""
_SMALLEST = 1e-12  # a weight of exactly 0 would make log p = −∞ where the others underflow


class Identity(Calibrator):
    """p = softmax(z).

    task: as in `Calibrator`.

    >>> Identity().fit([[0.0, 0.0], [1.0, 0.0]], [0, 1]).predict_proba([[0.0, 0.0]]).tolist()
    [[0.5, 0.5]]
    """

    method: ClassVar[str] = "identity"
    summary: ClassVar[str] = "no calibration: the softmax of the logits"
    preserves_accuracy: ClassVar[bool] = True
    floors: ClassVar[str] = "never"

    def _fit(self, data: FitData) -> dict[str, Any]:
        return {}

    def _floor_loss(self, data: FitData) -> float:
        return softmax_nll(data)

    def _log_proba(self, logits: Array) -> Array:
        return log_softmax(logits)


class TemperatureScaling(Calibrator):
    """p = softmax(z / T).

    objective: "nll" (convex in 1/T, by safeguarded Newton), "ece" (equal-width bins) or
    "adaptive_ece" (equal-mass bins); temperatures: the grid for an ECE, by default 0.1, …, 9.9, the
    first of equals wins; bins: number of bins of the ECE; task: as in `Calibrator`.

    Fitted: `temperature_`. With a warning, it is infinite if the logits are worse than chance on
    the calibration data, a ten-thousandth of their spread if every calibration sample is classified
    correctly (a lower T is always better), and 1 if all logits of every sample are equal.

    >>> from focalcal.examples import resnet18
    >>> val, _ = resnet18()
    >>> round(TemperatureScaling().fit(val.logits, val.labels).temperature_, 1)
    2.3

    Guo et al. 2017, Sec. 4.2; the ECE search is Mukhoti et al. 2020.
    """

    method: ClassVar[str] = "temperature"
    summary: ClassVar[str] = "one temperature for all logits, by NLL or by ECE"
    preserves_accuracy: ClassVar[bool] = True
    takes_sums: ClassVar[bool] = True
    state: ClassVar[dict[str, str | None]] = {"temperature_": ""}
    grid: ClassVar[tuple[Sequence[float], Sequence[float]]] = (0.0,), TEMPERATURES
    """The γ and the temperatures that are searched by default."""
    search: str | None = None
    gammas: Sequence[float] | None = None

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

    def _check_params(self) -> None:
        if self.objective not in OBJECTIVES:
            raise InputError(f"expected objective in {OBJECTIVES}, got {self.objective!r}")
        check_bins(self.bins)
        self._grid()

    def _grid(self) -> dict[str, np.ndarray]:
        """The `gammas` and `temperatures` of a search, validated."""
        gammas, temperatures = (
            default if given is None else given
            for given, default in zip((self.gammas, self.temperatures), self.grid)
        )
        gammas = [check_gamma(g) for g in gammas]
        if not gammas:
            raise InputError("expected gammas as a non-empty list of numbers > -1, got none")
        grid = np.asarray(temperatures, dtype=np.float64)
        if grid.ndim != 1 or len(grid) == 0 or not np.all((grid > 0) & np.isfinite(grid)):
            raise InputError(
                "expected temperatures as a non-empty list of positive numbers, "
                f"got {np.array2string(grid, threshold=5)}"
            )
        return {"gammas": np.asarray(gammas), "temperatures": grid}

    def _best(self, data: FitData) -> Optimum:
        """The optimum by NLL."""
        return best_temperature(data)

    def _scores(self, data: FitData) -> TopScores:
        """The errors that a search compares."""
        return TopScores(data, self.objective, self.bins)

    def _floor_loss(self, data: FitData) -> float:
        return temperature_loss(data.logits, data.labels, data.weights)

    def _keep(self, found: Optimum | Best) -> None:
        for name in self.state:
            setattr(self, name, getattr(found, name.removesuffix("_")))

    def _check_state(self) -> None:
        check_temperature(self.temperature_)

    def _fit(self, data: FitData) -> dict[str, Any]:
        nll = self.objective == "nll"
        search = self.search or ("gradient" if nll else "grid")
        if search == "gradient":
            best = self._best(data)
            self._keep(best)
            how = best.iterations, best.converged, best.notes
            return solved(*how, after=best.loss, at_edge=best.at_edge)
        grid = self._grid()
        if isinstance(data, SampledData):
            if search == "line" or nll:
                raise InputError(
                    "expected the search 'grid' by ECE, or 'gradient' by NLL, for a fit at scale, "
                    f"got search={search!r}, objective={self.objective!r}"
                )
            found, before = sums_grid(data, self.objective, self.bins, **grid)
            self._keep(found)
            measured = {"before": before, "after": found.error}
        else:
            scores = self._scores(data)
            found = (grid_search if search == "grid" else line_search)(scores, **grid)
            self._keep(found)
            measured = scores.measured(self._log_proba)
        notes = []
        for (name, values), value in zip(grid.items(), (found.gamma, found.temperature)):
            if len(values) > 1 and value in (values.min(), values.max()):
                notes.append(
                    f"the best of {name} is {value:g}, at the end of the searched range "
                    f"{values.min():g}..{values.max():g}; widen it or use another objective"
                )
        measured |= {"objective": self.objective, "at_edge": bool(notes)}
        return solved(found.points, True, notes, **measured)

    def _log_proba(self, logits: Array) -> Array:
        return log_softmax(scaled(logits, self.temperature_))


class EnsembleTemperatureScaling(Calibrator):
    """p = w₁·softmax(z/T) + w₂·softmax(z) + w₃/K, weights ≥ 0 with sum 1.

    T is fitted by NLL first, then the weights by NLL, which is convex in them.

    task: as in `Calibrator`.

    Fitted: `temperature_`, `weights_` (3,).

    >>> from focalcal.examples import resnet18
    >>> val, _ = resnet18()
    >>> EnsembleTemperatureScaling().fit(val.logits, val.labels).weights_.round(6).tolist()
    [1.0, 0.0, 0.0]

    Zhang et al., ICML 2020, Eq. 8.
    """

    method: ClassVar[str] = "ensemble-temperature"
    summary: ClassVar[str] = "a mixture of temperature-scaled, plain and uniform predictions"
    preserves_accuracy: ClassVar[bool] = True
    state: ClassVar[dict[str, str | None]] = {"temperature_": "", "weights_": "3"}

    def _check_state(self) -> None:
        check_temperature(self.temperature_)
        if not (np.all(self.weights_ > 0) and abs(np.sum(self.weights_) - 1) < 1e-6):
            raise InputError(f"expected positive weights_ with sum 1, got {self.weights_}")

    def _floor_loss(self, data: FitData) -> float:
        return temperature_loss(data.logits, data.labels, data.weights)

    def _fit(self, data: FitData) -> dict[str, Any]:
        plain = fit_inverse_temperature(data.logits, data.labels, data.weights)
        self.temperature_ = plain.temperature
        logits, labels, weights = data.numpy()
        own = np.arange(data.n), labels
        maps = log_softmax(scaled(logits, self.temperature_)), log_softmax(logits)
        parts = [log_p[own] for log_p in maps]
        log_p = np.stack([*parts, np.full(data.n, -math.log(data.n_classes))], axis=1)
        found = mixture_weights(log_p, weights)
        self.weights_ = found.x / found.x.sum()
        return solved(
            iterations=plain.iterations + int(found.nit),
            converged=bool(plain.converged and found.success),
            notes=plain.notes,
            at_edge=plain.at_edge,
        )

    def _log_proba(self, logits: Array) -> Array:
        xp = namespace(logits)
        log_w = xp.log(like(self.weights_, logits))
        parts = xp.stack(
            [
                log_softmax(scaled(logits, self.temperature_)) + log_w[0],
                log_softmax(logits) + log_w[1],
                xp.zeros_like(logits) + (log_w[2] - math.log(logits.shape[1])),
            ]
        )
        return logsumexp(parts, axis=0)


def mixture_weights(log_p: np.ndarray, weights: np.ndarray) -> scipy.optimize.OptimizeResult:
    """Weights that maximise the mean log-likelihood of a mixture of the columns of log_p (N, J).

    Minimises −mean log(Pw) + Σw over w ≥ 0, a convex problem whose optimum has Σw = 1 without a
    constraint.
    """
    shift = log_p.max(axis=1)
    p = np.exp(log_p - shift[:, None])
    share = weights / weights.sum()

    def objective(w: np.ndarray) -> tuple[float, np.ndarray]:
        mixed = p @ w
        value = -float(share @ (np.log(mixed) + shift)) + float(w.sum())
        return value, 1.0 - p.T @ (share / mixed)

    options = {"maxiter": 500, "ftol": 1e-15, "gtol": 1e-9}
    bounds = [(_SMALLEST, 1.0)] * 3
    return scipy.optimize.minimize(
        objective, [1 - 2e-3, 1e-3, 1e-3], jac=True, bounds=bounds, options=options
    )


def scaled(logits: Array, temperature: float) -> Array:
    """z/T with the row's largest logit moved to 0, so that tiny T cannot overflow."""
    xp = namespace(logits)
    return (logits - xp.max(logits, axis=-1, keepdims=True)) * (1.0 / temperature)


def check_temperature(temperature: float) -> None:
    """Reject a temperature from a file that is not positive; infinity is allowed."""
    if not temperature > 0:
        raise InputError(f"expected a positive temperature, got {temperature}")
