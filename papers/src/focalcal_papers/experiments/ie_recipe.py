"""The recipe that IE does not state: when does focal loss calibrate, when does it over-correct?"""

from __future__ import annotations

from collections import Counter
from functools import partial

from focalcal_papers.experiments.base import Analysis, Experiments, Finding, Material
from focalcal_papers.experiments.geo import rank_correlation
from focalcal_papers.experiments.runs import CHANGES, Run, reduction_text
from focalcal_papers.experiments.settings import BASES, PERCEPTRON, Settings, with_losses
from focalcal_papers.figures import Table

WAYS = (("sum", 2.0), ("mean", 0.0), ("mean", 2.0), ("sum", 0.0))
DECAYS = (5e-5, 5e-4, 5e-3)
LOSSES = ("ce", "fla-53")
EXPERIMENTS = Experiments()
FEWEST = 5
"""Settings of a loss below which a rank correlation says nothing."""


def _recipes(bases: dict[str, Settings], scale: str) -> dict[str, Settings]:
    """Both losses, mean and summed, clipped and not, with three weight decays."""
    small = scale == "smoke"
    base, lr = (BASES["smoke"], 5e-3) if small else (bases[scale], 0.1)
    # The last way is the second with 1/batch of the decay: the perceptron does without.
    ways = WAYS[:2] if small else WAYS[:3] if base["model"] == "mlp" else WAYS
    found = {}
    for reduction, clip in ways:
        for decay in DECAYS[1:] if small else DECAYS:
            # An unclipped sum is a step of batch size times the mean's.
            rate = lr / 128 if (reduction, clip) == ("sum", 0.0) else lr
            changes = {"reduction": reduction, "clip_norm": clip, "weight_decay": decay, "lr": rate}
            for name, settings in with_losses(base, LOSSES, **changes).items():
                found[f"{name}-{reduction}-clip{clip:g}-wd{decay:g}"] = settings
    return found


def _way(run: Run) -> tuple[str, float]:
    return run.settings["reduction"], run.settings["clip_norm"]


def _decay(run: Run) -> float:
    """Weight decay relative to the gradient of the mean loss, which a sum has batch size times."""
    batch = run.settings["batch_size"] if run.settings["reduction"] == "sum" else 1
    return run.settings["weight_decay"] / batch


def _analyse(material: Material) -> Analysis:
    findings, cells = [], {}
    order = sorted(
        material.runs, key=lambda r: (_way(r), r.settings["weight_decay"], r.settings["epochs"])
    )
    for run in order:
        how = f"{run.settings['epochs']} epochs, {reduction_text(run.settings)}"
        how += f", weight decay {run.settings['weight_decay']:g}"
        what = f"{run.loss}, {how}"
        b = run.before
        findings += [
            Finding.percent(f"error %, {what}", b["error"]),
            Finding.percent(f"ECE %, {what}", b["ece"]),
            Finding.percent(f"confidence − accuracy, points, {what}", b["confidence_gap"]),
            Finding(f"T, {what}", run.temperature, n=run.calibration.n),
            Finding.percent(f"ECE % after T, {what}", run.after["ece"]),
        ]
        shown = f"{100 * b['error'].value:.1f} / {100 * b['ece'].value:.2f} "
        shown += f"({100 * b['confidence_gap'].value:+.1f}) / {run.temperature:.1f} / "
        cells.setdefault(how, {})[run.loss] = shown + f"{100 * run.after['ece'].value:.2f}"
    rows = tuple((how, *(by.get(loss, "—") for loss in LOSSES)) for how, by in cells.items())
    title = "error % / ECE % (confidence − accuracy, points) / T / ECE % after T, test set"
    text = _conclusion(_equally_long(material.runs))
    return Analysis(tuple(findings), text, tables=(Table(title, ("setting", *LOSSES), rows),))


def _equally_long(runs: tuple[Run, ...]) -> tuple[Run, ...]:
    """The runs of the number of epochs that most were trained for."""
    lengths = Counter(run.settings["epochs"] for run in runs)
    most = max(lengths, key=lambda n: (lengths[n], n), default=0)
    return tuple(run for run in runs if run.settings["epochs"] == most)


def _conclusion(runs: tuple[Run, ...]) -> str:
    places = ", ".join(sorted({f"{r.place}, {r.settings['epochs']} epochs" for r in runs}))
    text = f"{places}, one seed each. "
    if len({_way(run) for run in runs}) < 2:
        return text + "Only one of the four ways was run, so the question stays open here."
    over = [r for r in runs if r.loss == "fla-53" and r.before["confidence_gap"].value < 0]
    focal = [r for r in runs if r.loss == "fla-53"]
    better = sum(
        f.before["ece"].value < c.before["ece"].value
        for f in focal
        for c in runs
        if c.loss == "ce" and _way(c) == _way(f) and _decay(c) == _decay(f)
    )
    counted = Counter(reduction_text(run.settings) for run in over)
    listed = [f"{way}: {n}" for way, n in counted.items()]
    text += (
        f"FLA-53 has the lower ECE in {better} of {len(focal)} settings and is under-confident in "
        f"{len(over)} ({'; '.join(listed) or 'none'}). "
    )
    if len(runs) < 2 * FEWEST:
        return text.rstrip()
    for loss in LOSSES:
        own = [r for r in runs if r.loss == loss]
        t = [r.temperature for r in own]
        named = rank_correlation([r.settings["weight_decay"] for r in own], t)
        effective = rank_correlation([_decay(r) for r in own], t)
        text += (
            f"Rank correlation of T and weight decay, {loss}, n = {len(own)}: {named:+.2f} as set, "
            f"{effective:+.2f} effective. "
        )
    return text + "Effective: relative to the gradient of the mean loss; a sum has 1/batch of it."


def _declare(name: str, title: str, bases: dict[str, Settings], dataset: str) -> None:
    def accepts(settings: Settings) -> bool:
        base = bases["lite"]
        like = all(settings.get(k) == base[k] for k in ("model", "model_settings") if k in base)
        plain = not any(settings.get(k) for k in (*CHANGES, "seed"))
        return settings["dataset"] == dataset and settings["loss"] in LOSSES and plain and like

    claim = "its text names neither the summed loss nor the clipping that its result depends on"
    recipes = partial(_recipes, bases)
    EXPERIMENTS.declare(name, title, claim, recipes=recipes, accepts=accepts)(_analyse)


_declare(
    "ie/recipe",
    "When does focal loss calibrate, and when does it over-correct?",
    {"lite": BASES["lite"], "paper": BASES["lite"] | {"epochs": 350}},
    "cifar10",
)
_declare(
    "ie/recipe-mlp",
    "The same question on a perceptron",
    {"lite": PERCEPTRON, "paper": PERCEPTRON | {"epochs": 350}},
    "fashion_mnist",
)
