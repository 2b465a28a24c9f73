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
_BLOCK = 2**15  # elements; a dozen float32 temporaries of this size stay in cache


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


def gamma_of(u: float) -> tuple[float, float]:
    """γ and dγ/du; u = 0 is γ = 0 and u = ±∞ are the bounds."""
    low, high = GAMMA_BOUNDS
    share = 1.0 / (1.0 + math.exp(-(u + math.log(-low / high))))
    return low + (high - low) * share, (high - low) * share * (1 - share)


@dataclasses.dataclass(frozen=True)
class _Rows:
    """Ψ of one block of rows: log-probabilities, and what their derivatives need."""

    log_p: np.ndarray
    q: np.ndarray
    own: np.ndarray
    """(1−q)·dt/d log q of t = log q − γ log(1−q) − log(1+γr): bounded for every q."""
    by_gamma: np.ndarray
    others: np.ndarray
    """1 − q of each class; of the top class, the sum over the others."""
    top: np.ndarray


def _log_softmax(s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    s = s - s.max(axis=1, keepdims=True)
    e = np.exp(s)
    total = e.sum(axis=1, keepdims=True)
    s -= np.log(total)
    e /= total
    return s, e


def _focal_rows(s: np.ndarray, gamma: float) -> _Rows:
    log_q, q = _log_softmax(s)
    rows, top = np.arange(len(q)), log_q.argmax(axis=1)
    kept = q[rows, top].copy()
    q[rows, top] = 0
    rest = np.maximum(q.sum(axis=1), np.finfo(q.dtype).tiny)
    q[rows, top] = kept
    others = 1 - q
    others[rows, top] = rest
    ratio = -q * log_q / others
    # −q ln q/(1−q) = 1 − (1−q)/2 − …, where dividing would cancel
    near = rest < 1e-3
    ratio[rows[near], top[near]] = 1 - rest[near] / 2
    log_others = np.log(others)
    factor = 1 + gamma * ratio
    own = others + gamma * (q - (ratio - q) / factor)
    by_gamma = -log_others - ratio / factor
    log_p, _ = _log_softmax(log_q - gamma * log_others - np.log(factor))
    return _Rows(log_p, q, own, by_gamma, others, top)


class FocalAffine:
    """The penalised NLL as a function of the parameter vector.

    x: (N, K) float32 or float64, the precision of the row work; sums are in float64. labels: (N,)
    int; weights: (N,).
    """

    def __init__(
        self,
        x: np.ndarray,
        mean: np.ndarray,
        labels: np.ndarray,
        weights: np.ndarray,
        full: bool,
    ) -> None:
        self.x, self.mean = x, mean.astype(x.dtype)
        self.labels, self.weights = labels, weights.astype(x.dtype)
        self.layout = Layout(x.shape[1], full)

    def subset(self, rows: np.ndarray) -> FocalAffine:
        own = (a[rows] for a in (self.x, self.mean, self.labels, self.weights))
        return FocalAffine(*own, self.layout.full)

    def scores(self, theta: np.ndarray, rows: slice) -> np.ndarray:
        x = self.x[rows]
        delta, bias, extra = (theta[g].astype(x.dtype) for g in self.layout.groups[:3])
        s = x * (math.exp(theta[0]) * (1 + delta)) + bias + self.mean[rows, None] * extra
        matrix = self.layout.matrix(theta)
        return s if matrix is None else s + x @ matrix.astype(x.dtype)

    def log_proba(self, theta: np.ndarray) -> np.ndarray:
        gamma = gamma_of(theta[1])[0]
        parts = self._map(lambda rows: _focal_rows(self.scores(theta, rows), gamma).log_p)
        return np.concatenate(parts)

    def nll(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        """Σ w·NLL and its gradient."""
        gamma, slope = gamma_of(theta[1])
        full = self.layout.full

        def block(rows: slice) -> list[np.ndarray]:
            x, y, w = self.x[rows], self.labels[rows], self.weights[rows]
            index = np.arange(len(y))
            psi = _focal_rows(self.scores(theta, rows), gamma)
            loss = -float(w @ psi.log_p[index, y])
            error = np.exp(psi.log_p)
            error[index, y] -= 1
            error *= w[:, None]
            by_u = float(np.vdot(error, psi.by_gamma))
            own = error * psi.own
            of_top = own[index, psi.top].copy()
            own[index, psi.top] = 0
            grad = own / psi.others
            rest = grad.sum(axis=1)
            q, q_top = psi.q, psi.q[index, psi.top].copy()
            q[index, psi.top] = 0
            grad -= q * rest[:, None]
            # q/(1−q_top) ≤ 1 first: 1/(1−q_top) alone would overflow
            grad -= (q / psi.others[index, psi.top][:, None]) * of_top[:, None]
            grad[index, psi.top] = of_top - q_top * rest
            sums = [np.float64(loss), np.float64(by_u), np.einsum("ij,ij->j", grad, x)]
            sums += [grad.sum(axis=0), self.mean[rows] @ grad]
            return [*sums, x.T @ grad] if full else sums

        parts = [np.sum(p, axis=0, dtype=np.float64) for p in zip(*self._map(block))]
        loss, by_u, by_scale, by_bias, by_mean = parts[:5]
        delta = theta[self.layout.groups[0]]
        scale = math.exp(theta[0])
        gradient = np.empty_like(theta)
        gradient[0] = scale * float(by_scale @ (1 + delta))
        gradient[1] = by_u * slope
        for group, value in zip(self.layout.groups, (scale * by_scale, by_bias, by_mean)):
            gradient[group] = value
        if full:
            np.fill_diagonal(parts[5], 0)
            gradient[self.layout.groups[3]] = parts[5].ravel()
        return float(loss), gradient

    def curvature(self, theta: np.ndarray) -> np.ndarray:
        """Diagonal of the Gauss–Newton matrix, with Ψ taken as the stretch it is on average."""
        gamma, slope = gamma_of(theta[1])
        full = self.layout.full

        def block(rows: slice) -> list[np.ndarray]:
            x, w = self.x[rows], self.weights[rows]
            psi = _focal_rows(self.scores(theta, rows), gamma)
            p = np.exp(psi.log_p)
            p *= 1 - p
            v = p * w[:, None]
            squares = x * x
            by_u = float(np.vdot(v, psi.by_gamma**2))
            sums = [np.float64(by_u), np.einsum("ij,ij->j", v, squares), v.sum(axis=0)]
            sums += [self.mean[rows] ** 2 @ v]
            return [*sums, squares.T @ v] if full else sums

        parts = [np.sum(p, axis=0, dtype=np.float64) for p in zip(*self._map(block))]
        by_u, by_scale, by_bias, by_mean = parts[:4]
        out = np.empty_like(theta)
        scale = math.exp(theta[0])
        stretch = (1 + gamma / 2) ** 2 if gamma > 0 else 1.0
        out[0], out[1] = scale**2 * by_scale.sum(), by_u * slope**2
        for group, value in zip(self.layout.groups, (scale**2 * by_scale, by_bias, by_mean)):
            out[group] = value
        if full:
            np.fill_diagonal(parts[4], 0)
            out[self.layout.groups[3]] = parts[4].ravel()
        return out * stretch

    def _map(self, block):
        n, k = self.x.shape
        return map_blocks(block, n, max(1, _BLOCK // k))
