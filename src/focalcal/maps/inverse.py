"""The inverse of Ψ^γ: the predictions that minimise focal loss, and the properised loss."""

from __future__ import annotations

import math
from typing import Any

from focalcal._arrays import (
    Array,
    detach,
    is_torch,
    log_softmax,
    logsumexp,
    namespace,
    take_along_axis,
)
from focalcal._checks import check_gamma
from focalcal.errors import InputError
from focalcal.maps._numerics import (
    TINY,
    as_classes,
    by_rows,
    log_deficit,
    not_above,
    safe_log,
    through_logs,
)
from focalcal.maps.focal import FAR
from focalcal.maps.temperature import quick_temperature

MAX_STEPS = 40
"""Newton needs 5 to 15 steps."""


def inverse_focal_map(p: Any, gamma: float) -> Array:
    """The q with Ψ^γ(q) = p; for γ ≥ 0 the minimiser of the focal risk Σ_k p_k·FL(q_k).

    Solves h(q_i) = c·p_i, h(q) = q/g(q,γ), for one c per row such that Σ q_i = 1. For γ < 0 h is
    not monotone: all classes but the largest take its increasing branch, and the largest is one
    minus their sum (which minimises no risk: the loss is not convex).

    p: probabilities (..., K), K ≥ 2, zeros and ones allowed; gamma: γ > −1.

    Returns q (..., K), differentiable by the implicit function theorem.

    >>> inverse_focal_map([0.9, 0.1], gamma=1.0).round(4)
    array([0.7744, 0.2256])

    Charoenphakdee et al., CVPR 2021, Theorem 11; Mukhoti et al., 2020, Fig. 7.
    """
    gamma = check_gamma(gamma)

    def log_map(z: Array, gamma: float) -> Array:
        if gamma > 500:  # the replacement of a zero is not small beside classes that share the mass
            z = namespace(z).where(z <= math.log(TINY), FAR, z)
        return _inverse_log_rows(z, gamma)

    return by_rows(lambda rows: through_logs(log_map, rows, gamma), as_classes(p, "p"))


def inverse_focal_log_map(logits: Any, gamma: float) -> Array:
    """log q with Ψ^γ(q) = softmax(z): `inverse_focal_map` from logits to log-probabilities.

    logits: (..., K), K ≥ 2, with −inf for impossible classes; gamma: γ > −1.

    >>> import numpy as np
    >>> np.exp(inverse_focal_log_map(np.log([0.9, 0.1]), gamma=1.0)).round(4)
    array([0.7744, 0.2256])
    """
    gamma = check_gamma(gamma)
    return by_rows(lambda rows: _inverse_log_rows(rows, gamma), as_classes(logits, "logits"))


def properized_focal_loss(p: Any, y: Any, gamma: float) -> Array:
    """The focal loss made proper, L*(p) = FL(q_y) with Ψ^γ(q) = p, one value per sample.

    Minimised in expectation at the true class probabilities, which focal loss is not. Infinite
    where p_y = 0.

    p: probabilities (..., K), K ≥ 2; y: integer labels (...); gamma: γ > −1.

    >>> properized_focal_loss([[0.9, 0.1]], [0], gamma=1.0).round(4)
    array([0.0577])

    Komisarenko and Kull, ECAI 2024, Props. 2 and 4.
    """
    gamma = check_gamma(gamma)
    p = as_classes(p, "p")
    xp = namespace(p)
    labels = xp.asarray(y, device=p.device)
    if tuple(labels.shape) != tuple(p.shape[:-1]) or not xp.isdtype(labels.dtype, "integral"):
        raise InputError(
            f"expected integer labels of shape {tuple(p.shape[:-1])}, "
            f"got {labels.dtype} of shape {tuple(labels.shape)}"
        )
    labels = xp.astype(labels, xp.int64)
    if not bool(xp.all((labels >= 0) & (labels < p.shape[-1]))):
        raise InputError(f"expected labels in 0..{p.shape[-1] - 1}, got {y}")
    log_q = by_rows(lambda rows: _inverse_log_rows(safe_log(rows), gamma), xp.astype(p, xp.float64))
    is_label = xp.arange(p.shape[-1], device=p.device) == labels[..., None]
    of_label = xp.sum(xp.where(is_label, log_q, 0.0), axis=-1)
    of_others = logsumexp(xp.where(is_label, FAR, log_q))
    # −ln q/(1−q) is 1 where 1 − q underflows; (1−q)^(1+γ) cannot overflow there, (1−q)^γ can.
    certain = of_others < -600
    ratio = xp.where(certain, 1.0, -of_label / xp.exp(xp.where(certain, 0.0, of_others)))
    loss = xp.exp((1 + gamma) * of_others) * ratio
    impossible = xp.any(is_label & (p == 0), axis=-1)
    return xp.astype(xp.where(impossible, xp.inf, loss), p.dtype)


