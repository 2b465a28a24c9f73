"""Fitting with shrinkage that the calibration data themselves choose (empirical Bayes).

Every group of parameters has a Gaussian prior. Its precision ρ is re-estimated between rounds of
L-BFGS by MacKay's fixed point ρ = Σ h/(h+ρ) / Σ θ², h the diagonal of the Gauss–Newton matrix:
what the data do not determine shrinks to nothing.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import scipy.optimize

from focalcal.calibrators._focal_affine import FocalAffine

SCALE_PRECISION = 1.0
GAMMA_PRECISION = 1.0
"""Weak priors on log α and on γ, worth one sample: they decide only where data are silent."""
START = (100.0, 10.0, 100.0, 1000.0)
"""First precisions of δ, b, e·m and M·x; the last two in units of their features' mean square."""
PRECISIONS = (1.0, 1e8)
ROUNDS = 6
ROUND_ITERATIONS = 15
MAX_ITERATIONS = 200


@dataclasses.dataclass(frozen=True)
class Prior:
    """½ Σ precision·(θ − origin)²; parameters that are not free stay where they are."""

    origin: np.ndarray
    precision: np.ndarray
    free: np.ndarray


@dataclasses.dataclass(frozen=True)
class BayesFit:
    """The most probable parameters and the prior that the data chose."""

    theta: np.ndarray
    prior: Prior
    iterations: int
    converged: bool


def fit_bayes(model: FocalAffine, log_scale: float) -> BayesFit:
    """Fit all parameters and precisions, from the plain focal temperature on.

    log_scale: the log α at which the map is the identity, where its prior has its mean.
    """
    layout = model.layout
    off_diagonal = ~np.eye(layout.n_classes, dtype=bool).ravel()
    everything = np.ones(layout.n_classes, dtype=bool)
    members = (everything, everything, everything, off_diagonal)
    origin, precision = np.zeros((2, layout.size))
    origin[0] = log_scale
    precision[:2] = SCALE_PRECISION, GAMMA_PRECISION
    units = (1.0, 1.0, mean_square(model.mean), mean_square(model.x))
    for group, start, unit in zip(layout.groups, START, units):
        precision[group] = max(start * unit, PRECISIONS[0])

    scales = Prior(origin, precision, np.arange(layout.size) < 2)
    found = maximise(model, np.zeros(layout.size), scales, MAX_ITERATIONS)
    theta, iterations = found.x, found.nit
    free = np.ones(layout.size, dtype=bool)
    for group, member in zip(layout.groups, members):
        free[group] = member
    prior = Prior(origin, precision, free)
    for _ in range(ROUNDS):
        found = maximise(model, theta, prior, ROUND_ITERATIONS)
        theta, iterations = found.x, iterations + found.nit
        curvature = model.curvature(theta)
        for group, member in zip(layout.groups, members):
            own, h, rho = (a[group][member] for a in (theta, curvature, precision))
            known = float(np.sum(h / (h + rho)))
            rho = known / max(float(own @ own), 1e-300)
            precision[group] = np.clip(rho, *PRECISIONS)
    found = maximise(model, theta, prior, MAX_ITERATIONS)
    return BayesFit(found.x, prior, iterations + found.nit, bool(found.success))


def maximise(
    model: FocalAffine, start: np.ndarray, prior: Prior, iterations: int
) -> scipy.optimize.OptimizeResult:
    """Minimise NLL + prior over the free parameters by L-BFGS.

    Each parameter is measured in its posterior standard deviation: without that, hundreds of
    iterations go by before the scale and the matrix move together.
    """
    scale = 1.0 / np.sqrt(model.curvature(start) + prior.precision + 1e-3)[prior.free]

    def objective(v: np.ndarray) -> tuple[float, np.ndarray]:
        theta = start.copy()
        theta[prior.free] = v * scale
        loss, gradient = model.nll(theta)
        away = theta - prior.origin
        loss += 0.5 * float(prior.precision @ away**2)
        gradient += prior.precision * away
        return loss, gradient[prior.free] * scale

    options = {"maxiter": iterations, "maxcor": 10, "ftol": 1e-9, "gtol": 1e-3}
    if model.x.dtype == np.float64:
        options |= {"ftol": 1e-14, "gtol": 1e-6}
    found = scipy.optimize.minimize(
        objective, start[prior.free] / scale, jac=True, method="L-BFGS-B", options=options
    )
    theta = start.copy()
    theta[prior.free] = found.x * scale
    found.x = theta
    return found


def mean_square(x: np.ndarray) -> float:
    return float(np.mean(x.astype(np.float64) ** 2))
