"""From focal loss to curvature on a finite set of parameters (Kimura and Naganuma).

The Maxwell–Boltzmann distribution of parameters at a given mean loss, the PAC-Bayes bound with its
best trade-off and posterior, and KL ≈ ½ΔᵀFΔ, illustrated on the two-parameter logistic model of
Mukhoti et al., App. G.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit, log_softmax, logsumexp, softmax, xlogy

from focalcal.errors import InputError
from focalcal.maps import focal_loss_value


@dataclass(frozen=True)
class MaxwellBoltzmann:
    """The distribution of greatest entropy among those with a given mean loss.

    `probabilities` (M,), one per parameter; `beta`, the inverse temperature, is negative if the
    mean loss is above the plain average.
    """

    probabilities: np.ndarray
    beta: float
    mean_loss: float
    entropy: float


def maxwell_boltzmann(losses: Any, mean_loss: float) -> MaxwellBoltzmann:
    """ρ_j ∝ exp(−β·L_j) with β such that Σ_j ρ_j·L_j = mean_loss.

    `losses` (M,), one per parameter; `mean_loss` lies strictly between their extremes. The mean
    falls from max L (β → −∞) to min L (β → ∞), so there is exactly one β.

    >>> round(maxwell_boltzmann([0.0, 1.0], 0.25).beta, 4)  # ln 3
    1.0986

    Kimura and Naganuma, Theorem 1 (entropy is maximised) and Eq. 15 (the mean is a ratio of sums).
    """
    losses = _vector(losses, "losses")
    low, high = float(losses.min()), float(losses.max())
    if not low < mean_loss < high:
        raise InputError(
            f"expected mean_loss between the extremes {low:g} and {high:g}, got {mean_loss}"
        )
    unit = (losses - low) / (high - low)
    target = (mean_loss - low) / (high - low)

    def excess(beta: float) -> float:
        return float(softmax(-beta * unit) @ unit) - target

    reach = 1.0
    while excess(reach) > 0 or excess(-reach) < 0:
        reach *= 2
    beta = brentq(excess, -reach, reach, xtol=1e-14, rtol=1e-14)
    rho = softmax(-beta * unit)
    entropy = -float(np.sum(xlogy(rho, rho)))
    return MaxwellBoltzmann(rho, beta / (high - low), float(rho @ losses), entropy)


@dataclass(frozen=True)
class PacBayesBound:
    """A bound on the true risk that holds with probability at least 1 − epsilon.

    `trade_off` is λ; `empirical_risk` and `kl` are those of the posterior, `n` is the sample size,
    `posterior` (M,) the distribution over parameters, where one was computed.
    """

    bound: float
    trade_off: float
    empirical_risk: float
    kl: float
    n: int
    epsilon: float
    posterior: np.ndarray | None = None


def best_trade_off(empirical_risk: float, kl: float, n: int, epsilon: float = 0.05) -> float:
    """λ = 2/(√(2nR̂/(KL + ln(2√n/ε)) + 1) + 1), which minimises the bound.

    >>> round(best_trade_off(0.1, 2.0, 1000), 4)
    0.3459
    """
    _check_sample(n, epsilon)
    complexity = kl + np.log(2 * np.sqrt(n) / epsilon)
    return float(2 / (np.sqrt(2 * n * empirical_risk / complexity + 1) + 1))


def pac_bayes_bound(
    empirical_risk: float, kl: float, n: int, epsilon: float = 0.05, trade_off: float | None = None
) -> PacBayesBound:
    """R ≤ R̂/(1−λ/2) + (KL(ρ‖π) + ln(2√n/ε))/(nλ(1−λ/2)) with probability at least 1 − ε.

    Args:
        empirical_risk: mean over the posterior ρ of the sample loss, in [0, 1].
        kl: KL(ρ‖π); the prior π must not depend on the sample.
        n: sample size.
        epsilon: failure probability.
        trade_off: λ in (0, 2); by default the best one.

    >>> round(pac_bayes_bound(0.1, 2.0, 1000).bound, 4)
    0.1529

    Thiemann et al., 2017, Theorem 3; Kimura and Naganuma, Cor. 1.
    """
    if not 0 <= empirical_risk <= 1 or not kl >= 0:
        raise InputError(
            f"expected a risk in [0, 1] and kl >= 0, got {empirical_risk} and {kl}; "
            "rescale the loss to [0, 1]"
        )
    lam = best_trade_off(empirical_risk, kl, n, epsilon) if trade_off is None else trade_off
    _check_sample(n, epsilon)
    if not 0 < lam < 2:
        raise InputError(f"expected trade_off strictly between 0 and 2, got {lam}")
    complexity = kl + np.log(2 * np.sqrt(n) / epsilon)
    bound = (empirical_risk + complexity / (n * lam)) / (1 - lam / 2)
    return PacBayesBound(float(bound), float(lam), float(empirical_risk), float(kl), n, epsilon)


def gibbs_posterior(losses: Any, n: int, trade_off: float, prior: Any = None) -> np.ndarray:
    """ρ_j ∝ π_j·exp(−λ·n·L_j): the posterior of the smallest bound at a fixed λ.

    >>> gibbs_posterior([0.0, 0.1], n=10, trade_off=1.0).round(4)
    array([0.7311, 0.2689])
    """
    losses = _vector(losses, "losses")
    return softmax(_log_prior(prior, len(losses)) - trade_off * n * losses)


def best_pac_bayes_bound(
    losses: Any, n: int, epsilon: float = 0.05, prior: Any = None
) -> PacBayesBound:
    """The bound minimised over posterior and λ alternately: Gibbs posterior, best λ, and so on.

    `losses` (M,) of each parameter on the n samples, in [0, 1]; `prior` (M,), uniform by default,
    must not depend on the sample. Every round lowers the bound.

    >>> best = best_pac_bayes_bound([0.1, 0.5], n=1000)
    >>> round(best.bound, 4), best.posterior.round(2)
    (0.1482, array([1., 0.]))

    Kimura and Naganuma, Cor. 1 and the Gibbs posterior after it.
    """
    losses = _vector(losses, "losses")
    log_prior = _log_prior(prior, len(losses))
    trade_off, best = 1.0, None
    for _ in range(1000):
        log_rho = log_softmax(log_prior - trade_off * n * losses)
        rho = np.exp(log_rho)
        kl = max(float(np.sum(np.where(rho > 0, rho * (log_rho - log_prior), 0.0))), 0.0)
        now = pac_bayes_bound(float(rho @ losses), kl, n, epsilon)
        if best is not None and not now.bound < best.bound - 1e-15:
            break
        best = replace(now, posterior=rho)
        trade_off = now.trade_off
    return best


@dataclass(frozen=True)
class KLApproximation:
    """KL between two nearby models, exact and as ½ΔᵀFΔ with the Fisher matrix F (D, D)."""

    exact: float
    quadratic: float
    fisher: np.ndarray


def kl_and_fisher(inputs: Any, theta: Any, delta: Any) -> KLApproximation:
    """KL(p_θ‖p_{θ+Δ}) ≈ ½ΔᵀFΔ for the logistic model p(y=1|x) = σ(θᵀx), averaged over inputs.

    `inputs` (N, D), the model `theta` (D,), the step `delta` (D,); F is the mean of σ(1−σ)xxᵀ.

    >>> step = kl_and_fisher([[1.0, 0.0], [0.0, 1.0]], [0.0, 0.0], [0.1, 0.0])
    >>> round(step.exact, 7), round(step.quadratic, 7)
    (0.0006247, 0.000625)

    Kimura and Naganuma, §3.2.
    """
    x, theta, delta = (np.asarray(v, dtype=np.float64) for v in (inputs, theta, delta))
    s = x @ theta
    moved = s + x @ delta
    # KL of Bernoullis from their logits: σ(s)(s − s') + softplus(s') − softplus(s)
    exact = np.mean(expit(s) * (s - moved) + np.logaddexp(0, moved) - np.logaddexp(0, s))
    fisher = (x * (expit(s) * expit(-s))[:, None]).T @ x / len(x)
    return KLApproximation(float(exact), float(delta @ fisher @ delta) / 2, fisher)


@dataclass(frozen=True)
class TwoParameterProblem:
    """Inputs (N, 2) and labels (N,) in {0, 1}: two clusters per class, some labels flipped."""

    inputs: np.ndarray
    labels: np.ndarray

    def losses(self, parameters: Any, gamma: float) -> np.ndarray:
        """Mean focal loss of logistic models without bias: parameters (M, 2) to (M,)."""
        scores = np.asarray(parameters, dtype=np.float64) @ self.inputs.T
        return focal_loss_value(expit(np.where(self.labels == 1, scores, -scores)), gamma).mean(1)

    def errors(self, parameters: Any) -> np.ndarray:
        """Share of wrong predictions: parameters (M, 2) to (M,)."""
        scores = np.asarray(parameters, dtype=np.float64) @ self.inputs.T
        return ((scores > 0) != (self.labels == 1)).mean(axis=1)


def two_parameter_problem(n: int = 400, flipped: float = 0.1, seed: int = 0) -> TwoParameterProblem:
    """Gaussian clusters on the corners of a square, the class by side, a share of labels flipped.

    >>> problem = two_parameter_problem()
    >>> problem.inputs.shape, problem.losses([[0.0, 0.0]], gamma=0.0).round(4)
    ((400, 2), array([0.6931]))

    Mukhoti et al., 2020, App. G.
    """
    rng = np.random.default_rng(seed)
    corners = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    which = rng.integers(4, size=n)
    inputs = corners[which] + 0.3 * rng.normal(size=(n, 2))
    labels = (which < 2) ^ (rng.random(n) < flipped)
    return TwoParameterProblem(inputs, labels.astype(np.int64))


def parameter_grid(reach: float = 5.0, size: int = 101) -> np.ndarray:
    """(size², 2) parameters on a square grid over [−reach, reach]².

    >>> parameter_grid(1.0, 3).shape
    (9, 2)
    """
    axis = np.linspace(-reach, reach, size)
    return np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)


def _vector(values: Any, name: str) -> np.ndarray:
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 1 or len(values) == 0 or not np.isfinite(values).all():
        raise InputError(f"expected {name} as a vector of finite numbers, got {values!r}")
    return values


def _log_prior(prior: Any, n: int) -> np.ndarray:
    if prior is None:
        return np.full(n, -np.log(n))
    prior = _vector(prior, "prior")
    if len(prior) != n or (prior <= 0).any():
        raise InputError(f"expected a prior of {n} positive numbers, got {len(prior)} numbers")
    return np.log(prior) - logsumexp(np.log(prior))


def _check_sample(n: int, epsilon: float) -> None:
    if n < 1 or not 0 < epsilon < 1:
        raise InputError(f"expected n >= 1 and epsilon in (0, 1), got {n} and {epsilon}")
