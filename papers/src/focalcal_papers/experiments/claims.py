"""The claims of the four papers, and whether the stored runs support them: the first page.

Each verdict follows from the numbers by a rule written beside it, so it changes with the store.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from focalcal.maps import focal_log_map
from focalcal.metrics import ece
from focalcal_papers.experiments import fts_next
from focalcal_papers.experiments.base import STORED, Finding, mean_and_spread
from focalcal_papers.experiments.geo import rank_correlation
from focalcal_papers.experiments.ie_grid import by_setting, known, printed_cells
from focalcal_papers.experiments.pairs import n_seeds, pairs, published
from focalcal_papers.experiments.reference import number
from focalcal_papers.experiments.runs import IMAGES, Run, grouped
from focalcal_papers.experiments.settings import EPOCHS, accepts_cifar10, is_published
from focalcal_papers.experiments.store import Store
from focalcal_papers.figures import Curve, Curves

PAPERS = {
    "IE": "The Intriguing Effects of Focal Loss on the Calibration of Deep Neural Networks",
    "FTS": "Improving Calibration by Relating Focal Loss, Temperature Scaling, and Properness",
    "CPE": "On Focal Loss for Class-Posterior Probability Estimation",
    "GEO": "Geometric Insights into Focal Loss: Reducing Curvature for Enhanced Model Calibration",
}
HOLDS, ONLY_IF, FAILS, NOT_RUN = "holds", "holds only if", "does not hold", "not run"


@dataclass(frozen=True)
class Claim:
    """A claim, its verdict, the condition of "holds only if", and the numbers behind it."""

    paper: str
    says: str
    verdict: str
    evidence: str
    condition: str = ""
    panels: tuple[Curves, ...] = field(default=(), compare=False)


def _verdict(kept: int, n: int) -> str:
    """All, some or none of n cases."""
    return NOT_RUN if n == 0 else HOLDS if kept == n else ONLY_IF if kept else FAILS


def _listed(items: Sequence[object]) -> str:
    return "; ".join(map(str, items)) or "none"


def _calibrates(runs: Sequence[Run], store: Store) -> Claim:
    found = pairs(runs, "before", "ece")
    lower = [p for p in found if p.difference < 0]
    other = [p for p in found if p.difference >= 0]
    text = f"ECE %, cross-entropy → FLA-53. Lower: {_listed(lower)}. Not lower: {_listed(other)}."
    recipes = _recipe_pairs(runs)
    kept = len(lower) + sum(f.before["ece"].value < c.before["ece"].value for c, f in recipes)
    if recipes:
        text += " The recipe decides (CIFAR-10, ResNet-18, one run each): " + _listed(
            [f"{c.setting.partition(', ')[2]}: {_signed(c)} → {_signed(f)}" for c, f in recipes]
        )
        text += ". Without a remark the loss is summed and clipped at 2 and the weight decay 5e-4."
    return Claim(
        "IE",
        "focal loss with sample-dependent γ (FLA-53) is better calibrated than cross-entropy "
        "before scaling",
        _verdict(kept, len(found) + len(recipes)),
        text,
        "cross-entropy ends clearly over-confident under the same recipe. Focal loss lowers "
        "confidence whether or not that is needed: where cross-entropy is off by little, FLA-53 "
        "ends under-confident",
        (_printed_beside_ours(runs),),
    )


def _recipe_pairs(runs: Sequence[Run]) -> list[tuple[Run, Run]]:
    """Cross-entropy and FLA-53 on images in equal settings that no table of the paper has."""
    found: dict[str, dict[str, Run]] = {}
    for run in runs:
        if run.settings["dataset"] in IMAGES and not is_published(run.settings):
            found.setdefault(run.setting.replace(f" {run.loss},", ","), {})[run.loss] = run
    return [(by["ce"], by["fla-53"]) for by in found.values() if {"ce", "fla-53"} <= set(by)]


def _signed(run: Run) -> str:
    ece, gap = (100 * run.before[k].value for k in ("ece", "confidence_gap"))
    return f"{ece:.2f} ({'over' if gap > 0 else 'under'}-confident, T {run.temperature:.1f})"


def _after_scaling(runs: Sequence[Run], store: Store) -> Claim:
    found = pairs(runs, "after", "ece")
    lower = [p.where for p in found if p.clear and p.difference < 0]
    higher = [p.where for p in found if p.clear and p.difference > 0]
    return Claim(
        "IE",
        "it is better calibrated after temperature scaling too",
        NOT_RUN if not found else HOLDS if len(lower) == len(found) else FAILS,
        f"ECE % after T: {_listed(found)}. By Welch's t-test over seeds (5 %), lower on "
        f"{_listed(lower)}; higher on {_listed(higher)}.",
    )


def _accuracy(runs: Sequence[Run], store: Store) -> Claim:
    found = pairs(runs, "before", "error")
    worse = [p for p in found if p.clear and p.difference > 0]
    other = [p for p in found if p not in worse]
    points = sorted(p.difference for p in worse)
    cost = f"{points[0]:.1f} to {points[-1]:.1f}" if points else "none"
    return Claim(
        "IE",
        "it costs no accuracy",
        _verdict(len(other), len(found)),
        f"Error %: {_listed(found)}. Clearly higher, by Welch's t-test over seeds (5 %): "
        f"{_listed([p.where for p in worse])}.",
        f"it is judged on {' and '.join(p.where for p in other)}, where no rise is clear "
        f"({sum(p.difference > 0 for p in other)} of {len(other)} err more with FLA-53 all the "
        f"same); elsewhere it costs {cost} points",
    )


def _values(runs: Sequence[Run], store: Store) -> Claim:
    """How many of the cells with runs in the paper's own setting agree."""
    tables = (store.read(f"ie/table{table}", STORED) for table in (1, 2, 3, 7, 8, 9, 10, 11))
    # The published ResNet-50 is the paper's own network, not a repetition.
    found = [
        f
        for result in tables
        for f in (result.findings if result else ())
        if not (f.paper is None or f.setting or f.what.startswith("T,") or "published" in f.what)
    ]
    agree, total = sum(f.verdict == "agrees" for f in found), len(found)
    verdict = HOLDS if agree >= 0.9 * total else ONLY_IF if agree > total / 2 else FAILS
    unlike = dict.fromkeys(f.what.split(", ")[1] for f in found if f.verdict != "agrees")
    by_place = grouped(found, lambda f: f.what.split(", ")[1].rsplit(" ", 1)[0])
    each = _listed([_agreeing(place, own) for place, own in by_place.items()])
    if low := [f.paper - f.ours for f in found if f.what.startswith("error %")]:
        each += (
            f". Of the errors {sum(x > 0 for x in low)} of {len(low)} are lower than printed, by "
            f"{np.mean(low):.1f} points on average, so something in the data still differs"
        )
    return Claim(
        "IE",
        "the printed values (Tables 1–3 and 7–11) come out again in the paper's own setting",
        verdict if total else NOT_RUN,
        f"{agree} of {total} values agree (within 25 % and 1.96 standard deviations of one run): "
        f"{each}.",
        f"{_listed(list(unlike))} are left aside",
    )


