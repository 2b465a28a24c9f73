"""GEO's open questions on networks small enough for a CPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from focalcal_papers.experiments.base import Analysis, Experiments, Finding, Material
from focalcal_papers.experiments.geo import not_measured, rank_correlation, which_architecture
from focalcal_papers.experiments.geo_recipes import TRAININGS, gamma_recipes
from focalcal_papers.experiments.ie_recipe import PERCEPTRON
from focalcal_papers.experiments.runs import Run
from focalcal_papers.experiments.settings import SMOKE, Settings
from focalcal_papers.figures import Table

WAYS: dict[str, Settings] = TRAININGS | {
    "fl-1": {"loss": "fl-1"},
    "strong label smoothing": {"loss": "ls-0.2"},
    "strong sam": {"loss": "ce", "sam": 0.2},
}
SEEDS = (0, 1, 2)
EXPERIMENTS = Experiments()
NETWORKS: dict[str, Settings] = {
    "mlp": {},
    "wide mlp": {"model_settings": {"hidden": 1024, "layers": 3}},
    "thin resnet18": {"model": "resnet18", "model_settings": {"width": 0.125}, "epochs": 30},
}
QUANTITIES: tuple[tuple[str, Callable[[Run], float]], ...] = (
    ("error %", lambda run: 100 * run.before["error"].value),
    ("ECE %", lambda run: 100 * run.before["ece"].value),
    ("T", lambda run: run.temperature),
    ("trace", lambda run: run.curvature["trace"]["value"]),
    ("λ max", lambda run: run.curvature["top"]["values"][0]),
)


def _recipes(scale: str) -> dict[str, Settings]:
    """Every way of training with every seed."""
    small = scale == "smoke"
    base, seeds = (SMOKE | {"epochs": 10}, SEEDS[:2]) if small else (PERCEPTRON, SEEDS)
    return {
        f"{name}-s{seed}": base | changes | {"seed": seed}
        for name, changes in WAYS.items()
        for seed in seeds
    }


def _way(run: Run) -> str:
    keys = ("loss", "mixup", "sam")
    own = {k: run.settings[k] for k in keys if run.settings.get(k)}
    return next(name for name, changes in WAYS.items() if changes == own)


@EXPERIMENTS.declare(
    "geo/open1-mlp",
    "Do other calibration methods reduce curvature? On a perceptron",
    "left open",
    recipes=_recipes,
    measures=("curvature",),
)
def _methods(material: Material) -> Analysis:
    """Means over seeds, and on which side of cross-entropy's the traces lie with every seed."""
    found: dict[str, list[Run]] = {}
    for run in material.runs:
        if run.curvature is not None:
            found.setdefault(_way(run), []).append(run)
    if "ce" not in found or len(found) < 2:
        return not_measured()
    findings, shown, means = [], [], {}
    for name, runs in found.items():
        cells = []
        for what, value in QUANTITIES:
            values = np.array([value(run) for run in runs])
            spread = f"{values.std(ddof=1):.2g}" if len(values) > 1 else "—"
            means[name, what] = float(values.mean())
            label = f"{what}, {name}, mean over seeds (std {spread})"
            findings.append(Finding(label, means[name, what], n=len(values)))
            cells.append(f"{means[name, what]:.3g} ± {spread}")
        shown.append((name, *cells, str(len(runs))))
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
    traces, errors = ([means[name, what] for name in found] for what in ("trace", "ECE %"))
    listed = {
        side: ", ".join(f"{name} ({means[name, 'trace']:.3g})" for name in names) or "none"
        for side, names in sides.items()
    }
    text = (
        f"Trace against that of cross-entropy ({means['ce', 'trace']:.3g}), outside both intervals "
        f"with every seed: lower for {listed['lower']}; higher for {listed['higher']}; neither "
        f"for {listed['neither']}. Rank correlation of mean ECE and mean trace over these "
        f"{len(found)} ways: {rank_correlation(traces, errors):+.2f}."
    )
    columns = ("trained with", *(what for what, _ in QUANTITIES), "seeds")
    table = Table("test set, mean ± std over seeds", columns, tuple(shown))
    return Analysis(tuple(findings), text, tables=(table,))


EXPERIMENTS.declare(
    "geo/open2-small",
    "Does the best curvature depend on the architecture? Small networks",
    "left open",
    recipes=partial(gamma_recipes, NETWORKS, base=PERCEPTRON),
    measures=("curvature",),
)(which_architecture)
