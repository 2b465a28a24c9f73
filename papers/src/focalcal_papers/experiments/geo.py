"""GEO (Kimura and Naganuma): Figures 1 to 4 and its three open questions, on small networks too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
from scipy.stats import rankdata

from focalcal.maps import focal_loss_derivative
from focalcal_papers.errata import logit_curvature
from focalcal_papers.experiments.base import Analysis, Experiments, Finding, Material
from focalcal_papers.experiments.geo_recipes import (
    AWARE,
    NETWORKS,
    SMALL_NETWORKS,
    TRAININGS,
    WAYS,
    gamma_recipes,
    method_recipes,
    perceptron_recipes,
    tau_recipes,
)
from focalcal_papers.experiments.ie_grid import seeds
from focalcal_papers.experiments.runs import CHANGES, Run, grouped
from focalcal_papers.experiments.settings import PERCEPTRON, Settings, accepts_cifar10
from focalcal_papers.figures import Table
from focalcal_papers.figures import geo as figures
from focalcal_papers.figures.geo import CurvaturePoint

FIXED = ("ce", *(f"fl-{gamma}" for gamma in range(1, 11)))
"""Losses with one γ."""
NO_CURVATURE = "no run with a measured Hessian; measure one with: focalcal curvature RUN --json"


def _accepts_methods(settings: Settings) -> bool:
    """Runs with mixup and SAM too."""
    return accepts_cifar10(settings | {"mixup": 0, "sam": 0})


EXPERIMENTS = Experiments()
_ACCEPTED = partial(accepts_cifar10, shortened=True)
_measured = partial(EXPERIMENTS.declare, accepts=_ACCEPTED, measures=("curvature",))


def _point(run: Run, x: float) -> CurvaturePoint:
    trace = run.curvature["trace"]
    top = run.curvature["top"]["values"][0] if run.curvature.get("top") else float("nan")
    ends = trace["low"], trace["high"]
    return CurvaturePoint(x, trace["value"], *ends, top, run.before["ece"].value)


def _curved(material: Material) -> list[Run]:
    return [run for run in material.runs if run.curvature is not None]


def _findings(run: Run) -> list[Finding]:
    point, n = _point(run, 0.0), int(run.curvature["n"])
    return [
        Finding(f"trace, {run.label}", point.trace, None, point.low, point.high, n),
        Finding(f"λ max, {run.label}", point.top, n=n),
        Finding.percent(f"ECE %, {run.label}", run.before["ece"]),
    ]


def _by_network(
    material: Material, fixed: bool = True
) -> tuple[dict[str, list[CurvaturePoint]], list[Finding]]:
    """Points by network and length of training.

    fixed: only of losses with one γ, seeds together.
    """
    runs = [run for run in _curved(material) if not fixed or run.gamma is not None]
    findings = [finding for run in runs for finding in _findings(run)]
    by_name = grouped(runs, lambda run: f"{run.network}, {run.settings['epochs']} epochs")
    points = {k: [_point(run, run.gamma or 0.0) for run in own] for k, own in by_name.items()}
    if fixed:
        points = {name: _over_seeds(found) for name, found in points.items()}
    return points, findings


def _over_seeds(points: list[CurvaturePoint]) -> list[CurvaturePoint]:
    """Means of the points with one γ, their intervals together, in the order of γ."""
    found = []
    for x in sorted({p.x for p in points}):
        own = [p for p in points if p.x == x]
        trace, top, ece = np.mean([(p.trace, p.top, p.ece) for p in own], axis=0).tolist()
        low, high = min(p.low for p in own), max(p.high for p in own)
        found.append(CurvaturePoint(x, trace, low, high, top, ece))
    return found


def not_measured(reason: str = NO_CURVATURE) -> Analysis:
    """The analysis where too few runs have a measured Hessian."""
    return Analysis.not_run("curvature", reason)


def _by_length(material: Material) -> list[tuple[int, Material]]:
    """The measured runs that were trained for equally long, the longest first."""
    runs = grouped(_curved(material), lambda run: run.settings["epochs"])
    return [(n, replace(material, runs=tuple(runs[n]))) for n in sorted(runs, reverse=True)]


@EXPERIMENTS.declare(
    "geo/fig1",
    "Loss, slope and curvature against p",
    "the gradient stays away from 0 at p → 1 unless γ > ½",
)
def _fig1(material: Material) -> Analysis:
    plain, focal = (logit_curvature(0.27, gamma) for gamma in (0.0, 3.0))
    slope = float(focal_loss_derivative(1 - 1e-9, 0.25))
    findings = (
        Finding("d²FL/ds² at p = .27, cross-entropy", plain, 0.197, tolerance=5e-4),
        Finding("d²FL/ds² at p = .27, γ = 3", focal, 0.570, tolerance=5e-4),
        Finding("dFL/dp at p = 1 − 1e-9, γ = .25", slope, 0.0, tolerance=0.01),
    )
    text = (
        "dFL/dp → 0 as p → 1 for every γ > 0, so the advice γ > ½ does not follow; curvature rises "
        "at low p and falls at high p. CE is γ = 0."
    )
    return Analysis(findings, text, tuple(figures.figure1()))


def _falls(points: dict[str, list[CurvaturePoint]]) -> str:
    parts = []
    for name, found in points.items():
        if len(found) < 2:
            continue
        first, last = found[0], found[-1]
        change = "falls" if last.high < first.low else "rises" if last.low > first.high else "stays"
        tops = ", ".join(f"{p.top:.3g}" for p in found)
        parts.append(
            f"{name}: {change}, {first.trace:.3g} at γ = {first.x:g} to {last.trace:.3g} "
            f"at γ = {last.x:g}, λ max {tops} in the order of γ"
        )
    text = "Trace of the cross-entropy Hessian on test data. "
    return text + ("; ".join(parts) or "One γ only, so whether it falls stays open here") + "."


@_measured(
    "geo/fig2",
    "Curvature against γ",
    "trace and largest eigenvalue fall with γ",
    recipes=partial(gamma_recipes, NETWORKS),
    losses=FIXED,
)
def _fig2(material: Material) -> Analysis:
    points, findings = _by_network(material)
    if not points:
        return not_measured()
    fixed = [run for run in _curved(material) if run.gamma is not None]
    text = _falls(points) + seeds(fixed, "given as means")
    return Analysis(tuple(findings), text, tuple(figures.figure2(points)))


@_measured(
    "geo/fig3",
    "ECE against curvature",
    "a cubic fit of ECE on the trace has a minimum",
    recipes=partial(gamma_recipes, NETWORKS),
)
def _fig3(material: Material) -> Analysis:
    """Networks that were trained for equally long are compared with each other."""
    parts = [
        _ece_and_trace(own, epochs)
        for epochs, own in _by_length(material)
        if sum(run.curvature["trace"]["value"] > 0 for run in own.runs) > 2
    ]
    if not parts:
        return not_measured("fewer than three runs of one length have a measured Hessian")
    return Analysis(
        tuple(f for part in parts for f in part.findings),
        " ".join(part.conclusion for part in parts) + seeds(_curved(material), "each run a point"),
        tuple(panel for part in parts for panel in part.panels),
    )


def _ece_and_trace(material: Material, epochs: int) -> Analysis:
    points, findings = _by_network(material, fixed=False)
    kept = {name: [p for p in found if p.trace > 0] for name, found in points.items()}
    every = [p for found in kept.values() for p in found]
    rank = rank_correlation([p.trace for p in every], [p.ece for p in every])
    findings.append(
        Finding(f"rank correlation of ECE and trace, {epochs} epochs", rank, n=len(every))
    )
    text = f"{epochs} epochs, all losses and networks: the rank correlation of ECE and trace is "
    text += f"{rank:+.2f}, n = {len(every)}. "
    what = f"R² of the cubic fit of ECE on ln trace, {epochs} epochs"
    if len(every) < 6:  # a cubic has four coefficients
        reason = f"{len(every)} networks are too few"
        findings.append(Finding(what, reason=reason))
        return Analysis(tuple(findings), text + f"The cubic fit is left out: {reason}.")
    fit = figures.cubic_fit([p.trace for p in every], [100 * p.ece for p in every])
    findings.append(Finding(what, fit.r_squared, n=fit.n))
    text += (
        f"R² of the cubic fit on ln trace is {fit.r_squared:.2f} over {fit.n} networks. A "
        "cubic follows a minimum where one exists; it says nothing about cause."
    )
    return Analysis(
        tuple(findings), text, tuple(figures.figure3({k: v for k, v in kept.items() if v}))
    )


def rank_correlation(x: list[float], y: list[float]) -> float:
    """Spearman's, ties sharing their rank; NaN where one of them is constant.

    >>> rank_correlation([1, 2, 4], [3, 2, 1])
    -1.0
    """
    if any(len(set(v)) < 2 for v in (x, y)):
        return float("nan")
    return round(float(np.corrcoef(rankdata(x), rankdata(y))[0, 1]), 12)


@_measured(
    "geo/fig4",
    "Explicit curvature penalty on a perceptron",
    "the penalty lowers the trace and, to a point, the ECE",
    recipes=tau_recipes,
    accepts=lambda s: s["dataset"] == "cifar10" and "+curvature" in s["loss"],
)
def _fig4(material: Material) -> Analysis:
    runs = [run for run in _curved(material) if run.loss == "ce+curvature"]
    if not runs:
        return not_measured()
    points, findings, parts = {}, [], []
    for rate, own in grouped(runs, lambda run: f"lr {run.settings['lr']:g}").items():
        found = [_point(run, run.settings["loss_settings"]["tau"]) for run in own]
        points[rate] = found
        errors = {p.x: 100 * run.before["error"].value for run, p in zip(own, found)}
        for run, p in zip(own, found):
            label, n = f"τ = {p.x:g}, {rate}", int(run.curvature["n"])
            findings += [
                Finding(f"trace, {label}", p.trace, None, p.low, p.high, n),
                Finding.percent(f"ECE %, {label}", run.before["ece"]),
                Finding.percent(f"error %, {label}", run.before["error"]),
            ]
        plain = next((p for p in found if p.x == 0), found[0])
        best = min(found, key=lambda p: p.ece)
        least = min(found, key=lambda p: p.trace)
        lowest = "and no lower with it"
        if best is not plain:
            lowest = f"least {100 * best.ece:.1f} % at τ = {best.x:g}, where the error goes from "
            lowest += f"{errors[plain.x]:.1f} to {errors[best.x]:.1f} %"
        parts.append(
            f"{rate}: trace {plain.trace:.3g} without it, least {least.trace:.3g} at τ = "
            f"{least.x:g}; ECE {100 * plain.ece:.1f} % without it, {lowest}"
        )
    epochs = ", ".join(sorted({str(r.settings["epochs"]) for r in material.runs}))
    text = f"The explicit penalty, {epochs} epochs, one seed; rates and τ are our choice. "
    text += "; ".join(parts) + "."
    return Analysis(tuple(findings), text, tuple(figures.figure4(points)))


def _losses(methods: tuple[str, ...]) -> tuple[str, ...]:
    return (*dict.fromkeys(WAYS[name]["loss"] for name in methods), "fla-53")


QUANTITIES: tuple[tuple[str, Callable[[Run], float]], ...] = (
    ("error %", lambda run: 100 * run.before["error"].value),
    ("ECE %", lambda run: 100 * run.before["ece"].value),
    ("T", lambda run: run.temperature),
    ("trace", lambda run: run.curvature["trace"]["value"]),
    ("λ max", lambda run: _point(run, 0).top),
)


def _way(run: Run) -> str:
    own = {k: run.settings[k] for k in ("loss", *CHANGES) if run.settings.get(k)}
    found = (name for name, changes in WAYS.items() if changes == own)
    return next(found, ", ".join(map(str, own.values())))


def compare_ways(wanted: tuple[str, ...], material: Material) -> Analysis:
    """Ways of training on one network: means over seeds, and the traces beside cross-entropy's."""
    compared = [r for r in _curved(material) if _way(r) in wanted or r.loss == "fla-53"]
    by_network = grouped(compared, lambda run: run.network)
    networks = {name: grouped(own, _way) for name, own in by_network.items()}
    network = max(networks, key=lambda k: ("ce" in networks[k], len(networks[k])), default="")
    found = networks.get(network, {})
    asked = [name for name in wanted if name not in ("ce", "fl-3")]
    if "ce" not in found or not any(name in found for name in asked):
        lacking = asked if "ce" in found else ["ce"]
        return not_measured(
            f"no run with a measured Hessian was trained with {' or '.join(lacking)}"
        )
    findings, shown, means = [], [], {}
    for name, runs in found.items():
        cells = []
        for what, value in QUANTITIES:
            values = np.array([value(run) for run in runs])
            spread = f"{values.std(ddof=1):.2g}" if len(values) > 1 else "—"
            means[name, what] = float(values.mean())
            label = f"{what}, {network}, {name}, mean over seeds (std {spread})"
            findings.append(Finding(label, means[name, what], n=len(values)))
            cells.append(f"{means[name, what]:.3g} ± {spread}")
        shown.append((name, *cells, str(len(runs))))
    traces, errors = ([means[name, what] for name in found] for what in ("trace", "ECE %"))
    listed = {
        side: ", ".join(f"{name} ({means[name, 'trace']:.3g})" for name in names) or "none"
        for side, names in _sides(found).items()
    }
    text = (
        f"{network}: trace against that of cross-entropy ({means['ce', 'trace']:.3g}), outside "
        f"both intervals with every seed: lower for {listed['lower']}; higher for "
        f"{listed['higher']}; neither for {listed['neither']}. Rank correlation of mean ECE and "
        f"mean trace over these {len(found)} ways: {rank_correlation(traces, errors):+.2f}."
    )
    if absent := [name for name in wanted if name not in found]:
        text += f" Not run: {', '.join(absent)}."
    columns = ("trained with", *(what for what, _ in QUANTITIES), "seeds")
    table = Table("test set, mean ± std over seeds", columns, tuple(shown))
    return Analysis(tuple(findings), text, tables=(table,))


