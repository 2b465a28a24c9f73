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
    out = xp.empty((pairs, logits.shape[0]), dtype=dtype, device=_device(logits))
    if array_api_compat.is_torch_array(logits):
        map_rows(lambda rows: _sorted_block(logits[rows], points, out[:, rows]), logits)
        return out
    # Rows of like confidence share a block, so that whole blocks can take the short way below.
    order = np.argsort(-_margin(logits))

    def block(rows: slice) -> None:
        z = logits[order[rows]].astype(np.float64)
        others = np.arange(z.shape[1])[None, :] != np.argmax(z, axis=1)[:, None]
        margins = np.max(z, axis=1)[:, None] - np.reshape(z[others], (z.shape[0], -1))
        smallest = np.min(margins, axis=1)
        margins = (margins - smallest[:, None]).astype(dtype)
        found = [row for point in points for row in _at_temperature(margins, smallest, point)]
        out[:, order[rows]] = np.stack(found)

    map_rows(block, logits)
    return out


def _sorted_block(logits: Array, points: list[Point], out: Array) -> None:
    """The same for a block on an accelerator: the classes that matter at T come first."""
    xp = namespace(logits)
    z = xp.astype(xp.flip(xp.sort(logits, axis=1, stable=False), axis=1), xp.float64)
    margins = xp.astype(z[:, 1:2] - z[:, 1:], out.dtype)
    nearest = to_numpy(xp.min(margins, axis=0))
    # all the classes left out add less than the rounding to a sum that is at least 1
    reach = math.log(len(nearest)) + (40.0 if out.dtype == xp.float64 else 17.0)
    start = 0
    for point in points:
        used = int(np.searchsorted(nearest, reach * float(point.temperature), side="right"))
        found = _at_temperature(margins[:, : max(1, used)], z[:, 0] - z[:, 1], point)
        out[start : start + len(found)] = xp.stack(found)
        start += len(found)


def _margin(logits: np.ndarray) -> np.ndarray:
    """Largest minus second largest logit, (N,)."""

    def block(rows: slice) -> np.ndarray:
        top = -np.partition(-logits[rows], 1, axis=1)[:, :2]
        return top[:, 0] - top[:, 1]

    return np.concatenate(map_rows(block, logits))


def _at_temperature(margins: Array, smallest: Array, point: Point) -> list[Array]:
    """L for each γ at one T: margins (n, K−1) above the smallest one (n,)."""
    xp = namespace(margins)
    double = margins.dtype == xp.float64
    beta = 1.0 / float(point.temperature)  # a NumPy scalar would widen float32
    # Past the clip a class adds nothing to the sum; without it exp crawls through denormals.
    exponents = xp.clip(margins * -beta, min=-80.0 if double else -40.0)
    e = xp.exp(exponents)
    sum_e = xp.astype(xp.sum(e, axis=1), xp.float64)
    log_r = xp.log(sum_e) - beta * smallest
    if all(gamma == 0 for gamma in point.gammas):
        return [-log_r] * len(point.gammas)
    r = xp.exp(log_r)
    log1p_r = xp.log1p(r)
    log_c = -beta * smallest - log1p_r
    # r(q_top) = log1p(R)/R, by its series where R is too small to divide by
    tiny = r < 1e-8
    top_ratio = xp.where(tiny, 1 - r / 2, log1p_r / xp.where(tiny, xp.ones_like(r), r))
    # Not on an accelerator, which would have to wait for the answer.
    small = isinstance(log_c, np.ndarray) and log_c.max() < math.log(1e-9 if double else 1e-5)
    if small:
        # 1/g(q,γ) = 1 + γq(1 + ln q) + O(γ²q²ln²q): below the precision for q this small
        squares = xp.astype(xp.vecdot(e, e), xp.float64)
        e *= e
        moment = xp.astype(xp.vecdot(e, exponents), xp.float64)
        first = xp.exp(log_c) * ((1 + log_c) * squares + moment)
        sums = [sum_e + gamma * first for gamma in point.gammas]
    else:
        sums = _weighted_sums(exponents, e, log_c, point.gammas)
    return [
        -log1p_r - gamma * (log_r - log1p_r) - xp.log1p(gamma * top_ratio) - (log_c + xp.log(total))
        for gamma, total in zip(point.gammas, sums)
    ]


def _weighted_sums(
    exponents: Array, e: Array, log_c: Array, gammas: tuple[float, ...]
) -> list[Array]:
    """Σ_k e_k/g(q_k,γ) over the other classes, all of which have q_k = c·e_k ≤ ½."""
    xp = namespace(e)
    q = e * xp.astype(xp.exp(xp.clip(log_c, min=-40.0)), e.dtype)[:, None]
    rest = 1 - q
    q *= exponents + xp.astype(log_c, e.dtype)[:, None]
    q /= rest
    minus_ratio, log_rest = q, xp.log(rest)
    if array_api_compat.is_torch_array(e):
        return [_torch_sum(exponents, log_rest, minus_ratio, float(gamma)) for gamma in gammas]
    out = []
    for gamma in gammas:
        weight = xp.exp(log_rest * -float(gamma))
        weight *= e
        below = minus_ratio * -float(gamma)
        below += 1
        weight /= below
        out.append(xp.astype(xp.sum(weight, axis=1), xp.float64))
    return out


def _torch_sum(exponents: Array, log_rest: Array, minus_ratio: Array, gamma: float) -> Array:
    """The same sum in the fewest passes: on a GPU each pass costs a trip through its memory."""
    import torch

    weight = torch.add(exponents, log_rest, alpha=-gamma).exp_()
    weight /= torch.add(torch.ones_like(minus_ratio[:1, :1]), minus_ratio, alpha=-gamma)
    return weight.sum(dim=1).double()


def _device(x: Array) -> object:
    return array_api_compat.device(x)
