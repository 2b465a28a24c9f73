"""The papers' networks, by name."""

from focalcal.models.registry import MODELS, make_model, model_settings, parameter_count
from focalcal.models.tree_lstm import class_logits
from focalcal.models.weights import load_weights, read_state_dict

__all__ = [
    "MODELS",
    "class_logits",
    "load_weights",
    "make_model",
    "model_settings",
    "parameter_count",
    "read_state_dict",
]
