"""Numbers as sentences: verdicts, and descriptions of the figures for those who cannot see them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from focalcal.metrics import METRICS, Estimate, Evaluation
from focalcal.metrics.declare import decimal, percent
from focalcal.report.data import ModelDifference, ModelReport, View

OTHER_SAMPLES = (
    "The models were measured on different test samples, so the lowest NLL does not show which is "
    "better"
)


def interval(e: Estimate) -> str:
    """An interval in percent, as in [0.50, 0.90]; empty if there is none."""
    return "" if e.low != e.low else f" [{100 * e.low:.2f}, {100 * e.high:.2f}]"


def shown(evaluation: Evaluation, name: str) -> str:
    """A metric as text."""
    return METRICS[name].text(evaluation[name].value)


def ece_change(model: ModelReport) -> str:
    """The ECE before and after, as in "4.28 % → 1.39 %"."""
    return " → ".join(shown(view.evaluation, "ece") for _, view in model.views)


def accuracy_change(before: Evaluation, after: Evaluation) -> str:
    """The change of the accuracy, in points."""
    change = 100 * (after["accuracy"].value - before["accuracy"].value)
    if abs(change) < 0.005:
        return "accuracy unchanged"
    return f"accuracy {decimal(change, '+z.2f')} points"


def verdict(model: ModelReport) -> str:
    """One sentence about one model."""
    before, after = model.before.evaluation, model.after.evaluation
    ece, nll = shown(before, "ece"), shown(before, "nll")
    if model.chosen == model.before.method:
        return (
            f"{before.direction}; no calibrator is clearly better than none: ECE {ece}"
            f"{interval(before['ece'])}, NLL {nll}, accuracy {shown(before, 'accuracy')}."
        )
    first, then = (_verb(before[name].value, after[name].value) for name in ("ece", "nll"))
    again = "" if then == first else f"{then} "
    return (
        f"{before.direction}; {model.chosen} {first} ECE from {ece} to {shown(after, 'ece')}"
        f"{interval(after['ece'])} and {again}NLL from {nll} to {shown(after, 'nll')}; "
        f"{accuracy_change(before, after)}."
    )


def _verb(before: float, after: float) -> str:
    return "raises" if after > before else "lowers" if after < before else "leaves"


def best_of(models: Sequence[ModelReport]) -> ModelReport:
    """The model of lowest test NLL after calibration."""
    return min(models, key=lambda m: m.after.evaluation["nll"].value)


def ranking(models: Sequence[ModelReport], differences: Sequence[ModelDifference]) -> str:
    """Which of several models has the lowest NLL, or which cannot be told apart."""
    best = best_of(models)
    nll = {d.first: d.comparison["nll"] for d in differences}
    same = [
        name
        for name, d in nll.items()
        if not d.better and (np.isfinite(d.first) or d.first == d.second)
    ]
    if len(same) == len(models) - 1:
        *names, last = (m.name for m in models)
        return f"After calibration, {', '.join(names)} and {last} cannot be told apart by NLL"
    text = f"After calibration, {best.name} has the lowest NLL"
    return f"{text}, but cannot be told apart from {', '.join(same)}" if same else text


def paired(d: ModelDifference) -> str:
    """What a table of differences shows."""
    return f"{d.second} − {d.first}, paired on {d.comparison.n:,} test samples"


def headline(
    models: Sequence[ModelReport],
    differences: Sequence[ModelDifference] = (),
    same_samples: bool = True,
) -> str:
    """The verdict without details, short enough for a phone."""
    best = best_of(models)
    if len(models) > 1:
        few = models if len(models) < 4 else ()
        changes = " and ".join(f"{ece_change(m)} ({m.name})" for m in few)
        ranked = ranking(models, differences) if same_samples else OTHER_SAMPLES
        return (f"ECE {changes}. " if few else "") + f"{ranked}."
    direction = best.before.evaluation.direction
    if best.chosen == best.before.method:
        return f"{direction}; no calibrator is clearly better than none."
    return f"{direction}; {best.chosen}: ECE {ece_change(best)}."


def overall_verdict(
    models: Sequence[ModelReport],
    differences: Sequence[ModelDifference] = (),
    same_samples: bool = True,
) -> str:
    """One sentence about one model, or which of several is best by test NLL after calibration."""
    if len(models) == 1:
        return models[0].verdict
    changes = "; ".join(
        f"{m.name}: ECE {ece_change(m)}, NLL {shown(m.after.evaluation, 'nll')}" for m in models
    )
    return f"{ranking(models, differences) if same_samples else OTHER_SAMPLES} ({changes})."


def labels_verdict(labels: Sequence[ModelReport]) -> str:
    """One sentence about the labels of a multi-label task, each calibrated on its own."""
    if len(labels) == 1:
        return labels[0].verdict
    sides = [m.before.evaluation for m in labels], [m.after.evaluation for m in labels]

    def means(name: str) -> Iterator[str]:
        return (METRICS[name].text(sum(e[name].value for e in side) / len(side)) for side in sides)

    worst = max(labels, key=lambda m: m.before.evaluation["ece"].value)
    return (
        f"Calibrators, one per label, bring the mean ECE of {len(labels)} labels from "
        f"{' to '.join(means('ece'))} and the mean NLL from {' to '.join(means('nll'))}; the worst "
        f"before is {worst.name}, ECE {shown(worst.before.evaluation, 'ece')}."
    )


def when(view: View) -> str:
    """Which probabilities these are, in words: readers need not know the name "identity"."""
    return "Before calibration" if view.method == "identity" else f"After {view.method}"


def reliability_text(view: View) -> str:
    e, b = view.evaluation, view.evaluation.reliability
    filled = np.flatnonzero(b.counts)
    worst = filled[np.abs(b.confidence_sums - b.correct_sums)[filled].argmax()]
    return (
        f"{when(view)}: mean confidence minus accuracy is "
        f"{decimal(100 * e['confidence_gap'].value, '+z.2f')} points; ECE {shown(e, 'ece')}"
        f"{interval(e['ece'])}. The bin with the largest share of it is "
        f"{b.edges[worst]:.2f}–{b.edges[worst + 1]:.2f} with {b.counts[worst]:,.0f} "
        f"{'sample' if b.counts[worst] == 1 else 'samples'}, "
        f"confidence {percent(b.mean_confidence[worst], 1)} and "
        f"accuracy {percent(b.accuracy[worst], 1)}."
    )


def classwise_text(model: ModelReport) -> str:
    names, before, after = model.class_names, model.before.class_ece, model.after.class_ece
    worst, better = before.argmax(), (after < before).sum()
    return (
        f"Largest class-wise ECE before calibration: class {names[worst]} with "
        f"{percent(before[worst])}, after {percent(after[worst])}. "
        f"It falls for {better:,} of {len(names):,} classes."
    )


def right_wrong_text(model: ModelReport) -> str:
    texts = []
    for view in {view.method: view for _, view in model.views}.values():
        e = view.evaluation
        share, accuracy = e["high_confidence_share"].value, e["high_confidence_accuracy"].value
        right, wrong = (decimal(e[f"entropy_{x}"].value, "z.3f") for x in ("right", "wrong"))
        above = f"have confidence ≥ {100 * e.threshold:g} %"
        above = f"{percent(share, 1)} of the samples {above} (accuracy {percent(accuracy, 1)})"
        texts.append(f"{when(view)}: {above}; mean entropy {right} when right, {wrong} when wrong.")
    return " ".join(texts)


def landscape_text(model: ModelReport) -> str:
    land = model.landscape
    text = (
        f"Equal-mass ECE on the validation set. Lowest on the grid at γ = {decimal(land.grid[0])}, "
        f"T = {land.grid[1]:g}; on the line {land.equation}, lowest at "
        f"γ = {decimal(land.line[0], 'z.3g')}, T = {land.line[1]:.3g}"
    )
    if land.lowest_nll is None:
        return f"{text}."
    gamma, temperature = land.lowest_nll
    at = f"γ = {decimal(gamma, 'z.3g')}, T = {decimal(temperature, 'z.3g')}"
    return f"{text}; lowest NLL at {at}."


def risk_coverage_text(model: ModelReport) -> str:
    before, after = model.before.curve, model.after.curve
    return (
        f"Error among the most confident samples, by the share kept. Mean over all shares (AURC): "
        f"{percent(before.area, 3)} before, {percent(after.area, 3)} after."
    )
