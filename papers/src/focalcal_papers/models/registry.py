"""Networks by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from focalcal.errors import InputError
from focalcal_papers.models import convolutional, resnet, simple, text, tree_lstm, vit

MODELS: dict[str, Callable[..., nn.Module]] = {
    "resnet18": resnet.resnet18,
    "resnet50": resnet.resnet50,
    "resnet110": resnet.resnet110,
    "resnet20": resnet.resnet20,
    "resnet32": resnet.resnet32,
    "resnet44": resnet.resnet44,
    "resnet56": resnet.resnet56,
    "wrn26_10": resnet.wide_resnet,
    "densenet121": convolutional.DenseNet,
    "mobilenet_v2": convolutional.MobileNetV2,
    "vgg19": convolutional.VGG19,
    "vit": vit.ViT,
    "text_cnn": text.TextCNN,
    "tree_lstm": tree_lstm.TreeLSTM,
    "mlp": simple.MLP,
    "logistic": simple.LogisticRegression,
}


def make_model(name: str, n_classes: int, **settings: Any) -> nn.Module:
    """Build the network `name` with `n_classes` outputs; `settings` are its keyword arguments.

    Networks on images or vectors take `input_shape`, the shape of one sample, (3, 32, 32) unless
    given. The same torch seed gives the same initial weights.

    >>> model = make_model("mlp", 10, hidden=32, input_shape=(1, 28, 28))
    >>> parameter_count(model)
    25450
    """
    known = model_settings(name)
    if n_classes < 2:
        raise InputError(f"expected at least 2 classes, got {n_classes}")
    unknown = sorted(set(settings) - set(known))
    if unknown:
        raise InputError(f"expected settings of {name} among {known}, got {unknown}")
    return MODELS[name](n_classes, **settings)


def model_settings(name: str) -> list[str]:
    """The names of the settings that `make_model(name, ...)` accepts."""
    if name not in MODELS:
        raise InputError(f"expected a model of {', '.join(sorted(MODELS))}; got {name!r}")
    build = MODELS[name]
    fixed = build.keywords if isinstance(build, partial) else {}
    parameters = inspect.signature(build).parameters.values()
    return sorted(p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in fixed)


def parameter_count(model: nn.Module) -> int:
    """The number of trainable parameters."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)
