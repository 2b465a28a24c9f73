"""Panels of IE's figures (Mukhoti et al. 2020): 4a, 6 and 7 are theory, the others training runs.

Training figures read the traces that a run writes: a list of rows, one per traced epoch, with
`epoch`, `train`, `test` and the weight norms (`focalcal_papers.training`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import expit

from focalcal.bins import Bins
from focalcal.maps import gamma_for_probability, gradient_factor, inverse_focal_map
from focalcal_papers.figures.fts import two_classes
from focalcal_papers.figures.panels import Bars, Curve, Curves, Panel, by_gamma
from focalcal_papers.theory import two_parameter_problem

Rows = Sequence[Mapping[str, Any]]
LABELS = {
    "nll": "NLL",
    "entropy": "entropy",
    "p_true": "probability of the true class",
    "ece": "ECE",
    "error": "error",
    "confidence": "confidence",
}


def trace(rows: Rows, name: str, part: str | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Epochs and values of one number of the traces; NaN where an epoch has none."""
    found = [(row["epoch"], (row[part] if part else row).get(name)) for row in rows]
    epochs, values = zip(*found) if found else ((), ())
    return np.array(epochs), np.array([np.nan if v is None else v for v in values], dtype=float)


def traced(rows: Rows) -> list[Mapping[str, Any]]:
    """The epochs whose test set was measured."""
    return [row for row in rows if "test" in row]


def figure1(rows: Rows) -> list[Panel]:
    """NLL and entropy over the epochs, all samples and right and wrong ones, train and test."""
    rows = traced(rows)
    panels: list[Panel] = []
    for name in ("nll", "entropy"):
        for part in ("train", "test"):
            curves = tuple(
                Curve(label, *trace(rows, name + suffix, part))
                for suffix, label in (("", "all"), ("_right", "right"), ("_wrong", "wrong"))
            )
            panels.append(Curves(f"{part}: {LABELS[name]}", "epoch", LABELS[name], curves))
    return panels


def figure3(runs: Mapping[str, Rows]) -> list[Panel]:
    """What changes over the epochs under each loss: seven numbers of the test set, a norm (h)."""
    names = ("error", "ece", "nll", "nll_right", "nll_wrong", "entropy_wrong", "p_true_wrong")
    panels: list[Panel] = []
    for part, name in (*(("test", name) for name in names), (None, "last_layer_norm")):
        curves = tuple(Curve(loss, *trace(traced(r), name, part)) for loss, r in runs.items())
        group = name.rsplit("_", 1)[-1] if name.endswith(("_right", "_wrong")) else ""
        title = LABELS.get(name.removesuffix(f"_{group}"), "norm of the last layer's weights")
        panels.append(Curves(f"{title}, {group}" if group else title, "epoch", title, curves))
    return panels


def figure4a(gammas: Sequence[float] = (0, 1, 2, 3, 5)) -> list[Curves]:
    """g(p,γ): the factor on cross-entropy's gradient, which crosses 1 where γ*(p) = γ."""
    p = np.linspace(0.005, 0.995, 199)
    factor = by_gamma(gammas, p, lambda g: gradient_factor(p, g))
    below = np.linspace(0.1, 0.5, 200)
    star = Curve("γ*", below, gamma_for_probability(below))
    return [
        Curves("(a) gradient factor", "probability of the true class", "g(p, γ)", factor),
        Curves("γ that starts to regularise at p", "probability", "γ*(p)", (star,)),
    ]


def figure4(norms: Mapping[int, Mapping[str, np.ndarray]]) -> list[Panel]:
    """(b–d) Histograms of last-layer gradient norms of the training samples, by epoch and loss."""
    panels: list[Panel] = []
    for epoch, by_loss in norms.items():
        top = max(float(np.max(values)) for values in by_loss.values()) or 1.0
        edges = np.linspace(0, top, 31)
        # Norms are not confidences: np.histogram counts them, not the binning of the metrics.
        shares = {k: np.histogram(v, edges)[0] / len(v) for k, v in by_loss.items()}
        panels.append(Bars(f"epoch {epoch}", "gradient norm", edges, shares, yscale="log"))
    return panels


def figure6() -> list[Curves]:
    """App. G: weight norm, mean |logit| and confidence when wrong of a two-weight model, by step.

    Gradient descent on the exact mean loss; the gradient in the score is −g(p,γ)·(1−p)·sign.
    """
    problem, steps, rate = two_parameter_problem(), 300, 0.5
    sign = np.where(problem.labels == 1, 1.0, -1.0)
    shown: dict[str, list[Curve]] = {"norm": [], "logit": [], "wrong": []}
    for gamma in (0, 1):
        w = np.zeros(2)
        values = []
        for _ in range(steps):
            score = problem.inputs @ w
            p = expit(sign * score)
            wrong = sign * score < 0
            sure = expit(np.abs(score[wrong])) if wrong.any() else np.array([np.nan])
            values.append((np.linalg.norm(w), np.abs(score).mean(), sure.mean()))
            pull = gradient_factor(p, gamma) * (1 - p) * sign
            w = w + rate * (pull @ problem.inputs) / len(sign)
        name = "cross-entropy" if gamma == 0 else f"γ = {gamma:g}"
        for key, column in zip(shown, np.array(values).T):
            shown[key].append(Curve(name, np.arange(steps), column))
    titles = ("norm of the weights", "mean |logit|", "confidence when wrong")
    return [Curves(t, "step", t, tuple(c)) for t, c in zip(titles, shown.values())]


def figure7(gammas: Sequence[float] = (0, 1, 2, 3, 5)) -> list[Curves]:
    """The prediction q that minimises the focal risk when the true probability is p."""
    p = np.linspace(0.01, 0.99, 197)
    curves = by_gamma(gammas, p, lambda g: inverse_focal_map(two_classes(p), g)[:, 0])
    labels = ("true probability p", "optimal prediction q")
    return [Curves("risk minimiser", *labels, curves, diagonal=True)]


def figure8(confidence: Mapping[str, Mapping[str, Bins]]) -> list[Panel]:
    """How the test samples' confidence is distributed under each loss, before and after T."""
    panels: list[Panel] = []
    for stage, by_loss in confidence.items():
        edges = next(iter(by_loss.values())).edges
        shares = {loss: b.share for loss, b in by_loss.items()}
        panels.append(Bars(stage, "confidence", edges, shares, yscale="log"))
    return panels
