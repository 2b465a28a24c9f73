"""The trace of a matrix that is known only by its products, with an honest standard error."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Literal

import torch
from scipy import stats
from torch import Tensor

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
"""Samples before the first look at the standard error: fewer, and stopping on it is over-bold."""

GROWTH = 1.5
"""Samples grow by this factor between looks: each look is one more chance to stop too early."""

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
        """value ± t · standard error, t being Student's quantile with `samples` − 1 degrees."""
        if not 0 < level < 1:
            raise InputError(f"expected a level between 0 and 1, got {level}")
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
    """The trace of a symmetric operator, stopped when its own standard error is small enough.

    Hutchinson: mean of vᵀAv over sign vectors v. Hutch++: the exact trace on the range Q of a
    random sketch plus Hutchinson on (I − QQᵀ)A(I − QQᵀ); much better when few eigenvalues are
    large, as they are in trained networks. Both are unbiased. The estimate is looked at after 20
    samples and then at every half as many more, and the standard error comes from the variances of
    the diagonal's estimates, which keeps the stated interval honest although the stopping time
    depends on it.

    Args:
        operator: anything with `shape` (n, n) and `@` for (n, k) tensors.
        method: "hutchinson" or "hutch++".
        rtol: stop when standard_error ≤ rtol · |value|.
        max_probes: at most this many products; then `converged` is False.
        generator: source of the probes; seeded with 0 on the operator's device if None.
        progress: called with the fraction done.

    Returns:
        A TraceEstimate; its `interval()` is the 95 % interval.

    Example:
        >>> import torch
        >>> from focalcal.curvature import hessian_trace
        >>> estimate = hessian_trace(torch.diag(torch.tensor([1.0, 2.0, 3.0])))
        >>> estimate.value, estimate.converged  # exact: sign vectors see a diagonal without noise
        (6.0, True)

    Reference: Hutchinson 1990; Meyer et al. 2021, Algorithm 1; GEO §4.
    """
    n = size_of(operator)
    check_stopping(rtol, max_probes)
    generator = generator or default_generator(operator)
    exact, basis, spent = 0.0, None, 0
    if method == "hutch++":
        columns = min(SKETCH, max_probes // 3, n)
        basis, _ = torch.linalg.qr(multiply(operator, random_signs(operator, columns, generator)))
        exact = float((basis * multiply(operator, basis)).sum())
        spent = 2 * columns
    elif method != "hutchinson":
        raise InputError(f"expected method 'hutchinson' or 'hutch++', got {method!r}")

    total = torch.zeros(n, dtype=torch.float64, device=device_of(operator))
    squares, samples = 0.0, 0
    for target in looks(max_probes - spent):
        for count in in_chunks(operator, target - samples):
            probes = random_signs(operator, count, generator)
            images = _deflated(multiply(operator, _deflated(probes, basis)), basis)
            diagonals = probes * images
            total += diagonals.sum(1)
            squares += float(diagonals.square().sum())
            samples += count
        value = exact + float(total.sum()) / samples
        error = _standard_error(total, squares, samples)
        converged = samples >= MIN_PROBES and error <= rtol * abs(value)
        estimate = TraceEstimate(value, error, spent + samples, samples, converged)
        if progress is not None:
            # The error falls with the root of the number of probes.
            reached = (rtol * value / error) ** 2 if error else 1.0
            progress(min(1.0, max(reached, estimate.probes / max_probes)))
        if converged:
            break
    return estimate


def _deflated(vectors: Tensor, basis: Tensor | None) -> Tensor:
    return vectors if basis is None else vectors - basis @ (basis.T @ vectors)


def _standard_error(total: Tensor, squares: float, samples: int) -> float:
    """From the sums of d = v∘Av and of ‖d‖² over probes v.

    Var(vᵀAv) = 2·Σ_{i≠j} a_ij² = 2·Σ_i Var(d_i), and the d_i's sample variances together are far
    steadier than the variance of the few values vᵀAv: with large single eigenvalues those are
    skewed, and stopping on their spread stops on the runs that happen to be low.
    """
    if samples < 2:
        return math.inf
    spread = squares - float(total.square().sum()) / samples
    return math.sqrt(2 * max(spread, 0.0) / (samples - 1) / samples)


def block_traces(
    operator: Operator,
    blocks: Mapping[str, slice] | None = None,
    *,
    rtol: float = 0.02,
    max_probes: int = 1000,
    generator: torch.Generator | None = None,
) -> dict[str, TraceEstimate]:
    """The trace of every diagonal block from the same probes: v_b · (Av)_b for block b.

    Stops when every block's standard error is below rtol · Σ_b |trace of b|, so that the largest
    blocks are known to `rtol` and no probe is wasted on blocks that hardly matter.

    Args:
        operator: anything with `shape` and `@`.
        blocks: name → slice of the vector; the operator's own `blocks` (one per parameter) if
            None. See `group_blocks` for one block per layer.

    Returns:
        name → TraceEstimate.

    Example:
        >>> import torch
        >>> from focalcal.curvature import block_traces
        >>> a = torch.diag(torch.tensor([1.0, 2.0, 3.0]))
        >>> traces = block_traces(a, {"first": slice(0, 2), "second": slice(2, 3)})
        >>> {name: t.value for name, t in traces.items()}
        {'first': 3.0, 'second': 3.0}
    """
    size_of(operator)
    check_stopping(rtol, max_probes)
    blocks = blocks_of(operator, blocks)
    generator = generator or default_generator(operator)
    values = torch.empty(len(blocks), 0, dtype=torch.float64)
    for target in looks(max_probes):
        for count in in_chunks(operator, target - values.shape[1]):
            probes = random_signs(operator, count, generator)
            pointwise = probes * multiply(operator, probes)
            new = torch.stack([pointwise[s].sum(0) for s in blocks.values()])
            values = torch.cat([values, new.cpu()], 1)
        scale = float(values.mean(1).abs().sum())
        samples = values.shape[1]
        errors = (values.std(1) / math.sqrt(samples)).tolist()
        enough = samples >= MIN_PROBES
        estimates = {
            block: TraceEstimate(value, error, samples, samples, enough and error <= rtol * scale)
            for block, value, error in zip(blocks, values.mean(1).tolist(), errors)
        }
        if all(e.converged for e in estimates.values()):
            break
    return estimates


def group_blocks(blocks: Mapping[str, slice], depth: int | None = None) -> dict[str, slice]:
    """One block per layer: parameters of one module, or of one module `depth` names deep.

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


def check_stopping(rtol: float, max_probes: int) -> None:
    if not rtol > 0:
        raise InputError(f"expected rtol > 0, got {rtol}")
    if max_probes < 3:
        raise InputError(f"expected max_probes >= 3, got {max_probes}")


def looks(most: int) -> list[int]:
    """Sample counts at which the standard error is looked at: 20, 30, 45, … and `most`."""
    counts, count = [], MIN_PROBES
    while count < most:
        counts.append(count)
        count = math.ceil(count * GROWTH)
    return [*counts, most]
