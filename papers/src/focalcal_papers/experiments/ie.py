"""IE (Mukhoti et al. 2020): Tables 1 to 13.

The reference holds Tables 1–3 and 6–13. The values and captions of Tables 4 and 5 are not
available; ours hold what the text describes, and say so.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from focalcal.maps import gamma_for_probability
from focalcal_papers.experiments import published
from focalcal_papers.experiments.base import Analysis, Experiments, Finding, Material
from focalcal_papers.experiments.ie_grid import by_setting, grid, known, name_of, printed_s99, seeds
from focalcal_papers.experiments.reference import number
from focalcal_papers.experiments.runs import evaluated
from focalcal_papers.experiments.settings import (
    BASES,
    NEWSGROUPS,
    PUBLISHED,
    SST,
    Settings,
    is_published,
    with_losses,
)

ALL_LOSSES = (
    *("ce", "brier", "mmce", "fl-1", "fl-2", "fl-3"),
    *("fls-531", "fls-532", "fla-532", "fla-53"),
)
MAIN = ("ce", "brier", "mmce", "fla-53")
FOCAL = ("fl-1", "fl-2", "fl-3", "fls-531", "fls-532", "fla-532")
BEST = "focal loss with sample-dependent γ has the lowest error before scaling, and mostly after"
EXPERIMENTS = Experiments()


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


def _table(number: int, title: str, claim: str, losses: tuple[str, ...]) -> None:
    EXPERIMENTS.declare(
        f"ie/table{number}",
        title,
        claim,
        recipes=partial(grid_recipes, losses),
        accepts=is_published,
        losses=losses,
        files=(published.GOLDEN,) if "fla-53" in losses else (),
        records=True,
    )(partial(grid, str(number)))


_table(1, "ECE of the main losses", BEST, MAIN)
_table(2, "Equal-mass ECE of the main losses", BEST, MAIN)
_table(
    3,
    "Test error of the main losses",
    "focal loss costs no accuracy",
    ("ce", "brier", "mmce", "fl-3", "fls-532", "fla-53"),
)


@EXPERIMENTS.declare("ie/table4", "γ for a target probability", "Prop. 2 gives γ from p0")
def _gamma_rule(material: Material) -> Analysis:
    """γ*(p0): [checked] 4.851, 3.070, 0 at .2, .25, .5."""
    checked = {0.19: 5.337, 0.2: 4.851, 0.25: 3.070, 0.5: 0.0}
    findings = tuple(
        Finding(f"γ* at p0 = {p}", float(gamma_for_probability(p)), value, tolerance=5e-4)
        for p, value in checked.items()
    )
    conclusion = (
        "γ = 5 below .2 follows the rule γ*(.2) ≈ 4.85. γ = 3 up to .5 does not: γ*(.5) = 0, so it "
        "is a policy. Compared with independently checked values; the paper's are not available."
    )
    return Analysis(findings, conclusion)


@EXPERIMENTS.declare(
    "ie/table5",
    "Focal policies by calibration error",
    "sample-dependent γ is chosen on the calibration set",
    recipes=partial(grid_recipes, (*FOCAL, "fla-53")),
    accepts=lambda s: is_published(s) and s["loss"].startswith("fl"),
)
def _policies(material: Material) -> Analysis:
    findings, found = [], {}
    for own in by_setting(material.runs).values():
        scores = [evaluated(run.calibration.labels, run.calibration.probabilities()) for run in own]
        for name, metric in (("ECE %", "ece"), ("equal-mass ECE %", "adaptive_ece")):
            each = [score[metric] for score in scores]
            findings.append(Finding.of_seeds(f"calibration {name}, {name_of(own)}", each))
        place = found.setdefault(own[0].place, {})
        place.setdefault(own[0].variant, findings[-2].ours)
    text = "; ".join(
        f"{place}: " + ", ".join(f"{k} {by[k]:.2f}" for k in sorted(by, key=by.__getitem__))
        for place, by in found.items()
    )
    text = f"Calibration ECE %, lowest first: {text}. The paper's values are not available."
    return Analysis(tuple(findings), text + seeds(material.runs))


@EXPERIMENTS.declare(
    "ie/table6",
    "Confident and right: S99",
    "focal loss keeps many samples above .99 after scaling where cross-entropy loses them",
    recipes=partial(grid_recipes, ("ce", "mmce", "fla-53")),
    accepts=lambda s: is_published(s) and s["loss"] in ("ce", "mmce", "fla-53"),
    files=(published.GOLDEN,),
    records=True,
)
def _s99(material: Material) -> Analysis:
    printed = printed_s99()
    findings, parts = [], []
    groups = by_setting((*material.runs, *published.golden_run(material.data)))
    for own in groups.values():
        paper, setting = known(own[0], printed)
        shares = []
        for stage in ("pre", "post"):
            each = [run.before if stage == "pre" else run.after for run in own]
            for name, column in (("share", "s99"), ("accuracy", "s99_acc")):
                findings.append(
                    Finding.of_seeds(
                        f"S99 {name} %, {name_of(own)}, {stage}",
                        [e[f"high_confidence_{name}"] for e in each],
                        number(paper.get(f"{column}_{stage}%")),
                        setting=setting,
                    )
                )
            shares.append(100 * np.mean([e["high_confidence_share"].value for e in each]))
        place = f"{own[0].place} {own[0].variant}"
        parts.append(f"{place} {shares[0]:.1f} → {shares[1]:.1f} %")
    text = (
        "Share of test samples with confidence of at least .99, and their accuracy. Share before → "
        f"after scaling: {'; '.join(parts)}." + seeds(material.runs)
    )
    return Analysis(tuple(findings), text)


_table(7, "ECE of the focal variants", "sample-dependent γ is best overall", FOCAL)
_table(8, "Equal-mass ECE of the focal variants", "as Table 7", FOCAL)
_table(
    9,
    "Test error of the focal variants",
    "within noise of each other",
    ("fl-1", "fl-2", "fls-531", "fla-532"),
)
_table(10, "NLL before scaling", "focal losses have lower NLL than cross-entropy", ALL_LOSSES)
_table(11, "NLL after scaling", "scaling closes most of the gap", ALL_LOSSES)
_table(12, "MCE before scaling", "as ECE, noisier", ALL_LOSSES)
_table(13, "MCE after scaling", "as ECE, noisier", ALL_LOSSES)
