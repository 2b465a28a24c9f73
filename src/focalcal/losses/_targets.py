"""Which logits and targets a loss accepts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from focalcal.errors import InputError
from focalcal.losses._pointwise import values_are_visible


def check_tensors(**given: Any) -> None:
    for name, value in given.items():
        if not isinstance(value, Tensor):
            raise InputError(
                f"expected {name} as a tensor, got {type(value).__name__}; convert arrays and "
                "lists with torch.as_tensor, and take the logits out of a model's output"
            )


def sums_to_one(target: Tensor) -> bool:
    """Whether one row of targets may be a distribution; assumed if its values cannot be read."""
    if not target.is_floating_point():
        return False
    return not values_are_visible(target) or abs(float(target.sum()) - 1) < 0.01


def check_soft(logits: Tensor, target: Tensor, ignore_index: int, integer_only: str | None) -> None:
    if integer_only:
        raise InputError(
            f"{integer_only} takes integer labels only, got {target.dtype} targets; "
            "use FocalLoss for probability targets"
        )
    if target.shape != logits.shape:
        raise InputError(
            f"expected probability targets of the logits' shape {tuple(logits.shape)}, got "
            f"{target.dtype} of shape {tuple(target.shape)}; for class labels use .long()"
        )
    if ignore_index >= 0:
        raise InputError(
            f"ignore_index ({ignore_index}) has no meaning with probability targets; drop it"
        )


def check_labels(logits: Tensor, labels: Tensor, ignore_index: int) -> None:
    if labels.dtype == torch.bool or labels.is_complex():
        raise InputError(
            f"expected integer labels or probability targets, got dtype {labels.dtype}; "
            "convert with .long() or .float()"
        )
    shape = logits.shape[:1] + logits.shape[2:]
    if labels.shape != shape:
        raise InputError(
            f"expected labels of shape {tuple(shape)} for logits of "
            f"shape {tuple(logits.shape)}, got {tuple(labels.shape)}; axis 1 of the logits holds "
            "the classes, and one-hot targets must be converted with .float()"
        )
    if not values_are_visible(labels) or labels.numel() == 0:
        return
    n_classes, labels = logits.shape[1], labels.long()
    lowest, highest = (int(end) for end in labels.aminmax())
    if lowest >= 0 and highest < n_classes:  # the usual case, in a fraction of the time
        return
    wrong = ((labels < 0) | (labels >= n_classes)) & (labels != ignore_index)
    if wrong.any():
        at = wrong.nonzero()[0].tolist()
        raise InputError(
            f"expected labels in 0..{n_classes - 1} or ignore_index {ignore_index}, "
            f"got {int(labels[tuple(at)])} at {at}"
        )