def _agreeing(place: str, found: Sequence[Finding]) -> str:
    agree = sum(f.verdict == "agrees" for f in found)
    seeds = max(f.seeds or 1 for f in found)
    return f"{place} {agree} of {len(found)} (of each loss {n_seeds(range(seeds))})"


def _printed_beside_ours(runs: Sequence[Run]) -> Curves:
    """Printed ECE on one axis, ours on the other, with the spread of seeds; the papers' losses."""
    printed = printed_cells("1") | printed_cells("7")
    points: dict[str, list[tuple[float, float, float]]] = {}
    for own in by_setting(filter(published, runs)).values():
        paper = number(known(own[0], printed, "pre")[0].get("value"))
        other = own[0].variant != own[0].loss or own[0].dataset.endswith("-headers")
        if paper is None or other:
            continue
        f = Finding.of_seeds("", [r.before["ece"] for r in own])
        points.setdefault(own[0].place, []).append((paper, f.ours, f.spread or 0.0))
    curves = []
    for name, found in points.items():
        x, y, spread = np.array(found).T
        curves.append(Curve(name, x, y, y - spread, y + spread, style="o"))
    labels = ("ECE % before scaling, printed", "ECE % before scaling, ours")
    return Curves("IE: ten losses, mean ± sd of seeds", *labels, tuple(curves), diagonal=True)


