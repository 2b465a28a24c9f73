"""FTS (Komisarenko and Kull, ECAI 2024): Table 1 and Figures 1 to 8."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from focalcal import maps
from focalcal.calibrators import FocalTemperatureScaling, TemperatureScaling
from focalcal.calibrators.focal import TEMPERATURES
from focalcal.metrics import adaptive_ece, nll
from focalcal_papers.experiments import published
from focalcal_papers.experiments.base import Analysis, Experiments, Finding, Material
from focalcal_papers.experiments.ie_grid import seeds
from focalcal_papers.experiments.published import Network, all_networks
from focalcal_papers.experiments.reference import PRINTED_DATASETS, number, rows
from focalcal_papers.experiments.runs import IMAGES, evaluated, fitted
from focalcal_papers.experiments.settings import (
    BASES,
    SAME_LOSS,
    TINY,
    Settings,
    is_published,
    loss_recipes,
    with_losses,
)
from focalcal_papers.figures import Table
from focalcal_papers.figures import fts as figures

LOSSES = ("ce", "fl-1", "fl-3", "fl-7", "flsd-53", "adafocal")
FTS_NAME = {ours: theirs for theirs, ours in SAME_LOSS.items()}
EXPERIMENTS = Experiments()


def calibrators(objective: str) -> dict[str, TemperatureScaling | FocalTemperatureScaling]:
    """Temperature and focal temperature scaling over the paper's grid, by the reported metric."""
    grid: dict = {"objective": objective, "temperatures": TEMPERATURES}
    if objective == "nll":
        return {"ts": TemperatureScaling(), "fts": FocalTemperatureScaling(search="grid")}
    return {"ts": TemperatureScaling(**grid), "fts": FocalTemperatureScaling(**grid)}


def accepts_image(settings: Settings) -> bool:
    return settings["dataset"] in IMAGES and is_published(settings)


def _table1_recipes(scale: str) -> dict[str, Settings]:
    if scale != "paper":
        return with_losses(BASES[scale], LOSSES)
    image = BASES["paper"]
    bases = (image, image | {"dataset": "cifar100"}, TINY)
    return {
        f"{name}-s{seed}": settings | {"seed": seed}
        for base in bases
        for name, settings in with_losses(base, LOSSES).items()
        for seed in range(5)
    }


REPORTED = (
    ("nll", 1, "log-loss", "logloss", "T_logloss"),
    ("adaptive_ece", 100, "equal-mass ECE %", "ece%_equal_mass15", "T_ece"),
)
"""Metrics of Table 1: ours, a factor, how it is written, and the reference's two columns."""


@EXPERIMENTS.declare(
    "fts/table1",
    "Temperature and focal temperature scaling after six losses",
    "focal temperature scaling lowers equal-mass ECE, most so after cross-entropy",
    recipes=_table1_recipes,
    accepts=accepts_image,
    losses=(*LOSSES, *FTS_NAME),
)
def _table1(material: Material) -> Analysis:
    printed = {
        (r["dataset"], r["training_loss"], r["calibrator"]): r
        for r in rows("focal_temperature_scaling")
    }
    findings, shown, dearer, lower, corners = [], [], [], 0, 0
    runs = [run for run in material.runs if FTS_NAME.get(run.loss, run.loss) in LOSSES]
    for run in runs:
        loss = FTS_NAME.get(run.loss, run.loss)
        place, cells = (PRINTED_DATASETS.get(run.settings["dataset"]), loss), []
        for metric, scale, unit, column, t_column in REPORTED:
            errors, costs = [], []
            for name, calibrator in calibrators(metric).items():
                found = fitted(calibrator, run.calibration)
                probs = found.predict_proba(run.test.as_logits())
                e = evaluated(run.test.labels, probs)[metric]
                at = f"T {found.temperature_:.2f}"
                at += f", γ {found.gamma_:g}" if name == "fts" else ""
                cells.append(f"{scale * e.value:.4g} ({at})")
                paper = printed.get((*place, name), {})
                if paper.get(t_column):
                    at += f"; paper T {paper[t_column]}, γ {paper['gamma_ev'] or 0}"
                same = run.settings["model"] == "resnet50" or not paper.get(column)
                what, theirs = f"{unit}, {run.label}, {name} ({at})", number(paper.get(column))
                setting = "" if same else "resnet50"
                findings.append(Finding.of(what, e, theirs, scale, setting=setting))
                errors.append(e.value)
                costs.append(nll(run.test.labels, probs))
                by_ece = metric == "adaptive_ece"
                corners += by_ece and found.temperature_ >= TEMPERATURES[-1]
        # Of the last metric, the ECE: temperature scaling, then focal temperature scaling.
        lower += errors[1] < errors[0]
        dearer.append(100 * (costs[1] / costs[0] - 1))
        shown.append((run.label, *cells, " / ".join(f"{cost:.4f}" for cost in costs)))
    text = (
        f"Focal temperature scaling has the lower equal-mass ECE for {lower} of "
        f"{len(shown)} networks. Its grid contains no γ = 0, so temperature scaling is not among "
        "its choices."
    )
    if shown:
        text += (
            f" Chosen by ECE, its log-loss is {min(dearer):+.1f} to {max(dearer):+.1f} % against "
            "that of temperature scaling chosen by ECE."
        )
    text += f" Searches that end at the grid's largest T: {corners}." if corners else ""
    columns = (
        *("run", "log-loss, ts", "log-loss, fts", "equal-mass ECE %, ts", "ECE %, fts"),
        "log-loss of the last two",
    )
    table = Table("test set; parameters chosen on the calibration set", columns, tuple(shown))
    return Analysis(tuple(findings), text + seeds(runs, "each run a row"), tables=(table,))


