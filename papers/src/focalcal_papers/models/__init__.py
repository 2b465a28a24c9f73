"""The papers' networks, by name."""

from focalcal_papers.models.registry import MODELS, make_model, model_settings, parameter_count
from focalcal_papers.models.tree_lstm import class_logits
from focalcal_papers.models.weights import load_weights, read_state_dict

__all__ = [
    "MODELS",
    "class_logits",
    "load_weights",
    "make_model",
    "model_settings",
    "parameter_count",
    "read_state_dict",
]