def _focal_temperature(runs: Sequence[Run], store: Store) -> Claim:
    result = store.read("fts/every", STORED)
    says = "focal temperature scaling calibrates better than temperature scaling"
    if result is None:
        return Claim("FTS", says, NOT_RUN, "No stored network with its predictions.")
    means = fts_next.stored_means(result)
    ece, cost = fts_next.lower_than_temperature(means)[0]
    n = len(means)
    return Claim(
        "FTS",
        says,
        ONLY_IF if ece > n / 2 else FAILS,
        f"{result.conclusion} Each setting by name: fts/every.",
        f"it is judged over many networks: its equal-mass ECE is lower for {ece} and its "
        f"log-loss for {cost} of {n} settings, and single networks go either way",
        fts_next.panels(means),
    )


def _psi(runs: Sequence[Run], store: Store) -> Claim:
    says = (
        "the map Ψ turns the output of a network trained with focal loss into class probabilities"
    )
    focal = [r for r in filter(published, runs) if r.predicted and r.gamma]
    each = {
        f"{own[0].place} {own[0].loss}": np.array([_with_psi(r) for r in own])
        for own in by_setting(focal).values()
    }
    if not each:
        return Claim("CPE", says, NOT_RUN, "No stored network trained with one γ.")
    x, psi, scaled = np.array([values.mean(axis=0) for values in each.values()]).T
    better = int((psi < x).sum())
    text = (
        f"ECE %, as trained → with Ψ of the training γ (with T); lower with Ψ for {better} of "
        f"{len(each)} settings ({len(focal)} networks): {_listed(_by_network(each))}."
    )
    made_up = store.read("cpe/psi-trained", "smoke")
    if made_up is not None:
        by_way = {f.what.split(", ", 4)[-1]: f for f in made_up.findings if "ECE" in f.what}
        ends = by_way["as they are"], next(v for k, v in by_way.items() if k.startswith("Ψ"))
        text += (
            " On made-up data, where the network reaches the minimiser of the risk, Ψ brings the "
            f"ECE from {ends[0].ours:.1f} to {ends[1].ours:.1f} % (one run, n = {ends[0].n:,})."
        )
    curves = (
        Curve("Ψ of the training γ", x, psi, style="o"),
        Curve("temperature scaling", x, scaled, style="o"),
    )
    title = f"CPE: {len(each)} settings with focal loss"
    labels = ("ECE % as trained", "ECE % afterwards")
    return Claim(
        "CPE",
        says,
        _verdict(better, len(each)),
        text,
        "the network reaches the minimiser of the expected loss, or ends clearly under-confident. "
        "Networks that memorise their training set are over-confident for that reason, which Ψ "
        "does not know of and adds to",
        (Curves(title, *labels, curves, diagonal=True),),
    )


def _by_network(each: dict[str, np.ndarray]) -> list[str]:
    """The three values (seeds, 3) of each loss, a line for each data set and network."""
    lines: dict[str, list[str]] = {}
    for name, values in each.items():
        place, loss = name.rsplit(" ", 1)
        before, psi, scaled = (mean_and_spread(column, 1) for column in values.T)
        text = f"γ = {loss.removeprefix('fl-')} {before} → {psi} ({scaled})"
        lines.setdefault(f"{place} ({n_seeds(values)})", []).append(text)
    return [f"{place} {', '.join(texts)}" for place, texts in lines.items()]


def _with_psi(run: Run) -> tuple[float, float, float]:
    """Test ECE % as trained, through Ψ of the training γ, and after temperature scaling."""
    probs = np.exp(focal_log_map(np.asarray(run.test.as_logits(), dtype=float), run.gamma))
    psi = 100 * ece(run.test.labels, probs)
    return 100 * run.before["ece"].value, psi, 100 * run.after["ece"].value


def _curved(runs: Sequence[Run]) -> list[Run]:
    """The networks with a measured Hessian that were trained for longest."""
    found = [r for r in filter(published, runs) if r.curvature is not None]
    longest = max((r.settings["epochs"] for r in found), default=0)
    return [r for r in found if r.settings["epochs"] == longest]


def _samples(runs: Sequence[Run]) -> str:
    """The number of samples on which their Hessians were measured."""
    return " or ".join(f"{n:.0f}" for n in sorted({r.curvature["n"] for r in runs}))


def _trace(run: Run) -> float:
    return float(run.curvature["trace"]["value"])


