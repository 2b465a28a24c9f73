"""FTS (Komisarenko and Kull, ECAI 2024): Table 1 and Figures 1 to 8."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from focalcal.calibrators import FocalTemperatureScaling, TemperatureScaling
from focalcal.calibrators.focal import TEMPERATURES
from focalcal.maps import (
    closest_temperature,
    focal_log_map,
    focal_map,
    inverse_focal_map,
    temperature_error,
    tightest_temperature_bounds,
)
from focalcal.metrics import adaptive_ece, nll
from focalcal_papers.experiments import published
from focalcal_papers.experiments.base import Analysis, Experiment, Finding, Material
from focalcal_papers.experiments.ie_grid import seeds
from focalcal_papers.experiments.reference import number, rows
from focalcal_papers.experiments.runs import fitted, measured
from focalcal_papers.experiments.settings import BASES, TINY, Settings, is_published, with_losses
from focalcal_papers.figures import Panel, Table
from focalcal_papers.figures import fts as figures

LOSSES = ("ce", "fl-1", "fl-3", "fl-7", "flsd-53", "adafocal")
DATASETS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "tiny_imagenet": "TinyImageNet"}
SAME = {"fla-53": "flsd-53"}
"""One loss under two names."""


def calibrators(objective: str) -> dict[str, TemperatureScaling | FocalTemperatureScaling]:
    """Temperature and focal temperature scaling over the paper's grid, by the reported metric."""
    grid: dict = {"objective": objective, "temperatures": TEMPERATURES}
    if objective == "nll":
        return {"ts": TemperatureScaling(), "fts": FocalTemperatureScaling(search="grid")}
    return {"ts": TemperatureScaling(**grid), "fts": FocalTemperatureScaling(**grid)}


def _table1(material: Material) -> Analysis:
    printed = {
        (r["dataset"], r["training_loss"], r["calibrator"]): r
        for r in rows("focal_temperature_scaling")
    }
    findings, better, shown, dearer, corner = [], [], [], [], 0
    for run in material.runs:
        loss = SAME.get(run.loss, run.loss)
        if loss not in LOSSES:
            continue
        scores, cells, costs = {}, [], []
        setting = "" if run.settings["model"] == "resnet50" else "resnet50"
        for metric, scale, column, t_column in (
            ("nll", 1, "logloss", "T_logloss"),
            ("adaptive_ece", 100, "ece%_equal_mass15", "T_ece"),
        ):
            for name, calibrator in calibrators(metric).items():
                found = fitted(calibrator, run.calibration)
                probs = found.predict_proba(run.test.as_logits())
                e = measured(metric, run.test.labels, probs)
                paper = printed.get((DATASETS.get(run.settings["dataset"]), loss, name), {})
                at = f"T {found.temperature_:.2f}"
                if name == "fts":
                    at += f", γ {found.gamma_:g}"
                if paper.get(t_column):
                    at += f"; paper T {paper[t_column]}, γ {paper['gamma_ev'] or 0}"
                unit = "equal-mass ECE %" if scale == 100 else "log-loss"
                scores[metric, name] = e.value
                findings.append(
                    Finding(
                        f"{unit}, {run.label}, {name} ({at})",
                        scale * e.value,
                        number(paper.get(column)),
                        scale * e.low,
                        scale * e.high,
                        e.n,
                        setting=setting if paper.get(column) else "",
                    )
                )
                cells.append(f"{scale * e.value:.4g} ({at.split(';')[0]})")
                if metric == "adaptive_ece":
                    costs.append(nll(run.test.labels, probs))
                    corner += found.temperature_ >= TEMPERATURES[-1]
        shown.append((run.label, *cells, f"{costs[0]:.4f} / {costs[1]:.4f}"))
        dearer.append(100 * (costs[1] / costs[0] - 1))
        better.append(scores["adaptive_ece", "fts"] < scores["adaptive_ece", "ts"])
    text = (
        f"Focal temperature scaling has the lower equal-mass ECE for {sum(better)} of "
        f"{len(better)} networks. Its grid contains no γ = 0, so temperature scaling is not among "
        "its choices."
    )
    if dearer:
        text += (
            f" Chosen by ECE, its log-loss is {min(dearer):+.1f} to {max(dearer):+.1f} % against "
            "that of temperature scaling chosen by ECE."
        )
    if corner:
        text += f" Searches that end at the grid's largest T: {corner}."
    columns = (
        *("run", "log-loss, ts", "log-loss, fts", "equal-mass ECE %, ts", "ECE %, fts"),
        "log-loss of the last two",
    )
    table = Table("test set; parameters chosen on the calibration set", columns, tuple(shown))
    return Analysis(tuple(findings), text + seeds(material.runs), tables=(table,))


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


