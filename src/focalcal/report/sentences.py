"""Numbers as sentences: verdicts, and what each figure shows to those who cannot see it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from focalcal.metrics import Estimate, Evaluation
from focalcal.metrics.declare import percent

if TYPE_CHECKING:
    from focalcal.report.data import ModelReport, View


def interval(e: Estimate, digits: int = 2) -> str:
    """An interval in percent, as in [0.50, 0.90]."""
    return f"[{100 * e.low:.{digits}f}, {100 * e.high:.{digits}f}]"


def direction(evaluation: Evaluation) -> str:
    """Over- or under-confident by how many points, or that chance explains the difference."""
    gap = evaluation["confidence_gap"].value
    if evaluation.test.p_value >= 0.05:
        return "No sign of miscalibration"
    way = "Over-confident" if gap > 0 else "Under-confident"
    if abs(gap) < 0.25 * evaluation["ece"].value:
        return f"Miscalibrated both ways (on balance {way.lower()} by {100 * abs(gap):.1f} points)"
    return f"{way} by {100 * abs(gap):.1f} points"


def accuracy_change(before: Evaluation, after: Evaluation) -> str:
    """Whether the predicted classes got better or worse, in points."""
    change = 100 * (after["accuracy"].value - before["accuracy"].value)
    if abs(change) < 0.005:
        return "accuracy unchanged"
    return f"accuracy {'+' if change > 0 else '−'}{abs(change):.2f} points"


def verdict(model: ModelReport) -> str:
    """One sentence about one model."""
    before, after = model.before.evaluation, model.after.evaluation
    first, second = before["ece"], after["ece"]
    found = direction(before)
    if model.chosen == model.before.method:
        return (
            f"{found}; no calibrator is clearly better than none: ECE {percent(first.value)} "
            f"{interval(first)}, NLL {before['nll'].value:.4f}, accuracy "
            f"{percent(before['accuracy'].value)}."
        )
    verb = "lowers" if second.value < first.value else "changes"
    return (
        f"{found}; {model.chosen} {verb} ECE from {percent(first.value)} to "
        f"{percent(second.value)} {interval(second)} and NLL from {before['nll'].value:.4f} to "
        f"{after['nll'].value:.4f}; {accuracy_change(before, after)}."
    )


def overall_verdict(models: Sequence[ModelReport]) -> str:
    """One sentence about one model, or which of several is best by test NLL after calibration."""
    if len(models) == 1:
        return models[0].verdict
    best = min(models, key=lambda m: m.after.evaluation["nll"].value)
    others = [
        f"{m.name} ECE {percent(m.before.evaluation['ece'].value)} → "
        f"{percent(m.after.evaluation['ece'].value)}"
        for m in models
    ]
    return (
        f"After calibration {best.name} has the lowest NLL, "
        f"{best.after.evaluation['nll'].value:.4f}, with accuracy "
        f"{percent(best.after.evaluation['accuracy'].value)} ({', '.join(others)})."
    )


def headline(models: Sequence[ModelReport]) -> str:
    """The verdict without its details, short enough for a phone."""
    if len(models) > 1:
        best = min(models, key=lambda m: m.after.evaluation["nll"].value)
        return f"{best.name} has the lowest NLL after calibration."
    (model,) = models
    before, after = (v.evaluation["ece"].value for v in (model.before, model.after))
    found = direction(model.before.evaluation)
    if model.chosen == model.before.method:
        return f"{found}; no calibrator is clearly better than none."
    return f"{found}; {model.chosen}: ECE {percent(before)} → {percent(after)}."


def labels_verdict(labels: Sequence[ModelReport]) -> str:
    """One sentence about the labels of a multi-label task, each calibrated by itself."""

    def mean(metric: str, after: bool) -> float:
        parts = [(m.after if after else m.before).evaluation for m in labels]
        return sum(e[metric].value for e in parts) / len(parts)

    worst = max(labels, key=lambda m: m.before.evaluation["ece"].value)
    return (
        f"Calibrators, one per label, bring the mean ECE of {len(labels)} labels from "
        f"{percent(mean('ece', False))} to {percent(mean('ece', True))} and the mean NLL from "
        f"{mean('nll', False):.4f} to {mean('nll', True):.4f}; the worst before is {worst.name}, "
        f"ECE {percent(worst.before.evaluation['ece'].value)}."
    )


def reliability_text(view: View) -> str:
    evaluation, b = view.evaluation, view.evaluation.reliability
    filled = [i for i in range(len(b)) if b.counts[i] > 0]
    worst = max(filled, key=lambda i: abs(b.gap[i]) * b.counts[i])
    gap = 100 * evaluation["confidence_gap"].value
    return (
        f"{view.method}: mean confidence minus accuracy is {gap:+.2f} points; "
        f"ECE {percent(evaluation['ece'].value)} {interval(evaluation['ece'])}. "
        f"The bin that adds most is {b.edges[worst]:.2f}–{b.edges[worst + 1]:.2f} with "
        f"{b.counts[worst]:.0f} samples, confidence {percent(b.mean_confidence[worst], 1)} and "
        f"accuracy {percent(b.accuracy[worst], 1)}."
    )


def classwise_text(model: ModelReport) -> str:
    names, before, after = model.class_names, model.before.class_ece, model.after.class_ece
    worst = int(before.argmax())
    better = int((after < before).sum())
    return (
        f"Largest class-wise error before: {names[worst]}, {percent(before[worst])}, "
        f"afterwards {percent(after[worst])}. The error falls for {better} of {len(names)} classes."
    )


def right_wrong_text(model: ModelReport) -> str:
    parts = []
    for view in (model.before, model.after):
        e = view.evaluation
        share = e["high_confidence_share"].value
        accuracy = e["high_confidence_accuracy"].value
        parts.append(
            f"{view.method}: {percent(share, 1)} of the samples have confidence ≥ "
            f"{100 * e.threshold:g} % (accuracy {percent(accuracy, 1)}); "
            f"mean entropy {e['entropy_right'].value:.3f} when right, "
            f"{e['entropy_wrong'].value:.3f} when wrong."
        )
    return " ".join(parts)


def landscape_text(model: ModelReport) -> str:
    land = model.landscape
    text = (
        f"Equal-mass ECE on the validation set. Grid optimum γ = {land.grid[0]:g}, "
        f"T = {land.grid[1]:g}; line T = {land.offset:.3f} {land.slope:+.3f}·γ, its optimum "
        f"γ = {land.line[0]:.3g}, T = {land.line[1]:.3g}"
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


def choices(model: ModelReport) -> list[tuple[str, int, str]]:
    """For "choose for me": a goal, the nearest stop of the slider, and what holds there."""
    return [
        (
            f"accuracy of at least {100 * t.value:g} %",
            round(100 * t.threshold) if t.found else 100,
            f"{t.rule} Guarantee: {t.guarantee}.",
        )
        for t in model.thresholds
    ]
