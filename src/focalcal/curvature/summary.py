"""One record of a loss' curvature: trace, extreme eigenvalues and density, ready for JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from focalcal.curvature.lanczos import (
    Eigenvalues,
    SpectralDensity,
    spectral_density,
    top_eigenvalues,
)
from focalcal.curvature.operators import BatchOperator
from focalcal.curvature.trace import TraceEstimate, hessian_trace


@dataclasses.dataclass(frozen=True)
class CurvatureSummary:
    """The parts that were requested: `top` are the largest eigenvalues, `bottom` the smallest."""

    n: float
    n_parameters: int
    trace: TraceEstimate | None = None
    top: Eigenvalues | None = None
    bottom: Eigenvalues | None = None
    density: SpectralDensity | None = None

    def record(self) -> dict[str, Any]:
        """Plain numbers for JSON."""
        record: dict[str, Any] = {"n": self.n, "n_parameters": self.n_parameters}
        for name in ("trace", "top", "bottom", "density"):
            found = getattr(self, name)
            if found is not None:
                record[name] = {
                    key: value.tolist() if isinstance(value, Tensor) else value
                    for key, value in vars(found).items()
                    if key != "vectors"
                }
        if self.trace is not None:
            record["trace"]["low"], record["trace"]["high"] = self.trace.interval()
        return record


def summarise_curvature(
    operator: BatchOperator,
    *,
    trace: bool = True,
    top: int = 1,
    density: bool = False,
    method: str = "hutch++",
    rtol: float = 0.05,
    max_probes: int = 300,
    tol: float = 1e-4,
    max_products: int = 100,
    density_probes: int = 4,
    density_steps: int = 30,
    progress: Callable[[float], None] | None = None,
) -> CurvatureSummary:
    """Trace, the `top` largest eigenvalues and the smallest one, and the density of an operator.

    operator: a Hessian, Gauss–Newton or Fisher operator; trace, top, density: what to compute,
    where `top=0` skips the eigenvalues; method, rtol, max_probes: as in `hessian_trace`; tol,
    max_products: as in `top_eigenvalues`; density_probes, density_steps: as in `spectral_density`;
    progress: called with the fraction done.

    >>> import torch
    >>> from focalcal.curvature import HessianOperator
    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> data = [(torch.eye(2), torch.zeros(2, 1))]
    >>> found = summarise_curvature(HessianOperator(model, torch.nn.functional.mse_loss, data))
    >>> round(found.trace.value, 6), round(found.top.values.item(), 6)
    (2.0, 1.0)
    """
    parts: dict[str, Callable[..., Any]] = {}
    if trace:
        limits = {"rtol": rtol, "max_probes": max_probes}
        parts["trace"] = partial(hessian_trace, operator, method, **limits)
    if top:
        lanczos = partial(top_eigenvalues, operator, tol=tol, max_products=max_products)
        parts |= {"top": partial(lanczos, top), "bottom": partial(lanczos, which="smallest")}
    if density:
        size = {"probes": density_probes, "steps": density_steps}
        parts["density"] = partial(spectral_density, operator, **size)
    found: dict[str, Any] = {}

    def report(fraction: float) -> None:
        if progress is not None:
            progress((len(found) + fraction) / len(parts))

    for name, compute in parts.items():
        found[name] = compute(progress=report)
    return CurvatureSummary(operator.total_weight, operator.shape[0], **found)