def _inverse_log_rows(z: Array, gamma: float) -> Array:
    if gamma == 0 or 0 in z.shape:
        return log_softmax(z)
    xp = namespace(z)
    top = xp.argmax(z, axis=-1, keepdims=True)
    is_top = xp.arange(z.shape[-1], device=z.device) == top
    below = xp.maximum(z - take_along_axis(z, top), FAR * xp.ones_like(z))
    log_ratio = xp.where(is_top, FAR, below)
    u, log_c = _solve(detach(log_ratio), is_top, gamma)
    if is_torch(z):  # a step at the root gives first derivatives, two give higher ones
        for _ in range(2):
            log_w = logsumexp(u, keepdims=True)
            step, log_c = _newton_step(u, log_w, log_c, log_ratio, is_top, gamma)
            u = u + step
    log_top = xp.log1p(-xp.sum(xp.where(is_top, 0.0, xp.exp(u)), axis=-1, keepdims=True))
    out = xp.where(is_top, log_top, not_above(u, log_top, log_ratio == 0))
    return xp.where(z == -xp.inf, -xp.inf, out)


def _solve(log_ratio: Array, is_top: Array, gamma: float) -> tuple[Array, Array]:
    """Newton on u = log q of every class but the largest and on log c, jointly.

    In these variables the equations are linear wherever a row is saturated, and their Jacobian is
    an arrow: one pass over the classes per step.
    """
    xp = namespace(log_ratio)
    floor = FAR * xp.ones_like(log_ratio)
    log_half, log_most = math.log(0.5), math.log1p(-1 / log_ratio.shape[-1])
    log_odds = logsumexp(log_ratio, keepdims=True)
    start = log_odds * quick_temperature(gamma)
    u = log_ratio - log_odds + start - xp.log1p(xp.exp(start))
    log_c = None
    # Rounding is amplified by γ in log h, and by 1/(1+γ) in its inverse.
    tolerance = 1e-13 * max(1.0, min(0.1 * gamma, 1e3), 0.1 / (1 + gamma))
    for _ in range(MAX_STEPS):
        u = xp.where(is_top, floor, xp.minimum(u, log_half * xp.ones_like(u)))
        log_w = logsumexp(u, keepdims=True)
        excess = xp.maximum(log_w - log_most, xp.zeros_like(log_w))
        u, log_w = u - excess, log_w - excess
        step, log_c = _newton_step(u, log_w, log_c, log_ratio, is_top, gamma)
        step = _bounded(step, u, gamma)
        size = xp.max(xp.abs(xp.where(is_top, 0.0, step)) / (1 + xp.abs(u)))
        u = u + step
        try:
            if not bool(size > tolerance):
                break
        except RuntimeError:  # under vmap no value can be read: take all steps
            continue
    return u, log_c


def _newton_step(
    u: Array, log_w: Array, log_c: Array | None, log_ratio: Array, is_top: Array, gamma: float
) -> tuple[Array, Array]:
    """The step of u and the next log c from log q = u, where 1 − q of the largest is e^log_w."""
    xp = namespace(u)
    q = xp.where(is_top, 0.0, xp.exp(u))
    factor = 1 - gamma * q * u / (1 - q)
    log_h = u - gamma * xp.log1p(-q) - xp.log(factor)
    slope = _slope(q, 1 - q, factor, gamma) / (1 - q)
    share = xp.where(is_top, 0.0, xp.exp(u - log_w))

    w = xp.exp(log_w)
    deficit = log_deficit(w / (1 - w))
    factor_top = (1 + gamma) - gamma * deficit
    log_h_top = xp.log1p(-w) - gamma * log_w - xp.log(factor_top)
    slope_top = -_slope(1 - w, w, factor_top, gamma) / (1 - w)  # d log h_top / d log w

    log_c = log_h_top if log_c is None else log_c
    residual = xp.where(is_top, 0.0, log_c + log_ratio - log_h)
    along = xp.sum(share * residual / slope, axis=-1, keepdims=True)
    pivot = 1 - slope_top * xp.sum(share / slope, axis=-1, keepdims=True)
    step_c = (slope_top * along - (log_c - log_h_top)) / pivot
    return (residual + step_c) / slope, log_c + step_c


def _bounded(step: Array, u: Array, gamma: float) -> Array:
    """Newton steps shortened so that they do not overshoot.

    log h is close to u + γ·e^u, nearly linear at first and exponential above; x bounds the γ·e^u
    that the target allows.
    """
    if gamma <= 1:
        return step
    xp = namespace(u)
    part = gamma * xp.exp(u)
    x = math.log(gamma) + u + part + step * (1 + part)
    most = xp.log(xp.maximum(x, xp.ones_like(x))) - math.log(gamma) - u
    return xp.minimum(step, xp.maximum(most, xp.ones_like(most)))


def _slope(q: Array, w: Array, factor: Array, gamma: float) -> Array:
    """(1−q)·d log h/d log q = [w + γq(2 + (γ−1)r)]/(1 + γr), w = 1 − q, factor = 1 + γr."""
    return (w + gamma * q * 2 + (gamma - 1) * q * (factor - 1)) / factor