def _sides(found: dict[str, list[Run]]) -> dict[str, list[str]]:
    """On which side of cross-entropy's trace that of each other way lies with every seed."""
    ce = {run.settings["seed"]: run.curvature["trace"] for run in found["ce"]}
    sides: dict[str, list[str]] = {"lower": [], "higher": [], "neither": []}
    for name, runs in found.items():
        pairs = [(r.curvature["trace"], ce.get(r.settings["seed"])) for r in runs]
        known = [(own, other) for own, other in pairs if other is not None]
        if name == "ce" or not known:
            continue
        lower = all(own["high"] < other["low"] for own, other in known)
        higher = all(own["low"] > other["high"] for own, other in known)
        sides["lower" if lower else "higher" if higher else "neither"].append(name)
    return sides


def which_architecture(material: Material, same_length: bool = False) -> Analysis:
    """The trace at the best γ of each network; among those trained for equally long, if asked."""
    points, findings = _by_network(material)
    if not points:
        return not_measured()
    parts = []
    for own in [m for _, m in _by_length(material)] if same_length else [material]:
        several = {k: found for k, found in _by_network(own)[0].items() if len(found) > 1}
        best = {k: min(found, key=lambda p: p.ece) for k, found in several.items()}
        parts += [
            f"{name} {p.trace:.3g} (γ = {p.x:g}, ECE {100 * p.ece:.2f} %)"
            for name, p in best.items()
            if len(best) > 1
        ]
    text = "Trace at the γ of lowest ECE"
    text += ", among networks trained for equally long: " if same_length else ": "
    text += "; ".join(parts) or "no two with several γ, so the question stays open here"
    fixed = [run for run in _curved(material) if run.gamma is not None]
    text += "." + seeds(fixed, "given as means")
    rows = tuple(
        (name, f"{p.x:g}", f"{p.trace:.3g}", f"{p.top:.3g}", f"{100 * p.ece:.2f}")
        for name, found in points.items()
        for p in found
    )
    table = Table("test set", ("network", "γ", "trace", "λ max", "ECE %"), rows)
    return Analysis(tuple(findings), text, tuple(figures.figure2(points)), (table,))


