"""Hugging Face `Trainer`: `compute_loss_func` from any loss here, and a `compute_metrics`.

Neither imports transformers: they only use what the Trainer passes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from focalcal._arrays import to_numpy
from focalcal.calibrators.to_torch import logits_of
from focalcal.errors import InputError
from focalcal.integrations.segmentation import IGNORE_INDEX
from focalcal.losses import Loss, make_loss
from focalcal.metrics import CalibrationStats

METRICS = ("accuracy", "nll", "brier", "ece", "adaptive_ece")


def compute_loss_func(loss: Loss | str) -> Callable[..., Tensor]:
    """A loss of this package as the Trainer's `compute_loss_func`.

    loss: a loss with reduction "mean", or its name for `make_loss`.

    Logits are (B, C) or (B, T, C) and integer labels (B,) or (B, T); labels of the shape of the
    logits are passed on unchanged (multi-label). With gradient accumulation the Trainer passes
    `num_items_in_batch`, and the losses of the micro-batches add up to the mean over all items; a
    micro-batch without labels adds 0. With class weights, the weighted means of the micro-batches
    are averaged. The Trainer ignores `label_smoothing_factor` if you give a function: pass a loss
    with `label_smoothing`. Labels are not shifted: for a causal language model pass
    `{"logits": outputs.logits[:, :-1]}` and `labels[:, 1:]` to the function.

    >>> import torch
    >>> function = compute_loss_func("fl-2")
    >>> function({"logits": torch.zeros(3, 2)}, torch.tensor([0, 1, 1])).item().__round__(4)
    0.1733
    """
    module = make_loss(loss) if isinstance(loss, str) else loss
    reduction = getattr(module, "reduction", module)
    if reduction != "mean":
        raise InputError(f"expected a loss with reduction 'mean', got {reduction!r}")

    def function(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        logits = logits_of(outputs)
        if labels.shape != logits.shape:
            logits = logits.reshape(-1, logits.shape[-1])
            labels = labels.reshape(-1)
        if num_items_in_batch is None:
            return module(logits, labels)
        kept = labels != module.ignore_index
        # Without labels there is no mean: use that of arbitrary labels, times 0.
        mean = module(logits, torch.where(kept.any(), labels, 0))
        return mean * (kept.sum() / num_items_in_batch)

    return function


def compute_metrics(prediction: Any) -> dict[str, float]:
    """Accuracy, NLL, Brier score and calibration errors of an `EvalPrediction`.

    prediction: a pair (predictions, label_ids) or an object with these attributes; predictions are
    the logits (B, C) or (B, T, C), or a tuple that begins with them. Labels of −100 are left out.

    >>> import numpy as np
    >>> round(compute_metrics((np.zeros((4, 2)), np.array([0, 1, -100, 1])))["ece"], 4)
    0.1667
    """
    if hasattr(prediction, "predictions"):
        logits, labels = prediction.predictions, prediction.label_ids
    else:
        logits, labels = prediction
    logits = to_numpy(logits[0] if isinstance(logits, tuple) else logits)
    labels = to_numpy(labels).reshape(-1)
    rows = logits.reshape(-1, logits.shape[-1])
    if len(rows) != len(labels):
        raise InputError(
            f"expected one label per row of logits, got {len(labels)} labels for {len(rows)} rows; "
            "with several labels per row, evaluate each label as a binary problem"
        )
    kept = labels != IGNORE_INDEX
    result = CalibrationStats(rows.shape[1]).update(labels[kept], logits=rows[kept]).compute()
    return {name: result[name].value for name in METRICS}
