"""IE (Mukhoti et al. 2020): Figures 1 to 8."""

from __future__ import annotations

from functools import partial
from typing import Any

from focalcal._arrays import softmax
from focalcal.experiments.base import Analysis, Experiment, Finding, Material
from focalcal.experiments.runs import Run
from focalcal.experiments.settings import (
    BASES,
    Settings,
    is_published,
    with_losses,
)
from focalcal.figures import ie as figures
from focalcal.maps import gamma_for_probability, inverse_focal_map
from focalcal.metrics import reliability


def _last(run: Run, part: str, name: str) -> float | None:
    traced = [row for row in run.rows if part in row]
    return traced[-1][part].get(name) if traced else None


def _trace_findings(run: Run, names: tuple[str, ...]) -> list[Finding]:
    return [
        Finding(f"last epoch, test {name}, {run.label}", _last(run, "test", name), n=run.test.n)
        for name in names
    ]


def _fig1(material: Material) -> Analysis:
    run = material.by_loss()["ce"]
    findings = _trace_findings(run, ("nll", "nll_right", "nll_wrong", "entropy_wrong"))
    right, wrong = (_last(run, "test", f"nll_{g}") or 0.0 for g in ("right", "wrong"))
    text = (
        f"NLL of wrong test samples ends at {wrong:.2f}, of right ones at {right:.2f}: the curve "
        "of the whole is that of the mistakes."
    )
    return Analysis(tuple(findings), text, tuple(figures.figure1(run.rows)))


def _fig2(material: Material) -> Analysis:
    run = material.by_loss()["ce"]
    bins = run.snapshot_bins()
    if not bins:
        reason = "the run kept no snapshots of its training set (setting `snapshots`)"
        return Analysis((Finding("training confidence", reason=reason),), "Not run.")
    findings = tuple(
        Finding(
            f"mean training confidence, epoch {epoch}, {run.label}",
            float(b.confidence_sums.sum() / b.total),
            n=int(b.total),
        )
        for epoch, b in bins.items()
    )
    text = f"Mean training confidence goes from {findings[0].ours:.3f} to {findings[-1].ours:.3f}."
    return Analysis(findings, text, tuple(figures.figure2(bins)))


def _fig3(material: Material) -> Analysis:
    runs = material.by_loss()
    names = ("ece", "nll", "entropy_wrong")
    findings = [f for run in runs.values() for f in _trace_findings(run, names)]
    norms = {k: r.rows[-1].get("last_layer_norm") for k, r in runs.items()}
    findings += [
        Finding(f"norm of the last layer, {runs[k].label}", v) for k, v in norms.items() if v
    ]
    text = "Last-layer weight norms: " + ", ".join(f"{k} {v:.2f}" for k, v in norms.items() if v)
    panels = figures.figure3({k: r.rows for k, r in runs.items()})
    return Analysis(tuple(findings), text + ".", tuple(panels))


def _fig4a(material: Material) -> Analysis:
    panels = figures.figure4a()
    findings = [
        Finding(f"γ*({p})", float(gamma_for_probability(p)), v, tolerance=5e-4)
        for p, v in ((0.2, 4.851), (0.25, 3.070))
    ]
    text = "The factor exceeds 1 below p0 and falls below 1 above, with γ*(p0) = γ."
    return Analysis(tuple(findings), text, tuple(panels))


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


def _fig5(material: Material) -> Analysis:
    runs = material.by_loss()
    findings = [
        Finding(f"ECE %, {r.label}, {stage}", 100 * e.value, None, 100 * e.low, 100 * e.high, e.n)
        for r in runs.values()
        for stage, e in (("pre", r.before["ece"]), ("post", r.after["ece"]))
    ]
    before = {k: r.before.reliability for k, r in runs.items()}
    after = {k: r.after.reliability for k, r in runs.items()}
    gaps = ", ".join(f"{k} {100 * r.before['confidence_gap'].value:+.1f}" for k, r in runs.items())
    text = f"Confidence minus accuracy before scaling, in points: {gaps}."
    return Analysis(tuple(findings), text, tuple(figures.figure5(before, after)))


