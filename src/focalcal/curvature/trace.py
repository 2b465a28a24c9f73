"""The trace of a matrix that is known only by its products, with its standard error."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal

import torch
from scipy import stats
from torch import Tensor

from focalcal._checks import check_level
from focalcal.curvature._products import (
    Operator,
    default_generator,
    device_of,
    in_chunks,
    multiply,
    random_signs,
    size_of,
)
from focalcal.errors import InputError

MIN_PROBES = 20
"""Samples before the standard error is first checked; with fewer it is too unreliable."""

GROWTH = 1.5
"""Samples grow by this factor between checks; each check is another chance to stop too early."""

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
    n = size_of(operator)
    _check_stopping(rtol, max_probes)
    generator = generator or default_generator(operator)
    exact, basis, spent = 0.0, None, 0
    if method == "hutch++":
        columns = min(SKETCH, max_probes // 3, n)
        basis, _ = torch.linalg.qr(multiply(operator, random_signs(operator, columns, generator)))
        exact = float((basis * multiply(operator, basis)).sum())
        spent = 2 * columns
    elif method != "hutchinson":
        raise InputError(f"expected method 'hutchinson' or 'hutch++', got {method!r}")

    whole = [slice(None)]
    for samples, [(mean, error)] in _rounds(operator, whole, max_probes - spent, generator, basis):
        value = exact + mean
        converged = samples >= MIN_PROBES and error <= rtol * abs(value)
        estimate = TraceEstimate(value, error, spent + samples, samples, converged)
        if progress is not None:
            # The error falls with the square root of the number of probes.
            reached = (rtol * value / error) ** 2 if error else 1.0
            progress(min(1.0, max(reached, estimate.probes / max_probes)))
        if converged:
            break
    return estimate


def _rounds(
    operator: Operator,
    blocks: Iterable[slice],
    most: int,
    generator: torch.Generator,
    basis: Tensor | None = None,
) -> Iterator[tuple[int, list[tuple[float, float]]]]:
    """At each check the number of samples, and every block's trace with its standard error.

    A sample is d = v∘PAPv of a sign vector v, an unbiased estimate of the diagonal of PAP, where P
    projects onto the complement of `basis`. Var(vᵀAv) = 2·Σ_{i≠j} a_ij² = 2·Σ_i Var(d_i); for a
    block it is at most that. The sum of the sample variances of d_i is far more stable than the
    sample variance of vᵀAv, whose distribution is skewed by large eigenvalues: a rule that stops on
    the latter stops on runs that happen to be low.
    """

    def project(vectors: Tensor) -> Tensor:
        return vectors if basis is None else vectors - basis @ (basis.T @ vectors)

    total, squares = torch.zeros(2, size_of(operator), dtype=torch.float64).to(device_of(operator))
    samples = 0
    for target in _checkpoints(most):
        for size in in_chunks(operator, target - samples):
            probes = random_signs(operator, size, generator)
            diagonals = probes * project(multiply(operator, project(probes)))
            total += diagonals.sum(1)
            squares += diagonals.square().sum(1)
        samples = target
        spread = (squares - total.square() / samples).clamp_min(0)
        # One sample says nothing about its error.
        variance = 2 * spread / samples / (samples - 1) if samples > 1 else spread + math.inf
        sums = [(float(total[s].sum()), float(variance[s].sum())) for s in blocks]
        yield samples, [(value / samples, math.sqrt(square)) for value, square in sums]


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
    size_of(operator)
    _check_stopping(rtol, max_probes)
    blocks = blocks_of(operator, blocks)
    generator = generator or default_generator(operator)
    for samples, found in _rounds(operator, blocks.values(), max_probes, generator):
        most = rtol * sum(abs(value) for value, _ in found) if samples >= MIN_PROBES else -1.0
        estimates = {
            block: TraceEstimate(value, error, samples, samples, error <= most)
            for block, (value, error) in zip(blocks, found)
        }
        if all(e.converged for e in estimates.values()):
            break
    return estimates


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
            raise InputError(f"expected the parameters of {layer!r} side by side; group by hand")
        grouped[layer] = slice(s.start if before is None else before.start, s.stop)
    return grouped


def blocks_of(operator: Operator, blocks: Mapping[str, slice] | None) -> Mapping[str, slice]:
    """The given blocks, or the operator's own."""
    blocks = getattr(operator, "blocks", None) if blocks is None else blocks
    if not blocks:
        raise InputError("expected blocks (name → slice), got none; pass `blocks`")
    return blocks


def _check_stopping(rtol: float, max_probes: int) -> None:
    if not rtol > 0:
        raise InputError(f"expected rtol > 0, got {rtol}")
    if max_probes < 3:
        raise InputError(f"expected max_probes >= 3, got {max_probes}")


def _checkpoints(most: int) -> list[int]:
    """Sample counts at which the standard error is checked: 20, 30, 45, … and `most`."""
    counts, count = [], MIN_PROBES
    while count < most:
        counts.append(count)
        count = math.ceil(count * GROWTH)
    return [*counts, most]
