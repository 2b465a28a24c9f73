"""The top class's log-odds under Ψ^γ(softmax(z/T)), for many (γ, T) in one pass over the logits.

Ψ and T keep the argmax, so a calibration error of the top class needs one number per sample. With
R the odds of the other classes before Ψ and h = q/g(q,γ), it is

    L = log h(q_top) − log Σ_{k≠top} h(q_k),   q_top = 1/(1+R).

The second term is written as log c + log Σ_k e_k/g(q_k), where e_k = exp(−(margin of k − smallest
margin)/T) ≤ 1 and q_k = c·e_k, so nothing underflows however confident the network is.
"""

from __future__ import annotations

import dataclasses
import math

import array_api_compat
import numpy as np

from focalcal._arrays import Array, namespace, to_numpy
from focalcal.calibrators._rows import map_rows


@dataclasses.dataclass(frozen=True)
class Point:
    """One temperature and the γ to evaluate with it: what depends on T alone is shared."""

    temperature: float
    gammas: tuple[float, ...]


def point_log_odds(logits: Array, points: list[Point], double: bool = False) -> Array:
    """L for every (T, γ) of `points` in order, shape (pairs, N); float32, or float64 if `double`.

    >>> import numpy as np
    >>> point_log_odds(np.array([[2.0, 0.0]]), [Point(0.5, (0.0,))], double=True)
    array([[4.]])
    """
    xp = namespace(logits)
    dtype = xp.float64 if double else xp.float32
    pairs = sum(len(point.gammas) for point in points)
    device = array_api_compat.device(logits)
    out = xp.empty((pairs, logits.shape[0]), dtype=dtype, device=device)

    def block(rows: slice) -> None:
        z = xp.astype(xp.flip(xp.sort(logits[rows], axis=1, stable=False), axis=1), xp.float64)
        margins = xp.astype(z[:, 1:2] - z[:, 1:], dtype)
        nearest = to_numpy(xp.min(margins, axis=0))
        # Classes further away add less than the rounding to a sum that is at least 1.
        reach = math.log(len(nearest)) + (40.0 if double else 17.0)
        start = 0
        for point in points:
            used = int(np.searchsorted(nearest, reach * point.temperature, side="right"))
            found = _at_temperature(margins[:, : max(1, used)], z[:, 0] - z[:, 1], point)
            out[start : start + len(found), rows] = xp.stack(found)
            start += len(found)

    map_rows(block, logits)
    return out


def _at_temperature(margins: Array, smallest: Array, point: Point) -> list[Array]:
    """L for each γ at one T: margins (n, K−1) above the smallest one (n,)."""
    xp = namespace(margins)
    beta = 1.0 / float(point.temperature)  # a NumPy scalar would widen float32
    exponents = xp.clip(margins * -beta, min=-40.0)  # exp is slow where it underflows
    e = xp.exp(exponents)
    log_r = xp.log(_row_sums(e)) - beta * smallest
    if not any(point.gammas):
        return [-log_r] * len(point.gammas)
    r = xp.exp(log_r)
    log1p_r = xp.log1p(r)
    log_c = -beta * smallest - log1p_r
    # r(q_top) = log1p(R)/R, by its series where R is too small to divide by
    tiny = r < 1e-8
    top_ratio = xp.where(tiny, 1 - r / 2, log1p_r / xp.where(tiny, xp.ones_like(r), r))
    # The other classes have q = c·e ≤ ½, and 1/g(q, γ) = (1 − q)^−γ/(1 + γ·ratio).
    q = e * xp.astype(xp.exp(log_c), e.dtype)[:, None]
    ratio = -q * (exponents + xp.astype(log_c, e.dtype)[:, None]) / (1 - q)
    log_rest = xp.log(1 - q)

    def log_odds(gamma: float) -> Array:
        weight = xp.exp(exponents - gamma * log_rest)
        weight /= 1 + gamma * ratio
        total = _row_sums(weight)
        top = -log1p_r - gamma * (log_r - log1p_r) - xp.log1p(gamma * top_ratio)
        return top - log_c - xp.log(total)

    return [log_odds(float(gamma)) for gamma in point.gammas]


def _row_sums(x: Array) -> Array:
    """Σ over the classes in float64; in NumPy a product with ones is the faster sum."""
    xp = namespace(x)
    sums = x @ np.ones(x.shape[1], x.dtype) if isinstance(x, np.ndarray) else xp.sum(x, axis=1)
    return xp.astype(sums, xp.float64)
