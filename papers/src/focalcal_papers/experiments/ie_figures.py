"""IE (Mukhoti et al. 2020): Figures 1 to 8."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scipy.special import softmax

from focalcal.bins import Bins
from focalcal.figures import reliability_panel
from focalcal.maps import gamma_for_probability
from focalcal.metrics import reliability
from focalcal_papers.experiments.base import Analyse, Analysis, Experiments, Finding, Material
from focalcal_papers.experiments.cpe import optimal_prediction
from focalcal_papers.experiments.ie_grid import seeds
from focalcal_papers.experiments.runs import Run
from focalcal_papers.experiments.settings import BASES, Settings, accepts_cifar10, with_losses
from focalcal_papers.figures import Curve, Curves
from focalcal_papers.figures import ie as figures

EXPERIMENTS = Experiments()
FIXED = ("ce", "fl-1", "fl-2", "fl-3")
SPLIT = ("nll_right", "nll_wrong", "entropy_right", "entropy_wrong")


def _figure(
    name: str, title: str, claim: str, losses: tuple[str, ...], snapshots: bool = False
) -> Callable[[Analyse], Analyse]:
    """Declare a figure of runs on CIFAR-10 with these losses."""
    kept = {"smoke": [1, 10, 20], "lite": [10, 20, 30], "paper": [10, 100, 200, 350]}

    def recipes(scale: str) -> dict[str, Settings]:
        changes = {"snapshots": kept[scale]} if snapshots else {}
        return with_losses(BASES[scale], losses, **changes)

    def accepts(settings: Settings) -> bool:
        return settings["loss"] in losses and accepts_cifar10(settings)

    return EXPERIMENTS.declare(name, title, claim, recipes=recipes, accepts=accepts)


def _ends(run: Run, names: tuple[str, ...]) -> list[Finding]:
    """Numbers of the finished network on the test set, with intervals."""
    return [
        Finding.percent(f"test ECE %, {run.label}", run.evaluation["ece"])
        if name == "ece"
        else Finding.of(f"test {name.replace('_', ', ')}, {run.label}", run.evaluation[name])
        for name in names
    ]


@_figure(
    "ie/fig1", "NLL and entropy while training", "the test NLL rises through the mistakes", ("ce",)
)
def _fig1(material: Material) -> Analysis:
    run = material.by_loss()["ce"]
    findings = _ends(run, ("nll", *SPLIT))
    rows = figures.traced(run.rows)
    low = min(rows, key=lambda row: row["test"]["nll"])
    last = rows[-1]
    for at in (low, last):
        found, n = at["test"], at["test"]["n"]
        counts = {"": n, "_right": n * (1 - found["error"]), "_wrong": n * found["error"]}
        for group, count in counts.items():
            what = f"test nll{group.replace('_', ', ')}, epoch {at['epoch']}"
            findings.append(Finding(what, found[f"nll{group}"], n=round(count)))
    share = last["test"]["error"] * (last["test"]["nll_wrong"] or 0) / last["test"]["nll"]
    text = (
        f"{run.label}: the test NLL is lowest at epoch {low['epoch']} ({low['test']['nll']:.3f}) "
        f"and ends at {last['test']['nll']:.3f}. That of the wrong samples goes from "
        f"{_text(low['test']['nll_wrong'])} to {_text(last['test']['nll_wrong'])}, that of the "
        f"right ones from {_text(low['test']['nll_right'])} to "
        f"{_text(last['test']['nll_right'])}; at the end the mistakes, "
        f"{100 * last['test']['error']:.1f} % of the samples, make {100 * share:.0f} % of the NLL."
    )
    return Analysis(tuple(findings), text, tuple(figures.figure1(run.rows)))


def _text(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"


@_figure(
    "ie/fig2",
    "Training confidence over the epochs",
    "confidence keeps growing after the training error is gone",
    ("ce",),
    snapshots=True,
)
def _fig2(material: Material) -> Analysis:
    run = material.by_loss()["ce"]
    bins = run.snapshot_bins()
    if not bins:
        return _fig2_traces(run)
    what = f"mean training confidence, epoch {{}}, {run.label}"
    findings = tuple(
        Finding(what.format(epoch), float(b.confidence_sums.sum() / b.total), n=int(b.total))
        for epoch, b in bins.items()
    )
    text = f"Mean training confidence goes from {findings[0].ours:.3f} to {findings[-1].ours:.3f}."
    panels = (reliability_panel(b, f"training set, epoch {epoch}") for epoch, b in bins.items())
    return Analysis(findings, text, tuple(panels))


def _fig2_traces(run: Run) -> Analysis:
    """Without snapshots there are no bins, but the traces hold the means."""
    rows = figures.traced(run.rows)
    if not rows:
        reason = "the run kept neither snapshots of its training set nor traces"
        return Analysis.not_run("training confidence", reason)
    findings = []
    for epoch in (10, 100, 200, 350):
        near = min(rows, key=lambda row: abs(row["epoch"] - epoch))
        for name in ("error", "confidence"):
            what = f"training {name}, epoch {near['epoch']}, {run.label}"
            findings.append(Finding(what, near["train"][name], n=near["train"]["n"]))
    findings = list(dict.fromkeys(findings))
    learned = next((r for r in rows if r["train"]["error"] < 1e-3), None)
    last = rows[-1]
    text = "Means over training samples; bins were not kept (setting `snapshots`). "
    if learned is None:
        text += f"The training error never falls below 0.1 % (last {last['train']['error']:.4f})."
    else:
        text += (
            f"The training error is below 0.1 % from epoch {learned['epoch']}, where mean "
            f"confidence lacks {1 - learned['train']['confidence']:.1e} to 1 and the NLL is "
            f"{learned['train']['nll']:.1e}; at epoch {last['epoch']} these are "
            f"{1 - last['train']['confidence']:.1e} and {last['train']['nll']:.1e}."
        )
    curves = tuple(
        Curve(name, *figures.trace(rows, name, "train")) for name in ("confidence", "error")
    )
    return Analysis(tuple(findings), text, (Curves("training set", "epoch", "mean", curves),))


@_figure(
    "ie/fig3",
    "Cross-entropy and γ = 1, 2, 3 while training",
    "larger γ, higher entropy of mistakes, lower NLL, smaller weights",
    FIXED,
)
def _fig3(material: Material) -> Analysis:
    runs = dict(sorted(material.by_loss().items(), key=lambda item: item[1].gamma or 0))
    findings = [f for run in runs.values() for f in _ends(run, ("ece", "nll", *SPLIT))]
    norms = {k: r.rows[-1].get("last_layer_norm") for k, r in runs.items()}
    findings += [
        Finding(f"norm of the last layer, {runs[k].label}", v) for k, v in norms.items() if v
    ]
    cost, entropy = (
        ", ".join(f"{k} {r.evaluation[name].value:.3f}" for k, r in runs.items())
        for name in ("nll", "entropy_wrong")
    )
    last = ", ".join(f"{k} {v:.2f}" for k, v in norms.items() if v)
    text = (
        f"At the end, on the test set. NLL: {cost}; entropy when wrong: {entropy}; norm of the "
        f"last layer: {last}."
    )
    left = [loss for loss in FIXED if loss not in runs]
    text += (f" Not run: {', '.join(left)}." if left else "") + seeds(tuple(runs.values()))
    panels = figures.figure3({k: r.rows for k, r in runs.items()})
    return Analysis(tuple(findings), text, tuple(panels))


@_figure(
    "ie/fig4",
    "Gradient factor and gradient norms",
    "focal gradients are smaller once a sample is learned",
    FIXED,
    snapshots=True,
)
def _fig4(material: Material) -> Analysis:
    base = _fig4a(material)
    norms: dict[int, dict[str, Any]] = {}
    for loss, run in material.by_loss().items():
        for epoch, table in run.snapshots.items():
            if "gradient_norms" in table:
                norms.setdefault(epoch, {})[loss] = table["gradient_norms"]
    findings = list(base.findings)
    for epoch, by_loss in norms.items():
        findings += [
            Finding(f"mean gradient norm, epoch {epoch}, {k}", float(v.mean()), n=len(v))
            for k, v in by_loss.items()
        ]
    panels = (*base.panels, *figures.figure4(norms))
    if not norms:
        findings.append(Finding("gradient norms", reason="the runs kept no snapshots"))
    return Analysis(tuple(findings), base.conclusion, panels)


@EXPERIMENTS.declare("ie/fig4a", "Gradient factor g(p, γ)", "g > 1 below p0, < 1 above")
def _fig4a(material: Material) -> Analysis:
    panels = figures.figure4a()
    findings = [
        Finding(f"γ*({p})", float(gamma_for_probability(p)), v, tolerance=5e-4)
        for p, v in ((0.2, 4.851), (0.25, 3.070))
    ]
    text = "The factor exceeds 1 below p0 and falls below 1 above, with γ*(p0) = γ."
    return Analysis(tuple(findings), text, tuple(panels))


def _bins(run: Run, temperature: float, bins: int = 15) -> Bins:
    probs = softmax(run.test.as_logits() / temperature, axis=1)
    return reliability(run.test.labels, probs, bins=bins)


@_figure(
    "ie/fig5",
    "Reliability before and after scaling",
    "focal loss is calibrated before scaling",
    ("ce", "fl-3", "fla-53"),
)
def _fig5(material: Material) -> Analysis:
    runs = material.by_loss()
    findings = [
        Finding.percent(f"ECE %, {r.label}, {stage}", e)
        for r in runs.values()
        for stage, e in (("pre", r.before["ece"]), ("post", r.after["ece"]))
    ]
    panels = [
        reliability_panel(_bins(r, t), f"{k}, {stage}")
        for k, r in runs.items()
        for stage, t in (("before", 1.0), ("after T", r.temperature))
    ]
    gaps = ", ".join(f"{k} {100 * r.before['confidence_gap'].value:+.1f}" for k, r in runs.items())
    ends = ", ".join(f"{k} {100 * r.after['ece'].value:.2f}" for k, r in runs.items())
    text = f"Confidence minus accuracy before scaling, in points: {gaps}. ECE % after: {ends}."
    text += seeds(tuple(runs.values()))
    return Analysis(tuple(findings), text, tuple(panels))


@EXPERIMENTS.declare(
    "ie/fig6", "A model with two weights (App. G)", "the norm is larger for one of the losses"
)
def _fig6(material: Material) -> Analysis:
    panels = figures.figure6()
    ends = {c.label: float(c.y[-1]) for c in panels[0].curves}
    findings = tuple(Finding(f"weight norm, {k}", v) for k, v in ends.items())
    larger = "focal loss"
    if ends["γ = 1"] < ends["cross-entropy"]:
        larger = "cross-entropy, as the figure shows, against App. G's text"
    text = f"The weight norm is larger for {larger}."
    return Analysis(findings, text, tuple(panels))


@EXPERIMENTS.declare(
    "ie/fig7", "Optimal prediction for a true probability", "focal loss prefers higher entropy"
)
def _fig7(material: Material) -> Analysis:
    checked = {1: 0.7744, 3: 0.6471, 5: 0.5974}
    findings = tuple(
        Finding(f"optimal q for p = .9, γ = {g}", optimal_prediction(g), v, tolerance=5e-5)
        for g, v in checked.items()
    )
    text = "For two classes the minimiser is closer to ½ than the truth, the more so the larger γ."
    return Analysis(findings, text, tuple(figures.figure7()))


@_figure(
    "ie/fig8",
    "Distribution of confidence",
    "scaling takes cross-entropy's confidence away",
    ("ce", "fl-3", "fla-53"),
)
def _fig8(material: Material) -> Analysis:
    runs = material.by_loss()
    stages = {
        "before": {k: _bins(r, 1.0, 50) for k, r in runs.items()},
        "after T": {k: _bins(r, r.temperature, 50) for k, r in runs.items()},
    }
    findings = [
        Finding(f"share above .98, {k}, {stage}", float(b.share[-1]), n=int(b.total))
        for stage, by in stages.items()
        for k, b in by.items()
    ]
    left = ", ".join(
        f"{k} {100 * stages['before'][k].share[-1]:.0f} → {100 * b.share[-1]:.0f} %"
        for k, b in stages["after T"].items()
    )
    text = f"Share of the test set above .98, before → after scaling: {left}; compare Table 6."
    return Analysis(tuple(findings), text, tuple(figures.figure8(stages)))
