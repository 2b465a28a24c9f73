"""Numbers as sentences: verdicts, and what each figure shows to those who cannot see it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from focalcal.metrics import METRICS, Estimate, Evaluation
from focalcal.metrics.declare import percent
from focalcal.report.data import ModelReport, View


def interval(e: Estimate) -> str:
    """An interval in percent, as in [0.50, 0.90]."""
    return f"[{100 * e.low:.2f}, {100 * e.high:.2f}]"


def shown(evaluation: Evaluation, name: str) -> str:
    """A metric as people read it."""
    return METRICS[name].text(evaluation[name].value)


def ece_change(model: ModelReport) -> str:
    """The ECE before and after, as in "4.28 % → 1.39 %"."""
    return " → ".join(shown(view.evaluation, "ece") for _, view in model.views)


def accuracy_change(before: Evaluation, after: Evaluation) -> str:
    """Whether the predicted classes got better or worse, in points."""
    change = 100 * (after["accuracy"].value - before["accuracy"].value)
    if abs(change) < 0.005:
        return "accuracy unchanged"
    return f"accuracy {'+' if change > 0 else '−'}{abs(change):.2f} points"


def verdict(model: ModelReport) -> str:
    """One sentence about one model."""
    before, after = model.before.evaluation, model.after.evaluation
    ece, nll = shown(before, "ece"), shown(before, "nll")
    if model.chosen == model.before.method:
        return (
            f"{before.direction}; no calibrator is clearly better than none: ECE {ece} "
            f"{interval(before['ece'])}, NLL {nll}, accuracy {shown(before, 'accuracy')}."
        )
    verb = "lowers" if after["ece"].value < before["ece"].value else "changes"
    return (
        f"{before.direction}; {model.chosen} {verb} ECE from {ece} to {shown(after, 'ece')} "
        f"{interval(after['ece'])} and NLL from {nll} to {shown(after, 'nll')}; "
        f"{accuracy_change(before, after)}."
    )


def best_of(models: Sequence[ModelReport]) -> ModelReport:
    """The model of lowest test NLL after calibration."""
    return min(models, key=lambda m: m.after.evaluation["nll"].value)


def headline(models: Sequence[ModelReport]) -> str:
    """The verdict without its details, short enough for a phone."""
    best = best_of(models)
    if len(models) > 1:
        return f"{best.name} has the lowest NLL after calibration."
    direction = best.before.evaluation.direction
    if best.chosen == best.before.method:
        return f"{direction}; no calibrator is clearly better than none."
    return f"{direction}; {best.chosen}: ECE {ece_change(best)}."


def overall_verdict(models: Sequence[ModelReport]) -> str:
    """One sentence about one model, or which of several is best by test NLL after calibration."""
    if len(models) == 1:
        return models[0].verdict
    best = best_of(models)
    nll, accuracy = (shown(best.after.evaluation, name) for name in ("nll", "accuracy"))
    changes = ", ".join(f"{m.name} ECE {ece_change(m)}" for m in models)
    return (
        f"After calibration {best.name} has the lowest NLL, {nll}, with accuracy {accuracy} "
        f"({changes})."
    )


def labels_verdict(labels: Sequence[ModelReport]) -> str:
    """One sentence about the labels of a multi-label task, each calibrated by itself."""
    sides = [m.before.evaluation for m in labels], [m.after.evaluation for m in labels]

    def means(name: str) -> Iterator[str]:
        return (METRICS[name].text(sum(e[name].value for e in side) / len(side)) for side in sides)

    worst = max(labels, key=lambda m: m.before.evaluation["ece"].value)
    return (
        f"Calibrators, one per label, bring the mean ECE of {len(labels)} labels from "
        f"{' to '.join(means('ece'))} and the mean NLL from {' to '.join(means('nll'))}; the worst "
        f"before is {worst.name}, ECE {shown(worst.before.evaluation, 'ece')}."
    )


def reliability_text(view: View) -> str:
    e, b = view.evaluation, view.evaluation.reliability
    filled = np.flatnonzero(b.counts)
    worst = filled[np.abs(b.confidence_sums - b.correct_sums)[filled].argmax()]
    return (
        f"{view.method}: mean confidence minus accuracy is "
        f"{100 * e['confidence_gap'].value:+.2f} points; ECE {shown(e, 'ece')} "
        f"{interval(e['ece'])}. The bin with the largest share of it is "
        f"{b.edges[worst]:.2f}–{b.edges[worst + 1]:.2f} with {b.counts[worst]:,.0f} samples, "
        f"confidence {percent(b.mean_confidence[worst], 1)} and "
        f"accuracy {percent(b.accuracy[worst], 1)}."
    )


def classwise_text(model: ModelReport) -> str:
    names, before, after = model.class_names, model.before.class_ece, model.after.class_ece
    worst, better = before.argmax(), (after < before).sum()
    return (
        f"Largest class-wise ECE before calibration: class {names[worst]} with "
        f"{percent(before[worst])}, after {percent(after[worst])}. "
        f"It falls for {better} of {len(names)} classes."
    )


def right_wrong_text(model: ModelReport) -> str:
    found = ((v.method, v.evaluation) for v in (model.before, model.after))
    return " ".join(
        f"{method}: {percent(e['high_confidence_share'].value, 1)} of the samples have confidence "
        f"≥ {100 * e.threshold:g} % (accuracy {percent(e['high_confidence_accuracy'].value, 1)}); "
        f"mean entropy {e['entropy_right'].value:.3f} when right, "
        f"{e['entropy_wrong'].value:.3f} when wrong."
        for method, e in found
    )


def landscape_text(model: ModelReport) -> str:
    land = model.landscape
    text = (
        f"Equal-mass ECE on the validation set. Lowest on the grid at γ = {land.grid[0]:g}, "
        f"T = {land.grid[1]:g}; on the line {land.equation}, lowest at γ = {land.line[0]:.3g}, "
        f"T = {land.line[1]:.3g}"
    )
    if land.lowest_nll is None:
        return f"{text}."
    gamma, temperature = land.lowest_nll
    return f"{text}; lowest NLL at γ = {gamma:.3g}, T = {temperature:.3g}."


def risk_coverage_text(model: ModelReport) -> str:
    before, after = model.before.curve, model.after.curve
    return (
        f"Error among the most confident samples, by the share kept. Mean over all shares (AURC): "
        f"{percent(before.area, 3)} before, {percent(after.area, 3)} after."
    )
