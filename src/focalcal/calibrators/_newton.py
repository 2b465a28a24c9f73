"""The best temperature by NLL: safeguarded Newton on β = 1/T, from blocked passes over the logits.

The loss L(β) = mean[logsumexp(βz) − β z_y] is convex on β ≥ 0. Its optimum is at β = 0 exactly
when L'(0) ≥ 0 (the logits are worse than chance) and at β = ∞ exactly when every label has the
largest logit; both cases are detected without a search.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy.interpolate import CubicHermiteSpline

from focalcal import kernels
from focalcal._arrays import Array, is_torch, namespace, to_numpy
from focalcal._blocks import map_rows

COLD = 1e4
"""The lowest temperature is spread/COLD: one standard deviation of logits is then e^10000."""
TINY = 1e-35
"""Logits all smaller than this count as equal; 1/T would overflow."""
LARGEST = 1e35
"""The largest β, for which products with logits stay within the range of float32."""
MAX_ITERATIONS = 100
SHORT_ROW = 64
_BLOCK_BYTES = 2**21
"""Larger than a core's second-level cache: fewer blocks save more than cache misses cost."""
_QUICK_BLOCK = 2**18
_SAMPLE_ROWS = 2000  # Newton starts from the optimum of this many rows, to save full passes


class Moments(NamedTuple):
    """One pass at β: the loss, its first two derivatives, and its slope as β → ∞."""

    loss: float
    slope: float
    curvature: float
    slope_at_infinity: float


@dataclasses.dataclass(frozen=True)
class Optimum:
    """β = 1/T, the γ of Ψ after it, and the loss there.

    kind: inner, chance (β = 0), separable, flat, or gamma where γ is at the end of its range.
    """

    beta: float
    loss: float
    iterations: int
    converged: bool
    kind: str = "inner"
    gamma: float = 0.0

    @property
    def temperature(self) -> float:
        return 1.0 / self.beta if self.beta > 0 else math.inf

    @property
    def at_edge(self) -> bool:
        return self.kind in ("chance", "separable", "gamma")

    @property
    def notes(self) -> list[str]:
        """A warning if the optimum is at an end of its range, or all temperatures are equal."""
        notes = {
            "chance": "the logits are worse than chance on the calibration data, so the best "
            "temperature is infinite and every prediction is uniform; check the labels",
            "separable": "every calibration sample is classified correctly, so a lower temperature "
            f"is always better; stopped at T = {self.temperature:.3g}, use more data",
            "flat": "all logits of each sample are equal, so every temperature gives the same "
            "probabilities; kept T = 1",
            "gamma": f"gamma ran to the end of its range, {self.gamma:g}; the fit is valid but "
            "gamma is not meaningful: widen gamma_range, or use temperature scaling",
        }
        return [notes[self.kind]] if self.kind in notes else []


def moment_sums(
    logits: Array,
    labels: Array,
    weights: Array | None,
    beta: float,
    *,
    quick: bool | None = None,
    double: bool = False,
) -> np.ndarray:
    """The weighted sums behind `Moments` and the sum of weights, (5,), additive over parts.

    Row sums are in the precision of the logits, sums over rows in float64. quick: use compiled
    loops (None decides by size), which handle short NumPy rows; double: row sums in float64.
    """
    xp = namespace(logits)
    dtype = xp.float64 if double else logits.dtype
    k = logits.shape[1]
    # NumPy reduces short rows one by one but columns with SIMD, so few classes go first.
    axis = 0 if k <= SHORT_ROW else 1
    if quick is None:
        quick = kernels.fast(logits.shape[0] * k)
    quick = quick and axis == 0 and isinstance(logits, np.ndarray) and kernels.loops() is not None

    def block(rows: slice) -> Array:
        find = _compiled_moments if quick else partial(_moments_at, axis=axis)
        given = xp.astype(logits[rows], dtype, copy=False)
        own, norm, mean, square = find(given, labels[rows], beta)
        w = xp.ones_like(own) if weights is None else xp.astype(weights[rows], xp.float64)
        last = xp.sum(w * own)
        sums = [xp.sum(w * xp.log(norm)) - beta * last, xp.sum(w * mean) - last]
        return xp.stack([*sums, xp.sum(w * square), -last, xp.sum(w)])

    elements = _QUICK_BLOCK if quick else _BLOCK_BYTES // logits.dtype.itemsize
    return to_numpy(sum(map_rows(block, logits, elements)))


