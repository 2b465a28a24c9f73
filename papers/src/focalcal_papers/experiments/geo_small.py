"""GEO's open questions on networks small enough for a CPU."""

from __future__ import annotations

from functools import partial

from focalcal_papers.experiments.base import Experiments
from focalcal_papers.experiments.geo import compare_ways, which_architecture
from focalcal_papers.experiments.geo_recipes import WAYS, gamma_recipes
from focalcal_papers.experiments.ie_recipe import PERCEPTRON
from focalcal_papers.experiments.settings import SMOKE, Settings

SEEDS = (0, 1, 2)
EXPERIMENTS = Experiments()
NETWORKS: dict[str, Settings] = {
    "mlp": {},
    "wide mlp": {"model_settings": {"hidden": 1024, "layers": 3}},
    "thin resnet18": {"model": "resnet18", "model_settings": {"width": 0.125}, "epochs": 30},
}


def _recipes(scale: str) -> dict[str, Settings]:
    """Every way of training with every seed."""
    small = scale == "smoke"
    base, seeds = (SMOKE | {"epochs": 10}, SEEDS[:2]) if small else (PERCEPTRON, SEEDS)
    return {
        f"{name}-s{seed}": base | changes | {"seed": seed}
        for name, changes in WAYS.items()
        for seed in seeds
    }


EXPERIMENTS.declare(
    "geo/open1-mlp",
    "Do other calibration methods reduce curvature? On a perceptron",
    "left open",
    recipes=_recipes,
    measures=("curvature",),
)(partial(compare_ways, tuple(WAYS)))
EXPERIMENTS.declare(
    "geo/open2-small",
    "Does the best curvature depend on the architecture? Small networks",
    "left open",
    recipes=partial(gamma_recipes, NETWORKS, base=PERCEPTRON),
    measures=("curvature",),
)(which_architecture)