def _inverse_check() -> tuple[Finding, ...]:
    p = np.array([0.7, 0.2, 0.1])
    back = np.abs(maps.focal_map(maps.inverse_focal_map(p, 3.0), 3.0) - p).max()
    return (Finding("largest |Ψ(Ψ⁻¹(p)) − p|, K = 3, γ = 3", float(back), 0.0, tolerance=1e-8),)


def _closest(gamma: float, n_classes: int, printed: float, tolerance: float) -> Finding:
    found = maps.closest_temperature(gamma, n_classes).temperature
    what = f"closest T, K = {n_classes}, γ = {gamma:g}"
    return Finding(what, found, printed, tolerance=tolerance)


@EXPERIMENTS.declare(
    "fts/fig1",
    "Focal loss as a proper loss after a confidence-raising map",
    "focal loss decomposes into Ψ and a proper loss",
)
def _figure1(material: Material) -> Analysis:
    text = "FL(q) = L*(Ψ(q)); Ψ⁻¹ is its inverse."
    return Analysis(_inverse_check(), text, tuple(figures.figure1()))


@EXPERIMENTS.declare("fts/fig2", "Ψ beside its closest temperature, two classes", "T = .76 and .36")
def _figure2(material: Material) -> Analysis:
    best = maps.closest_temperature(0.45).max_error
    line = max(maps.temperature_error(g, 1 / (0.95 * g + 0.85)) for g in np.linspace(0, 10, 21))
    findings = (
        _closest(0.5, 2, 0.76, 0.005),
        _closest(3.0, 2, 0.36, 0.005),
        Finding("largest error of the best T (γ = .45)", best, 1.21e-3, tolerance=5e-6),
        Finding("largest error of the printed line", line, 3.6e-2, tolerance=5e-4),
    )
    text = "T is .731 and .276; Ψ is a temperature to 1.2e-3, the printed line is not."
    return Analysis(findings, text, tuple(figures.figure2()))


@EXPERIMENTS.declare(
    "fts/fig3", "Bounds on Ψ by two temperatures", "Prop. 3 (printed with the inequality reversed)"
)
def _figure3(material: Material) -> Analysis:
    tight = maps.tightest_temperature_bounds(4.0)
    findings = (
        Finding("tightest lower T, γ = 4", tight.low, 0.2033, tolerance=5e-5),
        Finding("tightest upper T, γ = 4", tight.high, 0.2178, tolerance=5e-5),
    )
    text = "The corrected direction holds everywhere drawn."
    return Analysis(findings, text, tuple(figures.figure3()))


@EXPERIMENTS.declare(
    "fts/fig4", "Where Ψ moves three-class probabilities", "Ψ raises confidence (Prop. 5)"
)
def _figure4(material: Material) -> Analysis:
    text = "For three classes it does; from four on not always."
    return Analysis(_inverse_check(), text, tuple(figures.figure4()))


@EXPERIMENTS.declare(
    "fts/fig5",
    "Ψ less its closest temperature on the simplex",
    "T = .81 and .46, without saying for which γ",
)
def _figure5(material: Material) -> Analysis:
    findings = (_closest(0.5, 3, 0.81, 0.006), _closest(2.0, 3, 0.46, 0.006))
    return Analysis(findings, "They belong to γ = .5 and 2.", tuple(figures.figure5()))