def _moments_at(z: Array, y: Array, beta: float, axis: int) -> tuple[Array, ...]:
    """z − max z of the label, Σ e, and mean and variance of z − max z under e, in float64.

    axis: the axis of the classes in the computation; z has them last.
    """
    xp = namespace(z)
    if axis == 0:
        # xp.asarray would keep the strides, which are slow to reduce.
        z = np.ascontiguousarray(z.T) if isinstance(z, np.ndarray) else z.T
    z = z - xp.max(z, axis=axis, keepdims=True)  # ≤ 0, so exp never overflows
    y = xp.astype(y, xp.int64)
    sample = xp.arange(z.shape[1 - axis], device=z.device)
    own = xp.astype(z[y, sample] if axis == 0 else z[sample, y], xp.float64)
    # In this order 0 · (large · large) never becomes NaN; `moments_of` reports an overflow.
    with np.errstate(over="ignore", invalid="ignore"):  # a logit of −∞ has a loss but no moments
        e = xp.exp(z * beta)
        norm = _total(e, axis)
        e *= z
        mean = _total(e, axis) / norm
        e *= z
        return own, norm, mean, _total(e, axis) / norm - mean * mean


def _total(e: Array, axis: int) -> Array:
    """Σ over the classes, as float64."""
    xp = namespace(e)
    # A product with ones loses digits in long rows of torch; in NumPy it is the faster sum.
    fast = axis == 1 and not is_torch(e)
    total = xp.vecdot(e, xp.ones_like(e[:1])) if fast else xp.sum(e, axis=axis)
    return xp.astype(total, xp.float64)


def _compiled_moments(z: np.ndarray, y: np.ndarray, beta: float) -> tuple[np.ndarray, ...]:
    loops, n = kernels.loops(), len(z)
    below, top, out = np.array(z.T, order="C"), np.empty(n, np.int32), np.empty((4, n))
    loops.below_top(below, np.finfo(z.dtype).min, top)
    with np.errstate(over="ignore"):
        e = np.exp(below * beta)
    loops.moments(below, e, y, *out)
    return tuple(out)


def moments_of(sums: np.ndarray) -> Moments:
    """Means from `moment_sums`; OverflowError if squares of the logits left float range."""
    loss, slope, curvature, last = (sums[:4] / sums[4]).tolist()
    if not math.isfinite(curvature):
        raise OverflowError
    return Moments(loss, slope, max(curvature, 0.0), last)


