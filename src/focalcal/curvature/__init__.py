"""Curvature of a loss: Hessian products, trace, eigenvalues, spectral density, a penalty."""

from focalcal.curvature.penalty import curvature_penalty

__all__ = ["curvature_penalty"]
