"""The inverse of Ψ^γ: what focal loss makes a classifier predict, and the loss made proper."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from focalcal._arrays import Array, is_torch, log_softmax, logsumexp, namespace
from focalcal._checks import check_gamma
from focalcal.errors import InputError
from focalcal.maps._numerics import (
    as_classes,
    by_rows,
    log_deficit,
    not_above,
    safe_log,
    through_logs,
)
from focalcal.maps.focal import FAR
from focalcal.maps.temperature import quick_temperature

MAX_STEPS = 100
"""Newton needs 5 to 15 steps; the cap only ends rows that hold NaN."""


def inverse_focal_map(p: Any, gamma: float) -> Array:
    """The q with Ψ^γ(q) = p; for γ ≥ 0 the minimiser of the focal risk Σ_k p_k·FL(q_k).

    Solves h(q_i) = c·p_i, h(q) = q/g(q,γ), for one c per row such that Σ q_i = 1. For γ < 0 h is
    not monotone: all classes but the largest take its increasing branch, and the largest is what
    they leave (no risk minimiser then: the loss is not convex).

    p: probabilities (..., K), K ≥ 2, zeros and ones allowed; gamma: γ > −1.

    Returns q (..., K), differentiable by the implicit function theorem.

    >>> inverse_focal_map([0.9, 0.1], gamma=1.0).round(4)
    array([0.7744, 0.2256])

    Charoenphakdee et al., CVPR 2021, Theorem 11; Mukhoti et al., 2020, Fig. 7.
    """
    gamma = check_gamma(gamma)
    return by_rows(lambda rows: through_logs(_inverse_log_rows, rows, gamma), as_classes(p, "p"))


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

    Minimised in expectation at the true class probabilities, which focal loss is not.

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
    log_q = by_rows(lambda rows: _inverse_log_rows(safe_log(rows), gamma), xp.astype(p, xp.float64))
    is_label = xp.arange(p.shape[-1], device=p.device) == labels[..., None]
    of_label = xp.sum(xp.where(is_label, log_q, 0.0), axis=-1)
    of_others = logsumexp(xp.where(is_label, FAR, log_q))
    # −ln q/(1−q) is 1 where 1 − q underflows; (1−q)^(1+γ) cannot overflow there, (1−q)^γ can.
    sure = of_others < -600
    ratio = xp.where(sure, 1.0, -of_label / xp.exp(xp.where(sure, 0.0, of_others)))
    return xp.astype(xp.exp((1 + gamma) * of_others) * ratio, p.dtype)


def _inverse_log_rows(z: Array, gamma: float) -> Array:
    if gamma == 0:
        return log_softmax(z)
    if is_torch(z):
        return _implicit_function().apply(z, gamma)
    return _solve(z, gamma)


def _solve(z: Array, gamma: float) -> Array:
    """Newton on log q of every class but the largest and on log c, jointly.

    In these variables the equations are linear wherever a row is saturated, and their Jacobian is
    an arrow: one pass over the classes per step.
    """
    xp = namespace(z)
    if 0 in z.shape:
        return xp.zeros_like(z)
    n_classes = z.shape[-1]
    is_top = xp.arange(n_classes, device=z.device) == xp.argmax(z, axis=-1, keepdims=True)
    floor = FAR * xp.ones_like(z)
    log_ratio = xp.where(is_top, floor, xp.maximum(z - xp.max(z, axis=-1, keepdims=True), floor))
    log_odds = logsumexp(log_ratio, keepdims=True)
    log_half, log_most = math.log(0.5), math.log1p(-1 / n_classes)

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
        row = _Linearisation(u, log_w, is_top, gamma)
        log_c = row.log_h_top if log_c is None else log_c
        residual = xp.where(is_top, 0.0, log_c + log_ratio - row.log_h)
        along = xp.sum(row.share * residual / row.slope, axis=-1, keepdims=True)
        step_c = (row.slope_top * along - (log_c - row.log_h_top)) / row.pivot
        step = _bounded((residual + step_c) / row.slope, u, gamma)
        u, log_c = u + step, log_c + step_c
        size = xp.max(xp.abs(xp.where(is_top, 0.0, step)) / (1 + xp.abs(u)))
        if not bool(size > tolerance):
            break
    top = xp.log1p(-xp.sum(xp.where(is_top, 0.0, xp.exp(u)), axis=-1, keepdims=True))
    return xp.where(is_top, top, not_above(u, top, log_ratio == 0))


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


class _Linearisation:
    """log h and its slopes at log q = u for every class but the top one, whose 1 − q is e^log_w."""

    def __init__(self, u: Array, log_w: Array, is_top: Array, gamma: float) -> None:
        xp = namespace(u)
        q = xp.where(is_top, 0.0, xp.exp(u))
        factor = 1 - gamma * q * u / (1 - q)
        self.log_h = u - gamma * xp.log1p(-q) - xp.log(factor)
        self.slope = _slope(q, 1 - q, factor, gamma) / (1 - q)
        self.share = xp.where(is_top, 0.0, xp.exp(u - log_w))

        w = xp.exp(log_w)
        deficit = log_deficit(w / (1 - w))
        factor_top = (1 + gamma) - gamma * deficit
        self.log_h_top = xp.log1p(-w) - gamma * log_w - xp.log(factor_top)
        self.slope_top = -_slope(1 - w, w, factor_top, gamma) / (1 - w)  # d log h_top / d log w
        self.pivot = 1 - self.slope_top * xp.sum(self.share / self.slope, axis=-1, keepdims=True)
        self.odds_top = q / (1 - w)


def _slope(q: Array, w: Array, factor: Array, gamma: float) -> Array:
    """(1−q)·d log h/d log q = [w + γq(2 + (γ−1)r)]/(1 + γr), w = 1 − q, factor = 1 + γr."""
    return (w + gamma * q * 2 + (gamma - 1) * q * (factor - 1)) / factor


@cache
def _implicit_function() -> Any:
    """The autograd function of the solver; its backward is differentiable in turn."""
    import torch

    class InverseFocalLogMap(torch.autograd.Function):
        @staticmethod
        def forward(z: Array, gamma: float) -> Array:
            return _solve(z, gamma)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Array, float], output: Array) -> None:
            ctx.save_for_backward(output)
            ctx.gamma = inputs[1]

        @staticmethod
        def vmap(info: Any, in_dims: tuple[int, None], z: Array, gamma: float) -> tuple[Array, int]:
            # The solver takes any leading axes, but its stop rule looks at values.
            return InverseFocalLogMap.apply(z.movedim(in_dims[0], 0), gamma), 0

        @staticmethod
        def backward(ctx: Any, grad: Array) -> tuple[Array, None]:
            (log_q,) = ctx.saved_tensors
            is_top = torch.arange(log_q.shape[-1], device=log_q.device) == log_q.detach().argmax(
                -1, keepdim=True
            )
            u = torch.where(is_top, FAR, log_q)
            row = _Linearisation(u, torch.logsumexp(u, -1, keepdim=True), is_top, ctx.gamma)
            grad_top = (grad * is_top).sum(-1, keepdim=True)
            back = torch.where(is_top, 0.0, (grad - row.odds_top * grad_top) / row.slope)
            total = back.sum(-1, keepdim=True) / row.pivot
            through_c = total * row.slope_top * row.share / row.slope
            return torch.where(is_top, -total, back + through_c), None

    return InverseFocalLogMap
