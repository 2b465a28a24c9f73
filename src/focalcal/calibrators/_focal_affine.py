"""The NLL of Ψ^γ after an affine map of the scores, its gradient and its curvature.

    s_k = α·(1 + δ_k)·x_k + b_k + e_k·m + Σ_j x_j M_jk,   p = Ψ^γ(softmax s)

x (N, K) are centred logits and m (N,) the mean log-probability of each row, which centring takes
away. The parameters lie in one vector: log α, u (γ is a bounded function of it), δ (K), b (K),
e (K) and, where it is used, M (K, K), whose diagonal stays zero.
"""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np

from focalcal._blocks import map_blocks

GAMMA_BOUNDS = (-0.95, 10.0)
_BLOCK = 2**17  # elements; the products of larger blocks would leave the cache


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where each group of parameters lies in the vector."""

    n_classes: int
    full: bool

    @property
    def size(self) -> int:
        k = self.n_classes
        return 2 + 3 * k + (k * k if self.full else 0)

    @property
    def groups(self) -> tuple[slice, ...]:
        """δ, b, e and, if used, M."""
        k = self.n_classes
        starts = [2, 2 + k, 2 + 2 * k, 2 + 3 * k]
        parts = [slice(a, b) for a, b in itertools.pairwise(starts)]
        return (*parts, slice(starts[-1], self.size)) if self.full else tuple(parts)

    def matrix(self, theta: np.ndarray) -> np.ndarray | None:
        k = self.n_classes
        return theta[self.groups[3]].reshape(k, k) if self.full else None


def scale_of(u: float) -> float:
    """exp u, bounded: a line search may leap past the range of floats."""
    return math.exp(min(u, 80.0))


def gamma_of(u: float) -> tuple[float, float]:
    """γ and dγ/du; u = 0 is γ = 0 and u = ±∞ are the bounds."""
    low, high = GAMMA_BOUNDS
    share = 1.0 / (1.0 + scale_of(-(u + math.log(-low / high))))
    return low + (high - low) * share, (high - low) * share * (1 - share)


@dataclasses.dataclass(frozen=True)
class _Block:
    """Ψ of one block of samples, classes first: probabilities, and what derivatives need."""

    log_p: np.ndarray
    p: np.ndarray
    q: np.ndarray
    others: np.ndarray
    """1 − q of each class; of the top class, from the sum over the others."""
    log_others: np.ndarray
    ratio: np.ndarray
    """r = −q ln q/(1−q)."""
    factor: np.ndarray
    """1 + γr."""
    top: np.ndarray
    """Flat index of the top class of each sample."""
    odds: np.ndarray
    """(n,) (1−q)/q of the top class."""

    def by_gamma(self) -> np.ndarray:
        """d/dγ of t = log q − γ log(1−q) − log(1+γr), negative."""
        return self.log_others + self.ratio / self.factor


def _focal_block(s: np.ndarray, gamma: float) -> _Block:
    """s: (K, n) scores, which are overwritten."""
    n = s.shape[1]
    top = s.argmax(axis=0) * n + np.arange(n)
    s -= s.ravel()[top]
    q = np.exp(s)
    q.ravel()[top] = 0
    # the odds of the others keep their digits where 1 − q would cancel
    odds = np.maximum(q.sum(axis=0), np.finfo(q.dtype).tiny)
    q.ravel()[top] = 1
    s -= np.log1p(odds)
    q /= 1 + odds
    others = 1 - q
    others.ravel()[top] = odds / (1 + odds)
    ratio = q * s
    ratio /= others
    np.negative(ratio, out=ratio)
    log_others = np.log(others)
    factor = gamma * ratio
    factor += 1
    s -= gamma * log_others
    s -= np.log(factor)
    s -= s.max(axis=0)
    p = np.exp(s)
    total = p.sum(axis=0)
    s -= np.log(total)
    p /= total
    return _Block(s, p, q, others, log_others, ratio, factor, top, odds)


class FocalAffine:
    """The penalised NLL as a function of the parameter vector.

    x: (N, K) float32 or float64, the precision of the row work; sums are in float64. labels: (N,)
    int; weights: (N,). Inside, classes come first, so that sums over few classes are fast.
    """

    def __init__(
        self,
        x: np.ndarray,
        mean: np.ndarray,
        labels: np.ndarray,
        weights: np.ndarray,
        full: bool,
    ) -> None:
        self.x, self.mean = np.ascontiguousarray(x.T), mean.astype(x.dtype)
        self.labels, self.weights = labels, weights.astype(x.dtype)
        self.layout = Layout(x.shape[1], full)

    def part(self, shares: np.ndarray) -> FocalAffine:
        """The model of these shares (N,) of the samples' weights."""
        rows = np.flatnonzero(shares > 0)
        x, mean, labels = (a[rows] for a in (self.x.T, self.mean, self.labels))
        weights = self.weights[rows] * shares[rows]
        return FocalAffine(x, mean, labels, weights, self.layout.full)

    def scores(self, theta: np.ndarray, rows: slice) -> np.ndarray:
        """s of some samples, (K, n)."""
        x = self.x[:, rows]
        delta, bias, extra = (theta[g].astype(x.dtype)[:, None] for g in self.layout.groups[:3])
        matrix = self.layout.matrix(theta)
        scale = scale_of(theta[0]) * (1 + delta)
        if matrix is None or not matrix.any():
            s = scale.astype(x.dtype) * x
        else:
            s = (matrix.T + np.diag(scale[:, 0])).astype(x.dtype) @ x
        s += bias
        s += extra * self.mean[rows]
        return s

    def log_proba(self, theta: np.ndarray) -> np.ndarray:
        """(N, K)."""
        gamma = gamma_of(theta[1])[0]
        parts = self._map(lambda rows: _focal_block(self.scores(theta, rows), gamma).log_p.T)
        return np.concatenate(parts)

    def losses(self, theta: np.ndarray) -> np.ndarray:
        """NLL of each sample (N,)."""
        log_p = self.log_proba(theta)
        return -log_p[np.arange(len(log_p)), self.labels].astype(np.float64)

    def nll(self, theta: np.ndarray, full: bool | None = None) -> tuple[float, np.ndarray]:
        """Σ w·NLL and its gradient; that of the matrix is 0 unless `full`."""
        gamma, slope = gamma_of(theta[1])
        full = self.layout.full if full is None else full

        def block(rows: slice) -> list[np.ndarray]:
            x, w = self.x[:, rows], self.weights[rows]
            own = self.labels[rows] * len(w) + np.arange(len(w))
            psi = _focal_block(self.scores(theta, rows), gamma)
            loss = -float(w @ psi.log_p.ravel()[own])
            error = psi.p
            error.ravel()[own] -= 1
            error *= w
            by_u = -float(np.vdot(error, psi.by_gamma()))
            # (1−q)·dt/d log q = 1 − q + γ(q − (r − q)/(1+γr)) is bounded for every q
            change = psi.ratio - psi.q
            change /= psi.factor
            np.subtract(psi.q, change, out=change)
            change *= gamma
            change += psi.others
            change *= error
            of_top = change.ravel()[psi.top]
            change.ravel()[psi.top] = 0
            change /= psi.others
            total = change.sum(axis=0)
            q, q_top = psi.q, psi.q.ravel()[psi.top]
            change -= q * total
            q.ravel()[psi.top] = 0
            q *= (1 + psi.odds) / psi.odds  # first: q/(1−q_top) ≤ 1, where of_top/odds overflows
            q *= of_top
            change -= q
            change.ravel()[psi.top] = of_top - q_top * total
            sums = [np.float64(loss), np.float64(by_u), np.einsum("ij,ij->i", change, x)]
            sums += [change.sum(axis=1), change @ self.mean[rows]]
            return [*sums, x @ change.T] if full else sums

        found = self._map(block)
        parts = [np.sum(p, axis=0, dtype=np.float64) for p in zip(*found)]
        loss, by_u, by_scale, by_bias, by_mean = parts[:5]
        delta = theta[self.layout.groups[0]]
        scale = scale_of(theta[0])
        gradient = np.zeros_like(theta)
        gradient[0] = scale * float(by_scale @ (1 + delta))
        gradient[1] = by_u * slope
        for group, value in zip(self.layout.groups, (scale * by_scale, by_bias, by_mean)):
            gradient[group] = value
        if full:
            np.fill_diagonal(parts[5], 0)
            gradient[self.layout.groups[3]] = parts[5].ravel()
        return float(loss), gradient

    def curvature(self, theta: np.ndarray, full: bool | None = None) -> np.ndarray:
        """Diagonal of the Gauss–Newton matrix, with Ψ taken as the stretch it is on average."""
        gamma, slope = gamma_of(theta[1])
        full = self.layout.full if full is None else full

        def block(rows: slice) -> list[np.ndarray]:
            x, w = self.x[:, rows], self.weights[rows]
            psi = _focal_block(self.scores(theta, rows), gamma)
            v = psi.p * (1 - psi.p)
            v *= w
            squares = x * x
            by_u = float(np.vdot(v, psi.by_gamma() ** 2))
            sums = [np.float64(by_u), np.einsum("ij,ij->i", v, squares), v.sum(axis=1)]
            sums += [v @ self.mean[rows] ** 2]
            return [*sums, squares @ v.T] if full else sums

        parts = [np.sum(p, axis=0, dtype=np.float64) for p in zip(*self._map(block))]
        by_u, by_scale, by_bias, by_mean = parts[:4]
        out = np.zeros_like(theta)
        scale = scale_of(theta[0])
        stretch = (1 + gamma / 2) ** 2 if gamma > 0 else 1.0
        out[0], out[1] = scale**2 * by_scale.sum(), by_u * slope**2
        for group, value in zip(self.layout.groups, (scale**2 * by_scale, by_bias, by_mean)):
            out[group] = value
        if full:
            np.fill_diagonal(parts[4], 0)
            out[self.layout.groups[3]] = parts[4].ravel()
        return out * stretch

    def _map(self, block):
        k, n = self.x.shape
        return map_blocks(block, n, max(1, _BLOCK // k))