def _theory(panels: Callable[[], list[Panel]], checks: Callable[[], list[Finding]], text: str):
    def analyse(material: Material) -> Analysis:
        return Analysis(tuple(checks()), text, tuple(panels()))

    return analyse


def _check_maps() -> list[Finding]:
    p = np.array([0.7, 0.2, 0.1])
    back = np.abs(focal_map(inverse_focal_map(p, 3.0), 3.0) - p).max()
    return [Finding("largest |Ψ(Ψ⁻¹(p)) − p|, K = 3, γ = 3", float(back), 0.0, tolerance=1e-8)]


def _check_binary() -> list[Finding]:
    printed = {0.5: 0.76, 3.0: 0.36}
    found = [
        Finding(
            f"closest T, K = 2, γ = {g:g}", closest_temperature(g).temperature, v, tolerance=0.005
        )
        for g, v in printed.items()
    ]
    best = closest_temperature(0.45)
    line = max(temperature_error(g, 1 / (0.95 * g + 0.85)) for g in np.linspace(0, 10, 21))
    return [
        *found,
        Finding("largest error of the best T (γ = .45)", best.max_error, 1.21e-3, tolerance=5e-6),
        Finding("largest error of the printed line", line, 3.6e-2, tolerance=5e-4),
    ]


def _check_bounds() -> list[Finding]:
    tight = tightest_temperature_bounds(4.0)
    return [
        Finding("tightest lower T, γ = 4", tight.low, 0.2033, tolerance=5e-5),
        Finding("tightest upper T, γ = 4", tight.high, 0.2178, tolerance=5e-5),
    ]


def _check_simplex() -> list[Finding]:
    printed = {0.5: 0.81, 2.0: 0.46}
    return [
        Finding(
            f"closest T, K = 3, γ = {g:g}",
            closest_temperature(g, 3).temperature,
            v,
            tolerance=0.006,
        )
        for g, v in printed.items()
    ]


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
        "slope is .489 and the error 12.7 %, not .47 and 8 %."
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


def landscape_analysis(
    name: str, logits: np.ndarray, labels: np.ndarray
) -> tuple[list[Finding], list[Panel]]:
    """How well the best T for each γ ≤ 1 lies on the line through γ = −.25 and 1; Figure 8."""
    from focalcal.report.landscape import landscape

    found = landscape(logits, labels)
    best = found.temperatures[found.errors.argmin(axis=1)]
    line = found.offset + found.slope * found.gammas
    apart = float(np.abs(best - line)[found.gammas <= 1].max())
    errors = [
        100 * adaptive_ece(labels, np.exp(focal_log_map(logits / t, gamma)))
        for gamma, t in (found.grid, found.line)
    ]
    values = (found.slope, found.offset, apart, *found.grid, *errors)
    findings = [
        Finding(f"{k}, {name}", float(v), n=len(labels)) for k, v in zip(QUANTITIES, values)
    ]
    points = {"grid": found.grid, "line": found.line}
    shown = (found.gammas, found.temperatures, found.errors, points)
    return findings, figures.figure8(*shown, (found.offset, found.slope), title=name)


