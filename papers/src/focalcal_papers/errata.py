"""What the papers print and what is true, with the numbers that show it, computed on call.

Papers by their first authors: Mukhoti (2020), Komisarenko (ECAI 2024), Charoenphakdee (CVPR 2021),
Kimura ("Geometric insights into focal loss").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, lambertw

from focalcal import maps
from focalcal_papers import theory


@dataclass(frozen=True)
class Erratum:
    """What a paper prints at a place, what is true instead, and the numbers that show it."""

    paper: str
    where: str
    printed: str
    true: str
    evidence: dict[str, float]


@cache
def errata() -> tuple[Erratum, ...]:
    """Every erratum of the four papers with numerical evidence (takes a few seconds, once).

    >>> [e.where for e in errata() if e.paper == "Charoenphakdee"]
    ['risk-minimiser table']
    """
    return tuple(Erratum(*text, evidence()) for text, evidence in _ENTRIES)


Evidence = Callable[[], dict[str, float]]
_ENTRIES: list[tuple[tuple[str, str, str, str], Evidence]] = []


def _erratum(paper: str, where: str, printed: str, true: str) -> Callable[[Evidence], Evidence]:
    """Declare an erratum; the decorated function computes its evidence."""

    def declare(evidence: Evidence) -> Evidence:
        _ENTRIES.append(((paper, where, printed, true), evidence))
        return evidence

    return declare


def logit_curvature(p: float, gamma: float) -> float:
    """d²FL/ds² of the binary focal loss in the logit s of the true class, p = σ(s).

    >>> round(logit_curvature(0.27, 0.0), 3), round(logit_curvature(0.27, 3.0), 3)
    (0.197, 0.57)
    """
    slope = p * (1 - p)
    bend = maps.focal_loss_second_derivative(p, gamma) * slope**2
    return float(bend + maps.focal_loss_derivative(p, gamma) * slope * (1 - 2 * p))


def smallest_lowered(gamma: float) -> int:
    """The smallest K for which Ψ^γ lowers a top probability: K−1 tied classes and one rare class.

    They are lowered iff g(1/(K−1)) > 1, that is K − 1 > 1/p0 with γ*(p0) = γ.

    >>> [smallest_lowered(gamma) for gamma in (0.5, 1, 2, 3, 5)]
    [4, 4, 5, 5, 7]
    """
    return int(np.floor(1 / maps.probability_for_gamma(gamma))) + 2


@_erratum(
    "Kimura",
    "Eq. 30 to 32, Fig. 1",
    "the gradient stays away from 0 as p → 1 unless γ > 0.5; γ ln p; CE as another γ",
    "dFL/dp = −g(p,γ)/p → 0 as p → 1 for every γ > 0; the term is p ln p; CE is γ = 0",
)
def _gradient_at_one() -> dict[str, float]:
    p = 1 - 1e-12
    slope = {g: float(maps.focal_loss_derivative(p, g)) for g in (0.25, 0.5)}
    return {f"dFL/dp at 1-1e-12, gamma={g}": value for g, value in slope.items()}


@_erratum(
    "Kimura",
    "Eq. 28",
    "focal loss scales the cross-entropy Hessian down",
    "the factor is g(p,γ), plus a rank-one term: curvature rises at low p, falls at high p",
)
def _curvature() -> dict[str, float]:
    return {
        f"curvature at p={p}, gamma={g}": logit_curvature(p, g) for p in (0.27, 0.9) for g in (0, 3)
    }


@_erratum(
    "Kimura",
    "Lemma 1",
    "(1−q)^γ ≥ 1 − γq for every γ > 0",
    "that step fails for 0 < γ < 1; the lemma's inequality held in every case tested",
)
def _bernoulli_step() -> dict[str, float]:
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.ones(4), size=(2, 2000))
    slack = [
        float((maps.focal_risk(p, q, g) - maps.entropy_lower_bound(p, q, g)).min())
        for g in (0.01, 0.1, 0.5, 0.9, 2, 5)
    ]
    return {"(1-q)^.5 at q=.5": 0.5**0.5, "1-.5q at q=.5": 0.75, "least slack": min(slack)}


@_erratum(
    "Kimura",
    "Cor. 1",
    "the bound holds with probability ≤ ε",
    "≥ 1 − ε, for λ in (0, 2), a loss in [0, 1] and a prior independent of the sample",
)
def _bound_coverage() -> dict[str, float]:
    """Share of samples on which the bound holds: 20 predictors of known risk, ε = 0.1."""
    rng = np.random.default_rng(0)
    risks = np.linspace(0.05, 0.5, 20)
    held = 0
    for _ in range(300):
        losses = rng.binomial(100, risks) / 100
        best = theory.best_pac_bayes_bound(losses, 100, epsilon=0.1)
        held += float(best.posterior @ risks) <= best.bound
    return {"share of samples where the bound holds": held / 300, "1 - epsilon": 0.9}


@_erratum(
    "Kimura",
    "Theorem 1, Eq. 12, 15, 17",
    "the distribution minimises the entropy; the mean loss is a product",
    "it maximises the entropy; the mean is a ratio, with limits max L and min L",
)
def _boltzmann() -> dict[str, float]:
    losses = np.array([0.2, 0.5, 1.0])
    rho = theory.maxwell_boltzmann(losses, 0.4)
    # the only direction that keeps both the total and the mean
    step = np.cross(np.ones(3), losses)
    moved = rho.probabilities + 0.05 * step
    return {
        "mean loss at beta near -inf": theory.maxwell_boltzmann(losses, 1 - 1e-9).mean_loss,
        "mean loss at beta near +inf": theory.maxwell_boltzmann(losses, 0.2 + 1e-9).mean_loss,
        "entropy of the distribution": rho.entropy,
        "entropy of a neighbour of equal mean loss": float(-np.sum(moved * np.log(moved))),
    }


@_erratum(
    "Komisarenko",
    "Prop. 5",
    "Ψ never lowers the top probability",
    "false from four classes on; it holds from g(q_top,γ) ≤ 1 up, so always from ½ up",
)
def _lowered() -> dict[str, float]:
    q = np.full(1000, (1 - 0.1451) / 999)
    q[0] = 0.1451
    after = {"top before, K=1000, gamma=3": 0.1451, "top after": float(maps.focal_map(q, 3.0)[0])}
    return after | {f"smallest K, gamma={g}": smallest_lowered(g) for g in (1, 2, 3, 5)}


@_erratum(
    "Komisarenko",
    "binary fit, Fig. 2",
    "1/T = .95γ + .85; T = .76 and .36",
    "the best T errs by at most 1.21e-3, that line by 3.6e-2; T = .731 and .276",
)
def _binary_lines() -> dict[str, float]:
    gammas = np.linspace(0.3, 0.6, 7)
    best = [maps.closest_temperature(g) for g in gammas]
    at = int(np.argmax([b.max_error for b in best]))
    printed = [maps.temperature_error(g, 1 / (0.95 * g + 0.85)) for g in np.linspace(0, 10, 21)]
    return {
        "largest error of the best T": best[at].max_error,
        "at gamma": float(gammas[at]),
        "largest error of 1/T = .95 gamma + .85": max(printed),
        "T, gamma=.5": maps.closest_temperature(0.5).temperature,
        "T, gamma=3": maps.closest_temperature(3.0).temperature,
    }


@_erratum(
    "Komisarenko",
    "fits for K = 3 and 4, Fig. 5",
    "K = 4: 1/T = .47γ + .85, error 8 %; T = .81 and .46 without their γ",
    "K = 4: about .49γ + .97, error 12.8 % (K = 3 agrees); the T belong to γ = .5 and 2",
)
def _multiclass_lines() -> dict[str, float]:
    gammas = np.linspace(0, 10, 6)
    out = {}
    for n_classes in (3, 4):
        best = [maps.closest_temperature(g, n_classes) for g in gammas]
        slope, offset = np.polyfit(gammas, [1 / b.temperature for b in best], 1)
        out[f"slope, K={n_classes}"] = float(slope)
        out[f"offset, K={n_classes}"] = float(offset)
        out[f"largest error, K={n_classes}"] = max(b.max_error for b in best)
    out["T, K=3, gamma=.5"] = maps.closest_temperature(0.5, 3).temperature
    out["T, K=3, gamma=2"] = maps.closest_temperature(2.0, 3).temperature
    return out


@_erratum(
    "Komisarenko",
    "Prop. 3",
    "the two temperature bounds in reversed order",
    "σ(s(γ+1−ln(γ+1)/2)) ≤ Ψ ≤ σ(s(γ+1)) for s > 0",
)
def _bounds_direction() -> dict[str, float]:
    return {
        "sigma(s(g+1-ln(g+1)/2)), s=1, gamma=4": float(expit(5 - np.log(5) / 2)),
        "Psi": float(expit(maps.binary_focal_map(1.0, 4.0))),
        "sigma(s(g+1))": float(expit(5.0)),
    }


@_erratum("Charoenphakdee", "risk-minimiser table", ".78", ".7744, which rounds to .77")
def _risk_minimiser() -> dict[str, float]:
    return {"q*, p=(.9,.1), gamma=1": float(maps.inverse_focal_map([0.9, 0.1], 1.0)[0])}


@_erratum(
    "Mukhoti",
    "Prop. 2",
    "γ = 3 at p0 = .5; a negative γ from W₀",
    "γ*(.5) = 0, so 3 is a policy; W₀ gives γ = 0",
)
def _gamma_at_half() -> dict[str, float]:
    a, b = 0.8, 0.2 * np.log(0.2)
    w0 = lambertw(-(a ** (1 - a / b) / b) * np.log(a), 0).real
    return {
        "gamma*(.5)": float(maps.gamma_for_probability(0.5)),
        "gamma*(.2)": float(maps.gamma_for_probability(0.2)),
        "gamma from W0 at .2": float(a / b + w0 / np.log(a)),
    }


@_erratum(
    "Mukhoti",
    "App. G",
    "the weight norm is larger for focal loss",
    "it is larger for cross-entropy, as the figure shows",
)
def _norms() -> dict[str, float]:
    problem = theory.two_parameter_problem()
    norm = {}
    for name, gamma in (("CE", 0.0), ("FL, gamma=1", 1.0)):
        fit = minimize(lambda w, gamma=gamma: problem.losses(w[None], gamma)[0], np.zeros(2))
        norm[f"norm of the {name} minimiser"] = float(np.linalg.norm(fit.x))
    return norm
