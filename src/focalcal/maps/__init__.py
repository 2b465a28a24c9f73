"""The theory as functions: the focal map Ψ^γ, its inverse, and what follows from them."""

from focalcal.maps.focal import (
    binary_focal_map,
    focal_log_map,
    focal_map,
    gradient_factor,
)

__all__ = [
    "binary_focal_map",
    "focal_log_map",
    "focal_map",
    "gradient_factor",
]
