"""The focal map as a calibrator: with the training γ, or with γ and T fitted together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from focalcal._arrays import Array
from focalcal._checks import check_gamma
from focalcal.calibrators._focal_nll import gradient_search
from focalcal.calibrators._newton import Optimum
from focalcal.calibrators.base import Calibrator, FitData, map_nll, softmax_nll
from focalcal.calibrators.temperature import SearchedScaling, scaled
from focalcal.errors import InputError
from focalcal.maps import focal_log_map

GAMMAS = (-0.5, -0.25, 0.05, 0.25, 0.37, 0.5, 0.75, 1.0, 5.0)
TEMPERATURES = tuple((np.arange(1, 501) / 100).tolist())
"""The search grid of Komisarenko & Kull (2024): 9 γ × 500 temperatures 0.01, 0.02, …, 5."""
SEARCHES = ("grid", "line", "gradient")


class FocalCalibration(Calibrator):
    """p = Ψ^γ(softmax(z)) with the γ of the training loss: nothing is fitted.

    A network that minimises the focal loss predicts q with Ψ^γ(q) = p(y|x), so the map with the
    training γ undoes the bias of the loss. `fit` measures how the map changes the NLL and warns if
    it raises it.

    gamma: the γ of the training loss; task: "auto" or "multilabel", as in `Calibrator`.

    >>> FocalCalibration(gamma=1.0).fit([[1.233, 0.0]] * 20, [0] * 18 + [1] * 2).predict_proba(
    ...     [[1.233, 0.0]]).round(2).tolist()
    [[0.9, 0.1]]

    Charoenphakdee et al., CVPR 2021.
    """

    method: ClassVar[str] = "focal"
    summary: ClassVar[str] = "the focal map with the training γ: nothing is fitted"
    preserves_accuracy: ClassVar[bool] = True

    def __init__(self, gamma: float = 3.0, task: str = "auto") -> None:
        self.gamma = gamma
        self.task = task

    def _check_params(self) -> None:
        check_gamma(self.gamma)

    def _fit(self, data: FitData) -> dict[str, Any]:
        before, after = softmax_nll(data), map_nll(self._log_proba, data)
        notes = []
        if after > before:
            notes.append(
                f"the focal map with gamma = {self.gamma:g} raises the NLL from {before:.4g} to "
                f"{after:.4g}; was the network trained with this gamma?"
            )
        return {"after": after, "warnings": tuple(notes)}

    def _log_proba(self, logits: Array) -> Array:
        return focal_log_map(logits, self.gamma)


class FocalTemperatureScaling(SearchedScaling):
    """p = Ψ^γ(softmax(z / T)), γ and T fitted together.

    objective: "nll", "ece" (equal-width bins) or "adaptive_ece" (equal-mass bins); search:
    "gradient" (NLL only, from several starts), "grid" (the best of gammas × temperatures, the first
    of equals, as a plain loop finds it), "line" (the best T at γ = −.25 and at γ = 1 define a line
    T = a + bγ, which is searched at as many γ as there are temperatures), or None for "gradient"
    with "nll" and "grid" otherwise; gammas, temperatures: the grid, by default the paper's 9 × 500;
    gamma_range: bounds of γ in the gradient search; bins: number of bins of the ECE; task: "auto"
    or "multilabel", as in `Calibrator`.

    Fitted: `gamma_`, `temperature_`. Where temperature scaling has no finite optimum by NLL (worse
    than chance, all correct, all logits equal), γ is 0 and T and the warning are those of
    `TemperatureScaling`.

    >>> rng = np.random.default_rng(0)
    >>> z = 2 * rng.normal(size=(4000, 3))
    >>> y = np.argmax(z + rng.gumbel(size=z.shape), axis=1)
    >>> fitted = FocalTemperatureScaling().fit(z * 2, y)
    >>> fitted.diagnostics_.after < fitted.diagnostics_.before
    True

    Komisarenko & Kull, ECAI 2024, Sec. 4.2.
    """

    method: ClassVar[str] = "focal-temperature"
    summary: ClassVar[str] = "the focal map after a temperature, γ and T fitted together"
    state: ClassVar[dict[str, str | None]] = {"gamma_": "", "temperature_": ""}
    grid: ClassVar[tuple[Sequence[float], Sequence[float]]] = GAMMAS, TEMPERATURES

    def __init__(
        self,
        objective: str = "nll",
        search: str | None = None,
        gammas: Sequence[float] | None = None,
        temperatures: Sequence[float] | None = None,
        gamma_range: tuple[float, float] = (-0.95, 10.0),
        bins: int = 15,
        task: str = "auto",
    ) -> None:
        self.objective = objective
        self.search = search
        self.gammas = gammas
        self.temperatures = temperatures
        self.gamma_range = gamma_range
        self.bins = bins
        self.task = task

    def _check_params(self) -> None:
        super()._check_params()
        if self.search is not None and self.search not in SEARCHES:
            raise InputError(f"expected search in {SEARCHES} or None, got {self.search!r}")
        if self.search == "gradient" and self.objective != "nll":
            raise InputError(
                f"expected objective 'nll' for the gradient search, got {self.objective!r}; "
                "calibration errors have no gradient, use search='grid' or 'line'"
            )
        low, high = (check_gamma(g) for g in self.gamma_range)
        if not low < high:
            raise InputError(f"expected an increasing gamma_range, got {self.gamma_range}")

    def _check_state(self) -> None:
        check_gamma(self.gamma_)
        super()._check_state()

    def _best(self, data: FitData) -> Optimum:
        return gradient_search(data, super()._best(data), self.gamma_range)

    def _log_proba(self, logits: Array) -> Array:
        return focal_log_map(scaled(logits, self.temperature_), self.gamma_)
