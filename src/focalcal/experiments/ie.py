"""IE (Mukhoti et al. 2020): Tables 1 to 13.

The reference holds Tables 1–3 and 6–13. Of Tables 4 and 5 neither values nor captions are at hand:
they are filled with what the text needs there, and say so.
"""

from __future__ import annotations

from functools import partial

from focalcal.experiments import published
from focalcal.experiments.base import Analysis, Experiment, Finding, Material
from focalcal.experiments.reference import number, rows
from focalcal.experiments.settings import (
    BASES,
    NEWSGROUPS,
    PUBLISHED,
    SST,
    Settings,
    is_published,
    with_losses,
)
from focalcal.figures import Table
from focalcal.maps import gamma_for_probability
from focalcal.metrics import adaptive_ece, ece

DATASETS = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "20newsgroups": "20newsgroups",
    "sst": "sst-binary",
}
MODELS = {"wrn26_10": "wrn-26-10", "text_cnn": "gpcnn", "tree_lstm": "tree-lstm"}
METRICS = {
    "ece%": "ece",
    "adaece%": "adaptive_ece",
    "error%": "error",
    "nll%": "nll",
    "mce%": "mce",
}
NAMES = {
    "ece%": "ECE %",
    "adaece%": "equal-mass ECE %",
    "error%": "error %",
    "nll%": "NLL ×100",
    "mce%": "MCE %",
}
ALL_LOSSES = (
    *("ce", "brier", "mmce", "fl-1", "fl-2", "fl-3"),
    *("fls-531", "fls-532", "fla-532", "fla-53"),
)


def places() -> list[Settings]:
    """The papers' data sets and networks, as base recipes."""
    images = [
        PUBLISHED | {"dataset": data, "model": model}
        for data in ("cifar10", "cifar100")
        for model in ("resnet50", "resnet110", "wrn26_10", "densenet121")
    ]
    return [*images, NEWSGROUPS, SST]


def grid_recipes(losses: tuple[str, ...], scale: str) -> dict[str, Settings]:
    """The losses on every data set and network of the tables; on one below paper scale."""
    if scale != "paper":
        return with_losses(BASES[scale], losses)
    return {k: v for base in places() for k, v in with_losses(base, losses).items()}


def _printed(table: str) -> dict[tuple[str, str, str, str], dict[str, str]]:
    return {
        (r["dataset"], r["model"], r["loss"], r["stage"]): r
        for r in rows("intriguing_effects")
        if r["table"] == table
    }


def grid(table: str, material: Material) -> Analysis:
    """A table of one metric: losses × networks, before and after temperature scaling."""
    printed = _printed(table)
    losses = dict.fromkeys(key[2] for key in printed)
    stages = dict.fromkeys(key[3] for key in printed)
    metric = next(iter(printed.values()))["metric"]
    findings, met = [], set()
    for run in (*material.runs, *published.golden_run(material.data)):
        if run.loss not in losses:
            continue
        for stage in stages:
            s = run.settings
            key = (
                DATASETS.get(s["dataset"], s["dataset"]),
                MODELS.get(s["model"], s["model"]),
                run.loss,
                stage,
            )
            paper = printed.get(key)
            met.add(key)
            found = run.before if stage == "pre" else run.after
            e = found[METRICS[metric]]
            after = f" at T {run.temperature:.1f}" if stage == "post" else ""
            cell = f"{NAMES[metric]}, {run.label}, {stage}{after}"
            if paper and paper["temperature"]:
                cell += f" (paper: T {paper['temperature']})"
            value = number(paper["value"]) if paper else None
            findings.append(Finding(cell, 100 * e.value, value, 100 * e.low, 100 * e.high, e.n))
    left = len(set(printed) - met)
    done = len(met & set(printed))
    conclusion = f"{done} of the table's {len(printed)} cells have a run of that network and loss"
    conclusion += f" (epochs as named), {left} have none. " if left else " (epochs as named). "
    conclusion += _beside(metric, material, printed)
    return Analysis(tuple(findings), conclusion.strip(), (_as_table(findings),))