_measured(
    "geo/open1",
    "Do other calibration methods reduce curvature?",
    "left open",
    recipes=partial(method_recipes, tuple(TRAININGS)),
    losses=_losses(tuple(TRAININGS)),
    accepts=_accepts_methods,
)(partial(compare_ways, tuple(TRAININGS)))
_measured(
    "geo/open2",
    "Does the best curvature depend on the architecture?",
    "left open",
    recipes=partial(gamma_recipes, NETWORKS),
    losses=FIXED,
)(partial(which_architecture, same_length=True))
_measured(
    "geo/open3",
    "Other curvature-aware training: SAM, mixup",
    "left open",
    recipes=partial(method_recipes, AWARE),
    losses=_losses(AWARE),
    accepts=_accepts_methods,
)(partial(compare_ways, AWARE))

# The same questions on networks small enough for a CPU.
EXPERIMENTS.declare(
    "geo/open1-mlp",
    "Do other calibration methods reduce curvature? On a perceptron",
    "left open",
    recipes=perceptron_recipes,
    measures=("curvature",),
)(partial(compare_ways, tuple(WAYS)))
EXPERIMENTS.declare(
    "geo/open2-small",
    "Does the best curvature depend on the architecture? Small networks",
    "left open",
    recipes=partial(gamma_recipes, SMALL_NETWORKS, base=PERCEPTRON),
    measures=("curvature",),
)(which_architecture)
