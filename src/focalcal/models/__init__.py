"""The papers' networks, by name."""

from focalcal.models.registry import MODELS, make_model, model_settings, parameter_count
from focalcal.models.weights import load_weights, read_state_dict

__all__ = [
    "MODELS",
    "load_weights",
    "make_model",
    "model_settings",
    "parameter_count",
    "read_state_dict",
]
