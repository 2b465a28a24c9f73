"""The theory as functions: the focal map Ψ^γ, its inverse, and what follows from them."""

from focalcal.maps.focal import binary_focal_map, focal_log_map, focal_map, gradient_factor
from focalcal.maps.inverse import inverse_focal_log_map, inverse_focal_map, properized_focal_loss
from focalcal.maps.loss_values import (
    entropy_lower_bound,
    focal_loss_derivative,
    focal_loss_second_derivative,
    focal_loss_value,
    focal_risk,
)
from focalcal.maps.temperature import (
    ClosestTemperature,
    TemperatureBounds,
    closest_temperature,
    quick_temperature,
    temperature_bounds,
    temperature_error,
    tightest_temperature_bounds,
)
from focalcal.maps.thresholds import (
    ConfidenceChangeRegion,
    confidence_change_region,
    gamma_for_probability,
    probability_for_gamma,
)

__all__ = [
    "ClosestTemperature",
    "ConfidenceChangeRegion",
    "TemperatureBounds",
    "binary_focal_map",
    "closest_temperature",
    "confidence_change_region",
    "entropy_lower_bound",
    "focal_log_map",
    "focal_loss_derivative",
    "focal_loss_second_derivative",
    "focal_loss_value",
    "focal_map",
    "focal_risk",
    "gamma_for_probability",
    "gradient_factor",
    "inverse_focal_log_map",
    "inverse_focal_map",
    "probability_for_gamma",
    "properized_focal_loss",
    "quick_temperature",
    "temperature_bounds",
    "temperature_error",
    "tightest_temperature_bounds",
]