def _beside(metric: str, material: Material, printed: dict) -> str:
    """For networks the paper does not have: its ResNet-50 on the same data, for orientation."""
    shown = []
    for run in material.runs:
        data = DATASETS.get(run.settings["dataset"])
        key = (data, "resnet50", run.loss, "pre")
        if run.settings["model"] != "resnet50" and key in printed:
            shown.append(f"{run.loss} {printed[key]['value']}")
    text = ", ".join(dict.fromkeys(shown))
    return (
        f"The paper has no such network; its ResNet-50 ({NAMES[metric]}): {text}." if text else ""
    )


def _as_table(findings: list[Finding]) -> Table:
    cells = tuple((f.what, f.ours, "" if f.paper is None else f.paper, f.verdict) for f in findings)
    return Table("", ("cell", "ours", "paper", "verdict"), cells)


def _gamma_rule(material: Material) -> Analysis:
    """γ*(p0): [checked] 4.851, 3.070, 0 at .2, .25, .5."""
    checked = {0.19: 5.337, 0.2: 4.851, 0.25: 3.070, 0.5: 0.0}
    findings = tuple(
        Finding(f"γ* at p0 = {p}", float(gamma_for_probability(p)), value, tolerance=5e-4)
        for p, value in checked.items()
    )
    conclusion = (
        "γ = 5 below .2 follows the rule γ*(.2) ≈ 4.85. γ = 3 up to .5 does not: γ*(.5) = 0, so it "
        "is a policy. Compared with independently checked values; the paper's own are not at hand."
    )
    return Analysis(findings, conclusion, (_as_table(list(findings)),))


def _policies(material: Material) -> Analysis:
    findings = []
    for run in material.runs:
        probs = run.calibration.probabilities()
        for name, metric in (("ECE %", ece), ("equal-mass ECE %", adaptive_ece)):
            value = 100 * metric(run.calibration.labels, probs)
            findings.append(Finding(f"calibration {name}, {run.label}", value, n=run.calibration.n))
    best = min(
        material.runs, key=lambda r: ece(r.calibration.labels, r.calibration.probabilities())
    )
    text = f"Lowest calibration ECE: {best.loss}. The paper's values are not at hand."
    return Analysis(tuple(findings), text, (_as_table(findings),))


def _s99(material: Material) -> Analysis:
    printed = {(r["dataset"], r["model"], r["loss"]): r for r in rows("intriguing_effects_s99")}
    findings = []
    for run in (*material.runs, *published.golden_run(material.data)):
        s = run.settings
        paper = printed.get((DATASETS.get(s["dataset"]), s["model"], run.loss), {})
        for stage, found in (("pre", run.before), ("post", run.after)):
            for name, column in (("share", "s99"), ("accuracy", "s99_acc")):
                e = found[f"high_confidence_{name}"]
                findings.append(
                    Finding(
                        f"S99 {name} %, {run.label}, {stage}",
                        100 * e.value if e.value == e.value else None,
                        number(paper.get(f"{column}_{stage}%")),
                        *((100 * e.low, 100 * e.high) if e.low == e.low else (None, None)),
                        e.n,
                        reason="" if e.value == e.value else "no sample is that confident",
                    )
                )
    conclusion = "Share of test samples with confidence of at least .99, and their accuracy."
    return Analysis(tuple(findings), conclusion, (_as_table(findings),))


def _recipe_recipes(scale: str) -> dict[str, Settings]:
    """Both losses, mean and summed, clipped and not, with three weight decays."""
    lr = {"smoke": 5e-3}.get(scale, 0.1)
    decays = (5e-5, 5e-4, 5e-3)
    ways = (("sum", 2.0), ("mean", 0.0), ("mean", 2.0), ("sum", 0.0))
    found = {}
    for reduction, clip in ways[:2] if scale == "smoke" else ways:
        for decay in decays[1:] if scale == "smoke" else decays:
            # An unclipped sum is a step of batch size times the mean's.
            rate = lr / 128 if (reduction, clip) == ("sum", 0.0) else lr
            changes = {"reduction": reduction, "clip_norm": clip, "weight_decay": decay, "lr": rate}
            base = BASES["lite"] | {"epochs": 350} if scale == "paper" else BASES[scale]
            for name, settings in with_losses(base, ("ce", "fla-53"), **changes).items():
                found[f"{name}-{reduction}-clip{clip:g}-wd{decay:g}"] = settings
    return found