def fit_inverse_temperature(
    logits: Array,
    labels: Array,
    weights: Array | None,
    total: Callable[..., np.ndarray] | None = None,
) -> Optimum:
    """The β ≥ 0 of lowest mean NLL of softmax(βz): logits (N, K), labels (N,), weights (N,) > 0.

    total: `total(beta=…, double=…)` returns `moment_sums` over a larger set that contains these.
    """
    data = few = (logits, labels, weights)
    xp, step = namespace(logits), max(1, logits.shape[0] // _SAMPLE_ROWS)
    sampled = total is not None or step > 3
    if total is None:
        few = tuple(None if a is None else a[::step] for a in data)
    largest = float(xp.max(xp.abs(few[0])))
    if total is None and largest < TINY and float(xp.max(xp.abs(logits))) < TINY:
        return Optimum(1.0, math.log(logits.shape[1]), 0, True, "flat")

    def fit(double: bool) -> Optimum:
        def at(beta: float, rows: tuple[Any, ...] | None = None) -> Moments:
            if rows is None and total is not None:
                return moments_of(total(beta=beta, double=double))
            return moments_of(moment_sums(*(rows or data), beta, double=double))

        start = search(partial(at, rows=few), rough=True) if sampled else None
        # The ends of the range are detected from the origin, not from a sample's optimum.
        return search(at, start.beta if sampled and start.kind == "inner" else 0.0)

    # In float64 where squares of the logits leave the range of float32.
    with contextlib.suppress(OverflowError):
        if largest == 0 or 1e-9 < largest < 1e9:
            return fit(False)
    return fit(True)


def search(at: Callable[[float], Moments], start: float = 0.0, rough: bool = False) -> Optimum:
    """Safeguarded Newton for the lowest loss of `at(β)`, from `start` (0: from the origin)."""
    origin = None
    iterations = 0
    if start == 0:
        origin = at(0.0)
        iterations = 1
        if origin.curvature == 0:
            return Optimum(1.0, origin.loss, 1, True, "flat")
        if origin.slope >= 0:
            return Optimum(0.0, origin.loss, 1, True, "chance")
        start = -origin.slope / origin.curvature
    # Newton squares the error and the cubic through two passes does better: both reach 1e-10.
    newton_enough, cubic_enough = (1e-2, 1e-2) if rough else (1e-5, 1e-3)
    low, high, beta, run, side = 0.0, math.inf, _single(min(start, LARGEST)), 0, 0.0
    before: tuple[float, Moments] | None = None
    while iterations < MAX_ITERATIONS:
        here = at(beta)
        iterations += 1
        if here.slope_at_infinity <= 0:
            return _separable(at, rough)
        low, high = (low, beta) if here.slope > 0 else (beta, high)
        newton = -here.slope / here.curvature if here.curvature > 0 else math.inf
        newton = math.copysign(newton, -here.slope)
        if abs(newton) <= cubic_enough * beta:
            best = beta + newton
            if before is not None and abs(before[0] - beta) <= 0.1 * beta:
                best = _cubic_root(*before, beta, here)
            elif abs(newton) > newton_enough * beta:
                best = math.nan
            if low <= best <= high:
                # The loss by the quadratic model around the last pass is accurate to that order.
                return Optimum(best, here.loss + here.slope * newton / 2, iterations, True)
        before = (beta, here)
        # Far out on an exponential tail Newton takes equal small steps: lengthen repeated ones.
        run, side = (run + 1, newton) if newton * side > 0 else (0, newton)
        following = beta + newton * 2.0 ** max(0, run - 3)
        following = min(max(following, beta / 8), 8 * beta)
        if not low < following < high:
            following = math.sqrt(low * high) if low > 0 else high / 4
        if low == 0 and origin is None and following < beta / 4:
            origin = at(0.0)
            iterations += 1
            if origin.slope >= 0:
                return Optimum(0.0, origin.loss, iterations, True, "chance")
        if min(beta, following) >= _single(LARGEST):
            break
        beta = _single(min(following, LARGEST))
    return Optimum(beta, here.loss, iterations, False)


def _cubic_root(a: float, at_a: Moments, b: float, at_b: Moments) -> float:
    """The β of slope zero, by the cubic for β as a function of the slope through two passes."""
    points = sorted([(at_a.slope, a, 1 / at_a.curvature), (at_b.slope, b, 1 / at_b.curvature)])
    if at_a.slope == at_b.slope:
        return math.nan
    return float(CubicHermiteSpline(*zip(*points))(0.0))


def _single(beta: float) -> float:
    """β rounded to float32, as in products with float32 logits."""
    return float(np.float32(beta))


def _separable(at: Callable[[float], Moments], rough: bool) -> Optimum:
    """Every label has the largest logit, so a lower T is always better: the lowest allowed, ≤ 1."""
    spread = math.sqrt(at(0.0).curvature)
    beta = (1.0 if rough else COLD) / spread if spread > 0 else 1.0
    beta = beta if rough else max(beta, 1.0)
    return Optimum(beta, at(beta).loss, 3, True, "separable")
