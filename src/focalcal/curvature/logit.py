"""The focal loss' curvature in the logits, in closed form: GEO Eq. 28, corrected.

With q = softmax(z), p = q_y and d = q − e_y = ∇(−ln p), the focal loss has ∇ = g(p,γ)·d and

    ∇² = g(p,γ)·(diag q − qqᵀ) + c(p,γ)·ddᵀ,   c = −p·dg/dp = γ(1−p)^(γ−1)·(2p + γ·p·r − r),

where r = −p ln p/(1−p). The factor on the cross-entropy Hessian is g, not (1−p)^γ, and g exceeds 1
for small p: curvature rises where the model is wrong and falls where it is right. The rank-one term
makes it negative for p below about e^(−2−1/γ): no focal loss with γ > 0 is convex in the logits.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from focalcal._checks import check_gamma
from focalcal.errors import InputError


def focal_logit_hessian(logits: Tensor, target: Tensor, gamma: float) -> Tensor:
    """∇²_z of each sample's focal loss, (N, K, K) in float64.

    logits: (N, K); target: (N,) class indices; gamma: γ > −1, 0 is cross-entropy.

    >>> focal_logit_hessian(torch.zeros(1, 2), torch.tensor([0]), gamma=0).tolist()
    [[[0.25, -0.25], [-0.25, 0.25]]]

    Reference: GEO Eq. 28 with the gradient factor of IE Prop. 1.
    """
    gamma = check_gamma(gamma)
    if logits.ndim != 2 or target.shape != logits.shape[:1]:
        raise InputError(
            "expected logits (N, K) and target (N,), "
            f"got {tuple(logits.shape)} and {tuple(target.shape)}"
        )
    log_q = F.log_softmax(logits.double(), 1)
    q = log_q.exp()
    y = F.one_hot(target, logits.shape[1]).bool()
    # 1 − p as the sum of the others: exact when p is within rounding of 1.
    rest = q.masked_fill(y, 0.0).sum(1)
    safe = torch.where(rest > 0, rest, 1.0)
    log_p = log_q[y].clamp_max(-1e-300)  # at 0, r would be 0/0 (its limit is 1)
    p = log_p.exp()
    r = p * log_p / torch.expm1(log_p)
    # Both matrices vanish with 1 − p; it is divided out first so that nothing overflows at p → 1.
    u = torch.where(y, -1.0, q / safe[:, None])
    # Rows of diag q − qqᵀ sum to 0: q(1 − q) as the sum of the others is likewise exact.
    diagonal = torch.eye(logits.shape[1], dtype=torch.bool, device=q.device)
    products = (q[:, :, None] * q[:, None, :]).masked_fill(diagonal, 0.0)
    softmax_hessian = (torch.diag_embed(products.sum(2)) - products) / safe[:, None, None]
    scale = rest ** (gamma + 1)
    rank_one = scale * gamma * (2 * p + gamma * p * r - r)
    return (scale * (1 + gamma * r))[:, None, None] * softmax_hessian + (
        rank_one[:, None, None] * u[:, :, None] * u[:, None, :]
    )


def binary_logit_curvature(p: Tensor, gamma: float) -> Tensor:
    """d²FL/ds² of a binary problem with p = σ(s): g·p(1−p) + γ(1−p)^(γ+1)·(2p + γpr − r).

    p: probabilities of the true class in (0, 1), any shape; gamma: γ > −1.

    >>> p = torch.tensor([0.27], dtype=torch.float64)
    >>> [round(binary_logit_curvature(p, gamma).item(), 3) for gamma in (0, 3)]
    [0.197, 0.57]

    Reference: GEO Eq. 28, corrected.
    """
    p = torch.as_tensor(p, dtype=torch.float64)
    if not bool(((p > 0) & (p < 1)).all()):
        raise InputError("expected probabilities strictly between 0 and 1")
    s = torch.logit(p).reshape(-1)
    logits = torch.stack([s, torch.zeros_like(s)], 1)
    hessians = focal_logit_hessian(logits, torch.zeros_like(s, dtype=torch.int64), gamma)
    return hessians[:, 0, 0].reshape(p.shape)
