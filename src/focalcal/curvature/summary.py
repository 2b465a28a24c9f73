"""One record of a loss' curvature: trace, extreme eigenvalues and density, ready for JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from focalcal.curvature.density import SpectralDensity, spectral_density
from focalcal.curvature.lanczos import Eigenvalues, top_eigenvalues
from focalcal.curvature.operators import BatchOperator
from focalcal.curvature.trace import TraceEstimate, hessian_trace


@dataclasses.dataclass(frozen=True)
class CurvatureSummary:
    """What was asked for; the rest is None. `top` are the largest, `bottom` the smallest values."""

    n: float
    n_parameters: int
    trace: TraceEstimate | None = None
    top: Eigenvalues | None = None
    bottom: Eigenvalues | None = None
    density: SpectralDensity | None = None

    def record(self) -> dict[str, Any]:
        """Plain numbers for JSON."""
        record: dict[str, Any] = {"n": self.n, "n_parameters": self.n_parameters}
        if self.trace is not None:
            low, high = self.trace.interval()
            record["trace"] = dataclasses.asdict(self.trace) | {"low": low, "high": high}
        for name, found in (("top", self.top), ("bottom", self.bottom)):
            if found is not None:
                record[name] = {
                    "values": found.values.tolist(),
                    "residuals": found.residuals.tolist(),
                    "products": found.products,
                    "converged": found.converged,
                }
        if self.density is not None:
            record["density"] = {
                "nodes": self.density.nodes.tolist(),
                "weights": self.density.weights.tolist(),
                "n": self.density.n,
            }
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
    progress: Callable[[str, float], None] | None = None,
) -> CurvatureSummary:
    """Trace, the `top` largest eigenvalues and the smallest one, and the density of an operator.

    Args:
        operator: a Hessian, Gauss–Newton or Fisher operator.
        trace, top, density: what to compute; `top=0` skips the eigenvalues.
        method, rtol, max_probes: as `hessian_trace`.
        tol, max_products: as `top_eigenvalues`.
        density_probes, density_steps: as `spectral_density`.
        progress: called with the name of the part and the fraction of it that is done.

    Example:
        >>> import torch
        >>> from focalcal.curvature import HessianOperator, summarise_curvature
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> data = [(torch.eye(2), torch.zeros(2, 1))]
        >>> found = summarise_curvature(HessianOperator(model, torch.nn.functional.mse_loss, data))
        >>> round(found.trace.value, 6), round(found.top.values.item(), 6)
        (2.0, 1.0)
    """
    tell = progress or (lambda part, fraction: None)

    def traced(estimate: TraceEstimate) -> None:
        # The error falls like one over the root of the probes: the share of them already spent.
        goal = (estimate.standard_error / (rtol * abs(estimate.value) or 1.0)) ** 2
        tell("trace", max(1.0 / max(goal, 1.0), estimate.probes / max_probes))

    def found(part: str) -> Callable:
        return lambda products, values: tell(part, products / max_products)

    settings = {"tol": tol, "max_products": max_products}
    return CurvatureSummary(
        operator.total_weight,
        operator.shape[0],
        hessian_trace(operator, method, rtol=rtol, max_probes=max_probes, progress=traced)
        if trace
        else None,
        top_eigenvalues(operator, top, progress=found("largest eigenvalues"), **settings)
        if top
        else None,
        top_eigenvalues(
            operator, 1, which="smallest", progress=found("smallest eigenvalue"), **settings
        )
        if top
        else None,
        spectral_density(
            operator,
            probes=density_probes,
            steps=density_steps,
            progress=lambda fraction: tell("density", fraction),
        )
        if density
        else None,
    )
