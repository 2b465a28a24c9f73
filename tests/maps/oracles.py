"""Arbitrary-precision oracles for the maps.

They are independent of the library: the papers' formulas in plain order with mpmath numbers, whose
exponents are unbounded and whose digits are many more than any cancellation can take. No runner-up
class, no series, no compensated sums.
"""

from __future__ import annotations

import mpmath


def exact_gradient_factor(q, gamma, one_minus_q=None, log_q=None):
    """g as Mukhoti et al. print it: (1−q)^γ − γ·q·(1−q)^(γ−1)·ln q."""
    gamma = mpmath.mpf(gamma)  # γ − 1 must not round
    w = 1 - q if one_minus_q is None else one_minus_q
    log_q = mpmath.log(q) if log_q is None else log_q
    return w**gamma - gamma * q * w ** (gamma - 1) * log_q


def exact_log_map(logits, gamma: float, digits: int = 50) -> list:
    """log Ψ^γ(softmax(z)) of one row as mpmath numbers."""
    with mpmath.workdps(digits):
        z = [mpmath.mpf(float(v)) for v in logits]
        e = [mpmath.exp(v - max(z)) for v in z]
        top = e.index(max(e))
        beside_top = mpmath.fsum(v for i, v in enumerate(e) if i != top)
        total = e[top] + beside_top
        log_h = []
        for i, v in enumerate(e):
            beside = beside_top if i == top else total - v
            q, log_q = v / total, -mpmath.log1p(beside / v)
            g = exact_gradient_factor(q, gamma, beside / total, log_q)
            log_h.append(log_q - mpmath.log(g))
        others = mpmath.fsum(mpmath.exp(v - log_h[top]) for i, v in enumerate(log_h) if i != top)
        log_norm = mpmath.log1p(others)
        return [-log_norm if i == top else v - log_h[top] - log_norm for i, v in enumerate(log_h)]
