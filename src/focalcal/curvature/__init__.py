"""Curvature of a loss: Hessian products, trace, eigenvalues, spectral density, a penalty.

Operators (`HessianOperator`, `GGNOperator`, `FisherOperator`) provide only `@`; the algorithms
never see a network and work on any symmetric matrix that has `shape` and `@`.
"""

from focalcal.errors import needing

with needing("torch", "torch", "focalcal.curvature"):
    import torch  # noqa: F401

from focalcal.curvature.lanczos import (
    DiagonalBlock,
    Eigenvalues,
    SpectralDensity,
    block_eigenvalues,
    spectral_density,
    top_eigenvalues,
)
from focalcal.curvature.logit import binary_logit_curvature, focal_logit_hessian
from focalcal.curvature.norms import (
    NormSummary,
    gradient_norms,
    input_gradient_norms,
    last_layer_gradient_norms,
    summarise_norms,
    weight_norms,
)
from focalcal.curvature.operators import (
    FisherOperator,
    GGNOperator,
    HessianOperator,
    sum_over_processes,
)
from focalcal.curvature.summary import CurvatureSummary, summarise_curvature
from focalcal.curvature.trace import TraceEstimate, block_traces, group_blocks, hessian_trace
from focalcal.losses.curvature import curvature_penalty

__all__ = [
    "CurvatureSummary",
    "DiagonalBlock",
    "Eigenvalues",
    "FisherOperator",
    "GGNOperator",
    "HessianOperator",
    "NormSummary",
    "SpectralDensity",
    "TraceEstimate",
    "binary_logit_curvature",
    "block_eigenvalues",
    "block_traces",
    "curvature_penalty",
    "focal_logit_hessian",
    "gradient_norms",
    "group_blocks",
    "hessian_trace",
    "input_gradient_norms",
    "last_layer_gradient_norms",
    "spectral_density",
    "sum_over_processes",
    "summarise_curvature",
    "summarise_norms",
    "top_eigenvalues",
    "weight_norms",
]
