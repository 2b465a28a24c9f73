"""The NLL of Ψ^γ after an affine map of the scores, its gradient and its curvature.

    s_k = α·(1 + δ_k)·x_k + b_k + e_k·m + Σ_j x_j M_jk,   p = Ψ^γ(softmax s)

x (N, K) are centred logits and m (N,) the mean log-probability of each row, which centring
removes. The parameters lie in one vector: log α, u (γ is a bounded function of it), δ (K), b (K),
e (K) and, where it is used, M (K, K), whose diagonal stays zero. Without m this is an affine map
and a softmax: γ and e do nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
import scipy.linalg
import scipy.optimize

from focalcal._arrays import Array, namespace
from focalcal._blocks import map_blocks

T = TypeVar("T")

GAMMA_BOUNDS = (-0.95, 10.0)
_BLOCK = 2**17  # elements; the products of larger blocks would leave the cache
_PRODUCT = 2**22  # elements past which larger matrix products are no faster


def groups(k: int) -> tuple[slice, ...]:
    """Where δ, b, e and M lie among the parameters of K classes."""
    return (*(slice(2 + i * k, 2 + (i + 1) * k) for i in range(3)), slice(2 + 3 * k, None))


def weight_of(theta: np.ndarray, k: int) -> np.ndarray:
    """The matrix that multiplies x, (K, K), or without M its diagonal (K,)."""
    diagonal = scale_of(theta[0]) * (1 + theta[groups(k)[0]])
    matrix = theta[groups(k)[3]]
    return np.diag(diagonal) + matrix.reshape(k, k).T if len(matrix) else diagonal


def prior(
    k: int, scale: float | None, gamma: float | None, *others: float | None
) -> tuple[np.ndarray, np.ndarray]:
    """Which parameters are free, and their precisions, from the precisions of α, u, δ, b, e and M.

    None means fixed; M is left out if its precision is None or not given.
    """
    matrix = len(others) > 3 and others[3] is not None
    free, precision = np.zeros((2, 2 + 3 * k + k * k * matrix))
    for group, value in zip((slice(1), slice(1, 2), *groups(k)), (scale, gamma, *others)):
        if value is not None:
            free[group], precision[group] = 1, value
    if matrix:
        np.fill_diagonal(free[groups(k)[3]].reshape(k, k), 0)
    return free > 0, precision


def scale_of(u: float) -> float:
    """exp u, bounded because a line search may overshoot the range of floats."""
    return math.exp(min(u, 80.0))


def gamma_of(u: float) -> tuple[float, float]:
    """γ and dγ/du; u = 0 is γ = 0 and u = ±∞ are the bounds."""
    low, high = GAMMA_BOUNDS
    share = 1.0 / (1.0 + scale_of(-(u + math.log(-low / high))))
    return low + (high - low) * share, (high - low) * share * (1 - share)


class Psi(NamedTuple):
    """What the derivatives of Ψ need for a block of samples, classes first, (K, n)."""

    q: Array  # softmax s
    share: Array  # q/(1−q_top); 0 for the top class
    others: Array  # 1 − q
    log_others: Array
    ratio: Array  # −r = q ln q/(1−q)
    factor: Array  # 1 + γr
    top: Array  # flat indices of the top classes

    def by_gamma(self) -> Array:
        """−dt/dγ, where t = log q − γ log(1−q) − log(1+γr) are the scores after Ψ."""
        return self.log_others - self.ratio / self.factor

    def by_scores(self, gamma: float, by_t: Array) -> Array:
        """Derivatives with respect to s, from those with respect to t."""
        xp = namespace(by_t)
        # (1−q)·dt/d log q = 1 − q + γ(q − (r − q)/(1+γr)) is bounded for every q
        change = (self.others + gamma * ((self.ratio + self.q) / self.factor + self.q)) * by_t
        at_top = xp.reshape(change, (-1,))
        share = self.share * at_top[self.top]
        at_top[self.top] = 0.0
        change /= self.others
        change -= self.q * xp.sum(change, axis=0)
        change -= share
        # Derivatives sum to 0; computed directly, that of the top class would cancel.
        at_top[self.top] = 0.0
        at_top[self.top] = -xp.sum(change, axis=0)
        return change


def flat_index(s: Array, classes: Array) -> Array:
    """Positions of entries (classes[i], i) of s (K, n) in a flat view, faster to index in NumPy."""
    n = s.shape[1]
    return classes * n + namespace(s).arange(n, device=s.device)


def focal(s: Array, gamma: float) -> Psi:
    """Overwrites contiguous scores s (K, n) with t + log(1+γr), those after Ψ^γ up to a factor."""
    xp = namespace(s)
    top = flat_index(s, xp.argmax(s, axis=0))
    # The top class is expressed by r, the odds of the others, without cancellation.
    flat = xp.reshape(s, (-1,))
    largest = flat[top]
    flat[top] = -xp.inf
    nearest = xp.max(s, axis=0)
    share = xp.exp(s - nearest)
    total = xp.sum(share, axis=0)
    share /= total
    log_r = xp.log(total) + (nearest - largest)
    r = xp.clip(xp.exp(log_r), min=float(xp.finfo(s.dtype).smallest_normal))
    log1p_r = xp.log1p(r)
    q = share * (r / (1 + r))
    xp.reshape(q, (-1,))[top] = 1 / (1 + r)
    others = 1 - q
    xp.reshape(others, (-1,))[top] = r / (1 + r)
    log_others = xp.log(others)
    xp.reshape(log_others, (-1,))[top] = log_r - log1p_r
    s -= largest + log1p_r
    flat[top] = -log1p_r
    ratio = q * s / others
    factor = 1 - gamma * ratio
    s -= gamma * log_others
    return Psi(q, share, others, log_others, ratio, factor, top)


def exponentials(s: Array, gamma: float | None) -> tuple[Array, Psi | None]:
    """Numbers (K, n) proportional to Ψ^γ(softmax s), or to the softmax if γ is None.

    s is overwritten with their logarithms, without `factor`.
    """
    xp = namespace(s)
    psi = None if gamma is None else focal(s, gamma)
    s -= xp.max(s, axis=0) if psi is None else xp.reshape(s, (-1,))[psi.top]
    e = xp.exp(s)
    if psi is not None:
        e /= psi.factor
    return e, psi


def nll_by_scores(
    s: Array, own: Array, weights: Array, gamma: float | None
) -> tuple[float, float, Array]:
    """Σ w·NLL of Ψ^γ, or of the softmax, and its derivatives with respect to γ and s (K, n).

    own: labels (n,); s is overwritten.
    """
    xp = namespace(s)
    error, psi = exponentials(s, gamma)
    at_own = flat_index(s, own)
    total = xp.sum(error, axis=0)
    losses = xp.log(total) - xp.reshape(s, (-1,))[at_own]
    error /= total  # first, so that the error of a label of probability 1 is exactly 0
    error *= weights
    xp.reshape(error, (-1,))[at_own] -= weights
    if psi is None:
        return float(weights @ losses), 0.0, error
    losses += xp.log(xp.reshape(psi.factor, (-1,))[at_own])
    by_gamma = -float(xp.sum(psi.by_gamma() * error))
    return float(weights @ losses), by_gamma, psi.by_scores(gamma, error)


class FocalAffine:
    """The NLL as a function of the parameters, with M or without.

    x: (N, K) float32 or float64, the precision of per-row work; sums are in float64. mean: m (N,),
    or None for a softmax without Ψ; labels: (N,) int; weights: (N,). Blocks are stored classes
    first, so that sums over few classes are fast.
    """

    def __init__(
        self, x: np.ndarray, mean: np.ndarray | None, labels: np.ndarray, weights: np.ndarray
    ) -> None:
        k = x.shape[1]
        self.x, n = x, max(1, _BLOCK // k, min(512, _PRODUCT // k) if mean is None else 1)
        self.mean = None if mean is None else mean.astype(x.dtype)
        self.labels, self.weights = labels, weights.astype(x.dtype)
        self.groups = groups(x.shape[1])
        self.rows = [slice(start, start + n) for start in range(0, len(x), n)]
        self.blocks = [np.ascontiguousarray(x[rows].T) for rows in self.rows]

    def part(self, shares: np.ndarray) -> FocalAffine:
        """The model of these shares (N,) of the samples' weights."""
        rows = np.flatnonzero(shares > 0)
        mean = None if self.mean is None else self.mean[rows]
        return FocalAffine(self.x[rows], mean, self.labels[rows], self.weights[rows] * shares[rows])

    def log_proba(self, theta: np.ndarray) -> np.ndarray:
        """(N, K)."""

        def block(s: np.ndarray, i: int, gamma: float | None) -> np.ndarray:
            e, psi = exponentials(s, gamma)
            if psi is not None:
                s -= np.log(psi.factor)
            s -= np.log(e.sum(axis=0))
            return s.T

        return np.concatenate(self._map(theta, block))

    def losses(self, theta: np.ndarray) -> np.ndarray:
        """NLL of each sample (N,)."""
        log_p = self.log_proba(theta)
        return -log_p[np.arange(len(log_p)), self.labels].astype(np.float64)

    def nll(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        """Σ w·NLL and its gradient."""

        def block(s: np.ndarray, i: int, gamma: float | None) -> list[Any]:
            own, w = self.labels[self.rows[i]], self.weights[self.rows[i]]
            loss, by_gamma, by_s = nll_by_scores(s, own, w, gamma)
            return [loss, by_gamma, *self._products(by_s, i, theta)]

        loss, by_gamma, by_scale, *others = self._sums(theta, block)
        scale = scale_of(theta[0])
        first = scale * float(by_scale @ (1 + theta[self.groups[0]]))
        second = by_gamma * gamma_of(theta[1])[1]
        return float(loss), _vector([first, second], scale * by_scale, *others)

    def curvature(self, theta: np.ndarray) -> np.ndarray:
        """Diagonal of the Gauss–Newton matrix, with Ψ approximated by its average stretch."""

        def block(s: np.ndarray, i: int, gamma: float | None) -> list[Any]:
            p, psi = exponentials(s, gamma)
            p /= p.sum(axis=0)
            v = p * (1 - p) * self.weights[self.rows[i]]
            by_gamma = 0.0 if psi is None else np.vdot(v, psi.by_gamma() ** 2)
            return [by_gamma, *self._products(v, i, theta, power=2)]

        by_gamma, by_scale, *others = self._sums(theta, block)
        by_scale *= scale_of(theta[0]) ** 2
        gamma, slope = gamma_of(theta[1])
        stretch = (1 + gamma / 2) ** 2 if gamma > 0 else 1.0
        return stretch * _vector([by_scale.sum(), by_gamma * slope**2], by_scale, *others)

    def _map(self, theta: np.ndarray, block: Callable[..., T]) -> list[T]:
        """`block(s, i, γ)` for the scores s (K, n) of every block i; γ is None without Ψ."""
        k, dtype = self.x.shape[1], self.x.dtype
        gamma = None if self.mean is None else gamma_of(theta[1])[0]
        weight = weight_of(theta, k).astype(dtype)
        bias, extra = (theta[group].astype(dtype)[:, None] for group in self.groups[1:3])

        def at(one: slice) -> T:
            x = self.blocks[one.start]
            s = weight @ x if weight.ndim == 2 else weight[:, None] * x
            s += bias
            if self.mean is not None:
                s += extra * self.mean[self.rows[one.start]]
            return block(s, one.start, gamma)

        return map_blocks(at, len(self.blocks), 1)

    def _sums(self, theta: np.ndarray, block: Callable[..., list[Any]]) -> list[Any]:
        return [np.sum(p, axis=0, dtype=np.float64) for p in zip(*self._map(theta, block))]

    def _products(
        self, v: np.ndarray, i: int, theta: np.ndarray, power: int = 1
    ) -> list[np.ndarray]:
        """v (K, n) times the (powers of the) factors of δ, b, e and M, summed over samples."""
        x = self.blocks[i] if power == 1 else self.blocks[i] ** power
        sums = [np.einsum("ij,ij->i", v, x), v.sum(axis=1), np.zeros(len(v))]
        if self.mean is not None:
            sums[2] = v @ self.mean[self.rows[i]] ** power
        return [*sums, x @ v.T] if len(theta[self.groups[3]]) else sums


def _vector(first: list[float], *others: np.ndarray) -> np.ndarray:
    """One vector in the order of the parameters: α and u, then δ, b, e and M (K, K)."""
    if len(others) > 3:
        np.fill_diagonal(others[3], 0)
    return np.concatenate([first, *(part.ravel() for part in others)])


def minimise(
    function: Callable[[np.ndarray], tuple[float, np.ndarray]],
    start: np.ndarray,
    free: np.ndarray,
    prior: tuple[np.ndarray, np.ndarray],
    root: np.ndarray,
    **options: float,
) -> scipy.optimize.OptimizeResult:
    """L-BFGS for function(θ) + ½ Σ ρ(θ − origin)², where `function` returns value and gradient.

    free: which of θ; prior: origin and ρ; root: R, upper triangular or its diagonal, with RᵀR close
    to the Hessian. In coordinates Rθ the problem is well conditioned; without them, the scale and
    the matrix take hundreds of iterations to move together.
    """
    origin, precision = prior

    def solved(v: np.ndarray, trans: str = "N") -> np.ndarray:
        return v / root if root.ndim == 1 else scipy.linalg.solve_triangular(root, v, trans=trans)

    def parameters(u: np.ndarray) -> np.ndarray:
        theta = start.copy()
        theta[free] += solved(u)
        return theta

    def objective(u: np.ndarray) -> tuple[float, np.ndarray]:
        theta = parameters(u)
        loss, gradient = function(theta)
        away = theta - origin
        gradient = gradient + precision * away
        return loss + 0.5 * float(precision @ away**2), solved(gradient[free], "T")

    found = scipy.optimize.minimize(
        objective, np.zeros(int(free.sum())), jac=True, method="L-BFGS-B", options=options
    )
    found.x = parameters(found.x)
    return found