def _figure8(material: Material) -> Analysis:
    findings, panels = [], []
    for name, part in _calibration_parts(material)[:8]:
        numbers, drawn = landscape_analysis(name, part.as_logits(), part.labels)
        findings += numbers
        panels += drawn
    text = (
        "Low calibration errors form a valley along a nearly straight line in (γ, T): the larger "
        "γ_ev, the larger the T that goes with it. Why: see fts/open2."
    )
    return Analysis(tuple(findings), text, tuple(panels), landscape_table(findings))


def landscape_table(findings: list[Finding]) -> tuple[Table, ...]:
    """The numbers of `landscape_analysis` with a row per network."""
    by_network: dict[str, dict[str, float]] = {}
    for f in findings:
        quantity, name = next(
            (q, f.what.removeprefix(f"{q}, ")) for q in QUANTITIES if f.what.startswith(f"{q}, ")
        )
        by_network.setdefault(name, {})[quantity] = f.ours
    rows_ = tuple((name, *(f"{v:.3g}" for v in d.values())) for name, d in by_network.items())
    return (Table("calibration set", ("network", *QUANTITIES), rows_),) if rows_ else ()


def _calibration_parts(material: Material) -> list[tuple[str, published.Predictions]]:
    """Calibration sets of the trained runs and of the published networks."""
    trained = [(run.label, run.calibration) for run in material.runs]
    return trained + [(net.name, net.calibration) for net in published.networks(material.data)]


def _few(losses: tuple[str, ...], scale: str) -> dict[str, Settings]:
    return with_losses(BASES[scale], losses)


def accepts_image(settings: Settings) -> bool:
    return settings["dataset"] in DATASETS and is_published(settings)


EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        "fts/table1",
        "Temperature and focal temperature scaling after six losses",
        "focal temperature scaling lowers equal-mass ECE, most so after cross-entropy",
        _table1,
        _table1_recipes,
        accepts_image,
    ),
    Experiment(
        "fts/fig1",
        "Focal loss as a proper loss after a confidence-raising map",
        "focal loss decomposes into Ψ and a proper loss",
        _theory(figures.figure1, _check_maps, "FL(q) = L*(Ψ(q)); Ψ⁻¹ is its inverse."),
    ),
    Experiment(
        "fts/fig2",
        "Ψ beside its closest temperature, two classes",
        "T = .76 and .36",
        _theory(
            figures.figure2,
            _check_binary,
            "T is .731 and .276; Ψ is a temperature to 1.2e-3, the printed line is not.",
        ),
    ),
    Experiment(
        "fts/fig3",
        "Bounds on Ψ by two temperatures",
        "Prop. 3 (printed with the inequality reversed)",
        _theory(figures.figure3, _check_bounds, "The corrected direction holds everywhere drawn."),
    ),
    Experiment(
        "fts/fig4",
        "Where Ψ moves three-class probabilities",
        "Ψ raises confidence (Prop. 5)",
        _theory(
            figures.figure4, _check_maps, "For three classes it does; from four on not always."
        ),
    ),
    Experiment(
        "fts/fig5",
        "Ψ less its closest temperature on the simplex",
        "T = .81 and .46, without saying for which γ",
        _theory(figures.figure5, _check_simplex, "They belong to γ = .5 and 2."),
    ),
    Experiment(
        "fts/fig6",
        "Isolines of the properised loss",
        "the properised loss keeps more of its slope where confidence is low",
        _theory(figures.figure6, _check_maps, "At γ = 0 they are those of the log-loss."),
    ),
    Experiment(
        "fts/fig7",
        "Closest temperature against γ for 2, 3, 4 classes",
        "1/T is linear in γ: .95γ+.85, .644γ+.901, .47γ+.85 with errors up to 8 %",
        _figure7,
    ),
    Experiment(
        "fts/fig8",
        "Calibration error over γ_ev and T",
        "the best (γ_ev, T) lie on a line",
        _figure8,
        partial(_few, ("ce", "fl-3")),
        lambda s: accepts_image(s) and s["loss"] in ("ce", "fl-3", "fla-53"),
        files=(published.GOLDEN,),
    ),
)
