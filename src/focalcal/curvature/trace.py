"""The trace of a matrix that is known only by its products, with its standard error."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import torch
from scipy import stats
from torch import Tensor

from focalcal._checks import check_level, check_whole
from focalcal.curvature._products import Matrix, Operator
from focalcal.errors import InputError

MIN_PROBES = 20
"""Samples before the standard error is first checked; with fewer it is too unreliable."""

GROWTH = 1.5
"""Samples grow by this factor between checks; each check is another chance to stop too early."""

BLOCK_NUMBERS = 2**26
"""Numbers in a block of probes that share one product: half a gigabyte in float64."""

SKETCH = 12
"""Columns of Hutch++'s low-rank sketch; each costs two products."""


@dataclasses.dataclass(frozen=True)
class TraceEstimate:
    """A trace with its standard error; `probes` products were spent on `samples` estimates."""

    value: float
    standard_error: float
    probes: int
    samples: int
    converged: bool

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """value ± t · standard error; t is Student's quantile with `samples` − 1 degrees."""
        check_level(level)
        if self.samples < 2:
            return -math.inf, math.inf
        half = float(stats.t.ppf(0.5 + level / 2, self.samples - 1)) * self.standard_error
        return self.value - half, self.value + half


def hessian_trace(
    operator: Operator,
    method: Literal["hutchinson", "hutch++"] = "hutchinson",
    *,
    rtol: float = 0.02,
    max_probes: int = 1000,
    generator: torch.Generator | None = None,
    progress: Callable[[float], None] | None = None,
) -> TraceEstimate:
    """The trace of a symmetric operator, from as many probes as its standard error requires.

    Hutchinson: mean of vᵀAv over sign vectors v. Hutch++: the exact trace on the range Q of a
    random sketch plus Hutchinson on (I − QQᵀ)A(I − QQᵀ); much better when few eigenvalues are
    large, as they are in trained networks. Both are unbiased. The standard error is checked after
    20 samples and then each time their number has grown by half; it comes from the variances of
    the estimated diagonal entries, so that intervals cover in spite of the stopping rule.

    Args:
        operator: anything with `shape` (n, n) and `@` for (n, k) tensors.
        method: "hutchinson" or "hutch++".
        rtol: stop when standard_error ≤ rtol · |value|.
        max_probes: at most this many products; then `converged` is False.
        generator: source of the probes; seeded with 0 on the operator's device if None.
        progress: called with the fraction done.

    >>> estimate = hessian_trace(torch.diag(torch.tensor([1.0, 2.0, 3.0])))
    >>> estimate.value, estimate.converged  # sign vectors are exact for diagonal matrices
    (6.0, True)

    Reference: Hutchinson 1990; Meyer et al. 2021, Algorithm 1; GEO §4.
    """
    if method not in ("hutchinson", "hutch++"):
        raise InputError(f"expected method 'hutchinson' or 'hutch++', got {method!r}")
    columns = SKETCH if method == "hutch++" else 0
    whole = [slice(None)]
    return _estimate(operator, whole, rtol, max_probes, generator, columns, progress)[0]


def block_traces(
    operator: Operator,
    blocks: Mapping[str, slice] | None = None,
    *,
    rtol: float = 0.02,
    max_probes: int = 1000,
    generator: torch.Generator | None = None,
) -> dict[str, TraceEstimate]:
    """The trace of every diagonal block from the same probes: v_b · (Av)_b for block b.

    Stops when the standard error of every block is below rtol · Σ_b |trace of b|, so that small
    blocks do not decide how many probes are spent. The standard errors are upper bounds.

    blocks: name → slice of the vector, by default the operator's own `blocks`, one per parameter
    (see `group_blocks` for one per layer); operator, rtol, max_probes, generator: as in
    `hessian_trace`.

    >>> a = torch.diag(torch.tensor([1.0, 2.0, 3.0]))
    >>> traces = block_traces(a, {"first": slice(0, 2), "second": slice(2, 3)})
    >>> {name: t.value for name, t in traces.items()}
    {'first': 3.0, 'second': 3.0}
    """
    blocks = blocks_of(operator, blocks)
    return dict(zip(blocks, _estimate(operator, blocks.values(), rtol, max_probes, generator)))