def _fig6(material: Material) -> Analysis:
    panels = figures.figure6()
    ends = {c.label: float(c.y[-1]) for c in panels[0].curves}
    findings = tuple(Finding(f"weight norm, {k}", v) for k, v in ends.items())
    smaller = ends["γ = 1"] < ends["cross-entropy"]
    text = (
        "The weight norm is larger for cross-entropy, as the figure shows, against App. G's text."
        if smaller
        else "The weight norm is larger for focal loss."
    )
    return Analysis(findings, text, tuple(panels))


def _fig7(material: Material) -> Analysis:
    checked = {1: 0.7744, 3: 0.6471, 5: 0.5974}
    findings = tuple(
        Finding(
            f"optimal q for p = .9, γ = {g}",
            float(inverse_focal_map([0.9, 0.1], float(g))[0]),
            v,
            tolerance=5e-5,
        )
        for g, v in checked.items()
    )
    text = "For two classes the minimiser is closer to ½ than the truth, the more so the larger γ."
    return Analysis(findings, text, tuple(figures.figure7()))


def _fig8(material: Material) -> Analysis:
    runs = material.by_loss()

    def fine(run: Run, scale: float) -> Any:
        return reliability(run.test.labels, softmax(run.test.as_logits() / scale), bins=50)

    stages = {
        "before": {k: fine(r, 1.0) for k, r in runs.items()},
        "after T": {k: fine(r, r.temperature) for k, r in runs.items()},
    }
    findings = [
        Finding(f"share above .98, {k}, {stage}", float(b.share[-1]), n=int(b.total))
        for stage, by in stages.items()
        for k, b in by.items()
    ]
    text = "Temperature scaling empties the top bin for cross-entropy; compare Table 6."
    return Analysis(tuple(findings), text, tuple(figures.figure8(stages)))


def _figure_recipes(losses: tuple[str, ...], snapshots: bool, scale: str) -> dict[str, Settings]:
    epochs = {"smoke": [1, 10, 20], "lite": [10, 20, 30], "paper": [10, 100, 200, 350]}[scale]
    changes = {"snapshots": epochs} if snapshots else {}
    return with_losses(BASES[scale], losses, **changes)


def _figure(name: str, title: str, claim: str, analyse, losses=(), snapshots=False) -> Experiment:
    if not losses:
        return Experiment(f"ie/{name}", title, claim, analyse)
    recipes = partial(_figure_recipes, losses, snapshots)

    def accepts(settings: Settings) -> bool:
        image = settings["dataset"] == "cifar10" and settings["loss"] in losses
        return image and is_published(settings)

    return Experiment(f"ie/{name}", title, claim, analyse, recipes, accepts)


FIXED = ("ce", "fl-1", "fl-2", "fl-3")

EXPERIMENTS: tuple[Experiment, ...] = (
    _figure(
        "fig1",
        "NLL and entropy while training",
        "the test NLL rises through the mistakes",
        _fig1,
        ("ce",),
    ),
    _figure(
        "fig2",
        "Training confidence over the epochs",
        "confidence keeps growing after the training error is gone",
        _fig2,
        ("ce",),
        snapshots=True,
    ),
    _figure(
        "fig3",
        "Cross-entropy and γ = 1, 2, 3 while training",
        "larger γ, higher entropy of mistakes, lower NLL, smaller weights",
        _fig3,
        FIXED,
    ),
    _figure(
        "fig4",
        "Gradient factor and gradient norms",
        "focal gradients are smaller once a sample is learned",
        _fig4,
        FIXED,
        snapshots=True,
    ),
    _figure("fig4a", "Gradient factor g(p, γ)", "g > 1 below p0, < 1 above", _fig4a),
    _figure(
        "fig5",
        "Reliability before and after scaling",
        "focal loss is calibrated before scaling",
        _fig5,
        ("ce", "fl-3", "fla-53"),
    ),
    _figure(
        "fig6",
        "A model with two weights (App. G)",
        "the norm is larger for one of the losses",
        _fig6,
    ),
    _figure(
        "fig7",
        "Optimal prediction for a true probability",
        "focal loss prefers higher entropy",
        _fig7,
    ),
    _figure(
        "fig8",
        "Distribution of confidence",
        "scaling takes cross-entropy's confidence away",
        _fig8,
        ("ce", "fl-3", "fla-53"),
    ),
)