def _recipe(material: Material) -> Analysis:
    findings, gaps = [], []
    for run in material.runs:
        e, gap = run.before["ece"], run.before["confidence_gap"]
        findings += [
            Finding(f"ECE %, {run.label}", 100 * e.value, None, 100 * e.low, 100 * e.high, e.n),
            Finding(f"confidence − accuracy, points, {run.label}", 100 * gap.value, n=gap.n),
            Finding(f"T, {run.label}", run.temperature, n=run.calibration.n),
        ]
        way = f"{run.settings['reduction']}, clip {run.settings['clip_norm']:g}"
        gaps.append(
            f"{run.loss} ({way}, wd {run.settings['weight_decay']:g}) {100 * gap.value:+.1f}"
        )
    text = f"Confidence minus accuracy in points, positive is over-confident: {'; '.join(gaps)}."
    return Analysis(tuple(findings), text, (_as_table(findings),))


def _table(number: int, title: str, claim: str, losses: tuple[str, ...]) -> Experiment:
    return Experiment(
        f"ie/table{number}",
        title,
        claim,
        partial(grid, str(number)),
        partial(grid_recipes, losses),
        is_published,
        files=(published.GOLDEN,) if "fla-53" in losses else (),
    )


MAIN = ("ce", "brier", "mmce", "fla-53")
FOCAL = ("fl-1", "fl-2", "fl-3", "fls-531", "fls-532", "fla-532")
BEST = "focal loss with sample-dependent γ has the lowest error before scaling, and mostly after"

EXPERIMENTS: tuple[Experiment, ...] = (
    _table(1, "ECE of the main losses", BEST, MAIN),
    _table(2, "Equal-mass ECE of the main losses", BEST, MAIN),
    _table(
        3,
        "Test error of the main losses",
        "focal loss costs no accuracy",
        ("ce", "brier", "mmce", "fl-3", "fls-532", "fla-53"),
    ),
    Experiment("ie/table4", "γ for a target probability", "Prop. 2 gives γ from p0", _gamma_rule),
    Experiment(
        "ie/table5",
        "Focal policies by calibration error",
        "sample-dependent γ is chosen on the calibration set",
        _policies,
        partial(grid_recipes, (*FOCAL, "fla-53")),
        lambda s: is_published(s) and s["loss"].startswith("fl"),
    ),
    Experiment(
        "ie/table6",
        "Confident and right: S99",
        "focal loss keeps many samples above .99 after scaling where cross-entropy loses them",
        _s99,
        partial(grid_recipes, ("ce", "mmce", "fla-53")),
        lambda s: is_published(s) and s["loss"] in ("ce", "mmce", "fla-53"),
        files=(published.GOLDEN,),
    ),
    _table(7, "ECE of the focal variants", "sample-dependent γ is best overall", FOCAL),
    _table(8, "Equal-mass ECE of the focal variants", "as Table 7", FOCAL),
    _table(
        9,
        "Test error of the focal variants",
        "within noise of each other",
        ("fl-1", "fl-2", "fls-531", "fla-532"),
    ),
    _table(10, "NLL before scaling", "focal losses have lower NLL than cross-entropy", ALL_LOSSES),
    _table(11, "NLL after scaling", "scaling closes most of the gap", ALL_LOSSES),
    _table(12, "MCE before scaling", "as ECE, noisier", ALL_LOSSES),
    _table(13, "MCE after scaling", "as ECE, noisier", ALL_LOSSES),
    Experiment(
        "ie/recipe",
        "When does focal loss calibrate, and when does it over-correct?",
        "its text names neither the summed loss nor the clipping that its result depends on",
        _recipe,
        _recipe_recipes,
        lambda s: s["dataset"] == "cifar10" and s["loss"] in ("ce", "fla-53"),
    ),
)