def _curvature_falls(runs: Sequence[Run], store: Store) -> Claim:
    own = [r for r in _curved(runs) if r.gamma is not None and r.settings["model"] == "resnet18"]
    by_gamma = grouped(own, lambda run: run.gamma)
    x = sorted(by_gamma)
    each = [[_trace(r) for r in by_gamma[g]] for g in x]
    y = [float(np.mean(t)) for t in each]
    text = ", ".join(f"γ = {g:g}: {mean_and_spread(t, 0)} ({n_seeds(t)})" for g, t in zip(x, each))
    falls = len(x) > 2 and y[0] == max(y) and rank_correlation(x, y) < -0.8
    error = [float(np.mean([100 * r.before["ece"].value for r in by_gamma[g]])) for g in x]
    panels = tuple(
        Curves(title, "γ", unit, (Curve("", np.array(x), np.array(values)),))
        for title, unit, values in (
            ("GEO: ResNet-18", "trace of the Hessian", y),
            ("its calibration", "ECE %", error),
        )
        if x
    )
    return Claim(
        "GEO",
        "focal loss lowers the curvature of the loss surface",
        NOT_RUN if not x else HOLDS if falls else FAILS,
        f"Trace of the Hessian of the cross-entropy on {_samples(own)} test samples, "
        f"cifar10 resnet18: {text}. Most of the fall is reached at γ = 3.{_other_networks(runs)}"
        if x
        else "No stored ResNet-18 with its curvature.",
        panels=panels,
    )


def _other_networks(runs: Sequence[Run]) -> str:
    """The traces of networks trained for at least 100 epochs, but fewer than the paper's."""
    own = [r for r in runs if accepts_cifar10(r.settings, shortened=True) and r.gamma is not None]
    own = [r for r in own if r.curvature and 100 <= r.settings["epochs"] < EPOCHS["cifar10"]]
    text = ""
    for (name, n), found in grouped(own, lambda r: (r.network, r.settings["epochs"])).items():
        each = [f"γ = {r.gamma:g}: {_trace(r):.0f}" for r in sorted(found, key=lambda r: r.gamma)]
        text += f" {name}, {n} epochs: {', '.join(each)}."
    return text


def _curvature_explains(runs: Sequence[Run], store: Store) -> Claim:
    found = _curved(runs)
    says = "lower curvature is why focal loss calibrates"
    if len(found) < 3:
        return Claim("GEO", says, NOT_RUN, "Fewer than three networks with a measured Hessian.")
    mild = [r for r in found if r.gamma is None or r.gamma <= 3]
    every, some = (
        rank_correlation([_trace(r) for r in x], [r.before["ece"].value for r in x])
        for x in (found, mild)
    )
    strong = ", ".join(
        f"γ = {r.gamma:g}: {100 * r.before['ece'].value:.1f}" for r in found if r not in mild
    )
    counted = Counter(run.place for run in found)
    named = ", ".join(f"{n} {where}" for where, n in counted.items())
    return Claim(
        "GEO",
        says,
        HOLDS if every > 0.7 else FAILS,
        f"Rank correlation of ECE and trace (on {_samples(found)} test samples) over {len(found)} "
        f"networks of {found[0].settings['epochs']} epochs ({named}; geo/fig3 has each): "
        f"{every:+.2f}; without γ > 3 ({len(mild)} networks) {some:+.2f}. Past γ = 3 the trace "
        f"hardly moves while the ECE % rises ({strong}): curvature does not show "
        f"under-confidence.{_perceptron(store)}",
    )


def _perceptron(store: Store) -> str:
    """What label smoothing and mixup do to a perceptron."""
    result = store.read("geo/open1-mlp", "lite")
    if result is None:
        return ""
    found = {f.what.partition(", mean")[0]: f for f in result.findings}
    parts = [
        f"{way} ECE {found[f'ECE %, {way}'].ours:.1f} %, trace {found[f'trace, {way}'].ours:.0f}"
        for way in ("ce", "label smoothing", "mixup")
    ]
    return (
        f" On a perceptron (Fashion-MNIST, {found['trace, ce'].n} seeds each, geo/open1-mlp) label "
        f"smoothing and mixup calibrate without lowering the trace: {_listed(parts)}."
    )


CLAIMS: tuple[Callable[[Sequence[Run], Store], Claim], ...] = (
    *(_calibrates, _after_scaling, _accuracy, _values),
    *(_focal_temperature, _psi),
    *(_curvature_falls, _curvature_explains),
)


def claims(runs: Sequence[Run], store: Store) -> list[Claim]:
    """All claims in the papers' order, judged by this store."""
    return [claim(runs, store) for claim in CLAIMS]


def by_paper(found: Sequence[Claim]) -> dict[str, list[Claim]]:
    return {k: list(v) for k, v in itertools.groupby(found, key=lambda c: c.paper)}
