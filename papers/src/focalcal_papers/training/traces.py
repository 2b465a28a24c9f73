"""What a run records about itself: per-epoch traces and snapshots of the training set.

Traces hold the curves of IE's Figures 1 and 3, snapshots the data of its Figures 2 and 4. Test
values are only recorded; nothing is chosen with them.
"""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from focalcal.curvature import last_layer_gradient_norms
from focalcal.files import atomic_path
from focalcal.metrics import ece, reliability
from focalcal_papers.models import class_logits
from focalcal_papers.training.config import TrainConfig

RELIABILITY_BINS = 25
"""As in IE's Figure 2."""


@torch.no_grad()
def predict_split(
    model: nn.Module, source: Any, split: str, config: TrainConfig, limit: int = 0
) -> tuple[Tensor, Tensor]:
    """Logits (N, K) float32 and labels (N,) of a split, in its order, on the device."""
    was_training = model.training
    model.eval()
    parts = []
    try:
        for batch in source.evaluation(split, limit):
            bf16 = config.precision == "bf16"
            with torch.autocast(source.device.type, torch.bfloat16, enabled=bf16):
                logits = class_logits(model, batch.inputs)
            parts.append((logits.float(), batch.targets))
    finally:
        model.train(was_training)
    return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])


def describe(logits: Tensor, labels: Tensor) -> dict[str, float | int | None]:
    """Error, NLL, entropy, confidence, p_y and ECE, with means over right and wrong predictions.

    >>> d = describe(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]))
    >>> d["error"], round(d["confidence_right"], 4), round(d["confidence_wrong"], 4)
    (0.5, 0.8808, 0.7311)
    """
    log_probs = torch.log_softmax(logits, dim=1)
    true_log = log_probs.gather(1, labels[:, None])[:, 0]
    top, predicted = log_probs.max(1)
    entropy = -(log_probs.exp() * log_probs).sum(1)
    columns = torch.stack([-true_log, entropy, top.exp(), true_log.exp()])
    values = columns.double().cpu().numpy()
    right = (predicted == labels).cpu().numpy()
    result: dict[str, float | int | None] = {"n": len(labels), "error": float(1 - right.mean())}
    for name, column in zip(("nll", "entropy", "confidence", "p_true"), values):
        result[name] = _mean(column)
        result[f"{name}_right"] = _mean(column[right])
        result[f"{name}_wrong"] = _mean(column[~right])
    finite = np.isfinite(values[2]).all()
    result["ece"] = ece(right, values[2].clip(0, 1)) if finite else None
    return result


def _mean(values: np.ndarray) -> float | None:
    """The mean, or None where it is undefined: JSON has no NaN."""
    mean = float(values.mean()) if values.size else float("nan")
    return mean if np.isfinite(mean) else None


def weight_norms(model: nn.Module) -> dict[str, float | None]:
    """Euclidean norms of all parameters and of the last layer's weights (IE Fig. 3h)."""
    # In float64: squares of diverging weights overflow float32, and JSON has no infinity.
    norm = partial(torch.linalg.vector_norm, dtype=torch.float64)
    parts = [norm(p.detach()) for p in model.parameters()]
    last = norm(last_layer(model).weight.detach())
    return {
        "weight_norm": _mean(torch.linalg.vector_norm(torch.stack(parts)).cpu().numpy()),
        "last_layer_norm": _mean(last.cpu().numpy()),
    }


def last_layer(model: nn.Module) -> nn.Linear:
    """The linear layer that computes the logits: the last one defined."""
    return [m for m in model.modules() if isinstance(m, nn.Linear)][-1]


def save_snapshot(
    path: Path, model: nn.Module, loss: nn.Module, source: Any, config: TrainConfig
) -> None:
    """Keep the training set's 25-bin reliability and last-layer gradient norms per sample.

    Gradient norms are left out for losses without a value per sample, and for trees.
    """
    logits, labels = predict_split(model, source, "train", config)
    probs = torch.softmax(logits.double(), 1).cpu().numpy()
    bins = reliability(labels.cpu().numpy(), probs, bins=RELIABILITY_BINS)
    kept = ("edges", "counts", "confidence_sums", "correct_sums")
    table: dict[str, Any] = {name: getattr(bins, name) for name in kept}
    if source.capturable and "none" in loss.reductions and not loss.needs_parameters:
        per_sample = copy.copy(loss)
        per_sample.reduction = "none"
        batches = [(b.inputs, b.targets) for b in source.evaluation("train")]
        norms = last_layer_gradient_norms(model, per_sample, batches)
        table["gradient_norms"] = norms.cpu().numpy().astype(np.float32)
    if config.snapshot_logits:
        halves = logits.cpu().numpy().astype(np.float16)
        table |= {"logits": halves, "labels": labels.cpu().numpy()}
    with atomic_path(path) as temporary:
        np.savez_compressed(temporary, **table)