@EXPERIMENTS.declare(
    "fts/fig6",
    "Isolines of the properised loss",
    "the properised loss keeps more of its slope where confidence is low",
)
def _figure6(material: Material) -> Analysis:
    text = "At γ = 0 they are those of the log-loss."
    return Analysis(_inverse_check(), text, tuple(figures.figure6()))


@EXPERIMENTS.declare(
    "fts/fig7",
    "Closest temperature against γ for 2, 3, 4 classes",
    "1/T is linear in γ: .95γ+.85, .644γ+.901, .47γ+.85 with errors up to 8 %",
)
def _figure7(material: Material) -> Analysis:
    panels = figures.figure7()
    inverse, errors = panels
    findings = []
    printed = {2: (0.95, 0.85, None), 3: (0.644, 0.901, 0.078), 4: (0.47, 0.85, 0.08)}
    lines = [c for c in inverse.curves if c.style == "--"]
    for (k, (slope, offset, error)), line, left in zip(printed.items(), lines, errors.curves):
        b, a = np.polyfit(line.x, line.y, 1)
        findings += [
            Finding(f"slope of 1/T, K = {k}", float(b), slope, tolerance=0.01),
            Finding(f"offset of 1/T, K = {k}", float(a), offset, tolerance=0.06),
        ]
        if error:
            worst = float(left.y.max())
            findings.append(Finding(f"largest error, K = {k}", worst, error, tolerance=0.005))
    text = (
        "K = 3 agrees. For K = 2 the line errs more than the best T by far, and for K = 4 the "
        "slope is .49 and the error 12.8 %, not .47 and 8 %."
    )
    return Analysis(tuple(findings), text, tuple(panels))


QUANTITIES = (
    "slope of T on γ",
    "T at γ = 0 on the line",
    "largest distance of the best T from the line, γ ≤ 1",
    "γ of the grid's optimum",
    "T of the grid's optimum",
    "equal-mass ECE % of the grid's optimum",
    "equal-mass ECE % of the line's optimum",
)


def landscapes(nets: Sequence[Network], most: int) -> Analysis:
    """How well the best T for each γ ≤ 1 lies on the line through γ = −.25 and 1; Figure 8.

    most: only of that many networks, the first.
    """
    from focalcal.report.landscape import landscape

    findings, panels, shown = [], [], []
    for net in nets[:most]:
        logits, labels = net.calibration.as_logits(), net.calibration.labels
        found = landscape(logits, labels)
        best = found.temperatures[found.errors.argmin(axis=1)]
        line = found.offset + found.slope * found.gammas
        apart = np.abs(best - line)[found.gammas <= 1].max()
        errors = [
            100 * adaptive_ece(labels, np.exp(maps.focal_log_map(logits / t, gamma)))
            for gamma, t in (found.grid, found.line)
        ]
        values = (found.slope, found.offset, apart, *found.grid, *errors)
        findings += [
            Finding(f"{k}, {net.name}", float(v), n=len(labels)) for k, v in zip(QUANTITIES, values)
        ]
        shown.append((net.name, *(f"{v:.3g}" for v in values)))
        points = {"grid": found.grid, "line": found.line}
        drawn = (found.gammas, found.temperatures, found.errors, points)
        panels += figures.figure8(*drawn, (found.offset, found.slope), title=net.name)
    table = Table("calibration set", ("network", *QUANTITIES), tuple(shown))
    note = f" Shown are the first {most} of {len(nets)} networks." if len(nets) > most else ""
    return Analysis(tuple(findings), note, tuple(panels), (table,) if shown else ())


@EXPERIMENTS.declare(
    "fts/fig8",
    "Calibration error over γ_ev and T",
    "the best (γ_ev, T) lie on a line",
    recipes=partial(loss_recipes, ("ce", "fl-3")),
    accepts=lambda s: accepts_image(s) and s["loss"] in ("ce", "fl-3", "fla-53"),
    files=(published.GOLDEN,),
)
def _figure8(material: Material) -> Analysis:
    text = (
        "Low calibration errors form a valley along a nearly straight line in (γ, T): the larger "
        "γ_ev, the larger the T that goes with it. Why: see fts/open2."
    )
    found = landscapes(all_networks(material), 8)
    return replace(found, conclusion=text + found.conclusion)
