"""GEO's recipes: networks with every γ, the explicit penalty, other ways of training."""

from __future__ import annotations

from focalcal_papers.experiments.settings import BASES, PERCEPTRON, SMOKE, Settings
from focalcal_papers.recipes import recipe

GAMMAS = (0, 1, 3, 5, 10)
NETWORKS: dict[str, Settings] = {
    "resnet18": {"model": "resnet18"},
    "resnet18x2": {"model": "resnet18", "model_settings": {"width": 2}},
    **{name: {"model": name} for name in ("mobilenet_v2", "vgg19", "vit")},
}
TRAININGS: dict[str, Settings] = {
    "ce": {"loss": "ce"},
    "label smoothing": {"loss": "ls-0.05"},
    **{name: {"loss": name} for name in ("brier", "mmce", "fl-3")},
    "mixup": {"loss": "ce", "mixup": 0.2},
    "sam": {"loss": "ce", "sam": 0.05},
}
AWARE = ("ce", "fl-3", "mixup", "sam")
WAYS: dict[str, Settings] = TRAININGS | {
    "fl-1": {"loss": "fl-1"},
    "strong label smoothing": {"loss": "ls-0.2"},
    "strong sam": {"loss": "ce", "sam": 0.2},
}
SEEDS = (0, 1, 2)
SMALL_NETWORKS: dict[str, Settings] = {
    "mlp": {},
    "wide mlp": {"model_settings": {"hidden": 1024, "layers": 3}},
    "thin resnet18": {"model": "resnet18", "model_settings": {"width": 0.125}, "epochs": 30},
}


def _loss(gamma: float) -> str:
    return "ce" if gamma == 0 else f"fl-{gamma:g}"


def gamma_recipes(
    models: dict[str, Settings], scale: str, base: Settings | None = None
) -> dict[str, Settings]:
    """Every network with every γ; on made-up data a narrow and a wide perceptron."""
    if scale == "smoke":
        models = {f"mlp{h}": {"model_settings": {"hidden": h}} for h in (16, 48)}
    base = SMOKE | {"epochs": 10} if scale == "smoke" else base or BASES[scale]
    return {
        f"{name}-{_loss(g)}": base | changes | {"loss": _loss(g)}
        for name, changes in models.items()
        for g in GAMMAS
    }


def tau_recipes(scale: str) -> dict[str, Settings]:
    """The perceptron of Figure 4 with penalties of several strengths."""
    if scale == "smoke":
        base = SMOKE | {"epochs": 5, "optimizer": "sgd", "momentum": 0.9}
        rates, taus = (0.02, 0.05), (0.0, 0.01, 0.1)
    else:
        base = recipe("mlp-curvature") | {"trace_every": 5}
        # The trace of this network is about 2,000: from τ = .01 on training fails or diverges.
        rates, taus = (0.003, 0.01, 0.03), (0.0, 1e-4, 3e-4, 1e-3)
    if scale == "lite":
        base, rates = base | {"epochs": 10}, rates[:2]
    penalty = base | {"loss": "ce+curvature"}
    return {
        f"lr{rate:g}-tau{tau:g}": penalty | {"lr": rate, "loss_settings": {"tau": tau, "probes": 1}}
        for rate in rates
        for tau in taus
    }


def method_recipes(names: tuple[str, ...], scale: str) -> dict[str, Settings]:
    """Some of `TRAININGS`, on one network."""
    base = SMOKE | {"epochs": 10} if scale == "smoke" else BASES[scale]
    return {name: base | TRAININGS[name] for name in names}


def perceptron_recipes(scale: str) -> dict[str, Settings]:
    """Every way of training with every seed."""
    small = scale == "smoke"
    base, seeds = (SMOKE | {"epochs": 10}, SEEDS[:2]) if small else (PERCEPTRON, SEEDS)
    return {
        f"{name}-s{seed}": base | changes | {"seed": seed}
        for name, changes in WAYS.items()
        for seed in seeds
    }
