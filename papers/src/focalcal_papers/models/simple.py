"""Logistic regression and the multi-layer perceptron."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from focalcal.errors import InputError


class LogisticRegression(nn.Module):
    """Linear logits of the flattened input: (B, ...) → (B, n_classes).

    >>> import torch
    >>> LogisticRegression(10, input_shape=(1, 28, 28))(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self, n_classes: int, *, input_shape: Sequence[int] = (3, 32, 32), bias: bool = True
    ) -> None:
        super().__init__()
        self.linear = nn.Linear(math.prod(input_shape), n_classes, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.flatten(1))


class MLP(nn.Module):
    """`layers` linear layers with ReLU between: (B, ...) → (B, n_classes).

    The default, two layers with 100 hidden units, is the network of GEO's Figure 4.
    """

    def __init__(
        self,
        n_classes: int,
        *,
        hidden: int = 100,
        layers: int = 2,
        input_shape: Sequence[int] = (3, 32, 32),
    ) -> None:
        super().__init__()
        if layers < 1:
            raise InputError(f"expected at least 1 layer, got {layers}")
        sizes = [math.prod(input_shape), *[hidden] * (layers - 1), n_classes]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for layer in self.layers[:-1]:
            x = F.relu(layer(x))
        return self.layers[-1](x)