def group_blocks(blocks: Mapping[str, slice], depth: int | None = None) -> dict[str, slice]:
    """One block per module: those that own the parameters, or those `depth` names deep.

    >>> group_blocks({"a.weight": slice(0, 4), "a.bias": slice(4, 6), "b.weight": slice(6, 8)})
    {'a': slice(0, 6, None), 'b': slice(6, 8, None)}
    """
    grouped: dict[str, slice] = {}
    for name, s in blocks.items():
        *path, leaf = name.split(".")
        layer = ".".join(path[:depth]) or leaf
        before = grouped.get(layer)
        if before is not None and before.stop != s.start:
            raise InputError(
                f"expected adjacent parameters in {layer!r}, got others between them; "
                "pass your own slices"
            )
        grouped[layer] = slice(s.start if before is None else before.start, s.stop)
    return grouped


def blocks_of(operator: Operator, blocks: Mapping[str, slice] | None) -> Mapping[str, slice]:
    """The given blocks, or the operator's own."""
    blocks = getattr(operator, "blocks", None) if blocks is None else blocks
    if not blocks:
        raise InputError("expected blocks (name → slice), got none; pass `blocks`")
    return blocks


def _estimate(
    operator: Operator,
    blocks: Iterable[slice],
    rtol: float,
    max_probes: int,
    generator: torch.Generator | None,
    columns: int = 0,
    progress: Callable[[float], None] | None = None,
) -> list[TraceEstimate]:
    """The trace of every block; `columns` > 0 uses Hutch++ with a sketch Q of that many columns.

    A sample is d = v∘PAPv of a sign vector v, an unbiased estimate of the diagonal of PAP, where
    P = I − QQᵀ. Var(vᵀAv) = 2·Σ_{i≠j} a_ij² = 2·Σ_i Var(d_i); for a block it is at most that. The
    sum of the sample variances of d_i is far more stable than the sample variance of vᵀAv, whose
    distribution is skewed by large eigenvalues: a stopping rule on the latter would favour runs
    where it happens to be low.
    """
    if not rtol > 0:
        raise InputError(f"expected rtol > 0, got {rtol}")
    max_probes = check_whole(max_probes, "max_probes", 3)
    a = Matrix(operator, generator)
    columns = min(columns, max_probes // 3, a.n)
    exact = 0.0
    if columns:
        basis, _ = torch.linalg.qr(a @ a.signs(columns))
        exact = float((basis * (a @ basis)).sum())

    def project(vectors: Tensor) -> Tensor:
        return vectors - basis @ (basis.T @ vectors) if columns else vectors

    total, squares = torch.zeros(2, a.n, dtype=torch.float64, device=a.device)
    samples, most = 0, max_probes - 2 * columns
    block = max(1, BLOCK_NUMBERS // a.n)
    while samples < most:
        target = min(most, max(MIN_PROBES, math.ceil(samples * GROWTH)))
        for start in range(samples, target, block):
            probes = a.signs(min(block, target - start))
            diagonals = probes * project(a @ project(probes))
            total += diagonals.sum(1)
            squares += diagonals.square().sum(1)
        samples = target
        spread = (squares - total.square() / samples).clamp_min(0)
        # One sample has no estimate of its error.
        variance = 2 * spread / samples / (samples - 1) if samples > 1 else spread + math.inf
        values = [exact + float(total[s].sum()) / samples for s in blocks]
        errors = [math.sqrt(float(variance[s].sum())) for s in blocks]
        goal = rtol * sum(abs(value) for value in values)
        spent = samples + 2 * columns
        estimates = [
            TraceEstimate(value, error, spent, samples, samples >= MIN_PROBES and error <= goal)
            for value, error in zip(values, errors)
        ]
        if progress is not None:
            # The error falls with the square root of the number of probes.
            reached = (goal / max(errors)) ** 2 if any(errors) else 1.0
            progress(min(1.0, max(reached, spent / max_probes)))
        if all(estimate.converged for estimate in estimates):
            break
    return estimates
