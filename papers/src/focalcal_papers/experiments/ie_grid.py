"""IE's tables of one metric: losses × networks, our runs beside the printed cells."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from focalcal.metrics import Estimate
from focalcal_papers.experiments import published
from focalcal_papers.experiments.base import Analysis, Finding, Material
from focalcal_papers.experiments.reference import Row, number, rows
from focalcal_papers.experiments.runs import IMAGES, Run
from focalcal_papers.figures import Table

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
EPOCHS = {"cifar10": 350, "cifar100": 350, "20newsgroups": 50, "sst": 25}
STAGES = {"pre": "before scaling", "post": "after scaling"}
Key = tuple[str, str, str, str]


def known(run: Run, table: dict[Any, Row], *rest: str) -> tuple[Row, str]:
    """The printed row of the run's data set, network and loss, and the paper's setting if not ours.

    The paper has no ResNet-18: beside such networks stands its ResNet-50 on the same images.
    """
    s = run.settings
    data, model = DATASETS.get(s["dataset"]), MODELS.get(s["model"], s["model"])
    setting = []
    row = table.get((data, model, run.loss, *rest))
    if row is None and s["dataset"] in IMAGES:
        row = table.get((data, "resnet50", run.loss, *rest))
        setting.append("resnet50")
    if s["epochs"] != EPOCHS.get(s["dataset"]):
        setting.append(f"{EPOCHS.get(s['dataset'])} epochs")
    of_data = s.get("data_settings") or {}
    if of_data.get("length", 1000) != 1000:
        setting.append("1000 words")
    if s["dataset"] == "sst" and "300d" not in of_data.get("vectors", ""):
        setting.append("word vectors of 300 numbers, ours 100")
    return (row, ", ".join(setting)) if row else ({}, "")


def printed_s99() -> dict[tuple[str, str, str], Row]:
    """IE Table 6."""
    return {(r["dataset"], r["model"], r["loss"]): r for r in rows("intriguing_effects_s99")}


def grid(table: str, material: Material) -> Analysis:
    """A table of one metric: losses × networks, before and after temperature scaling."""
    printed: dict[Key, Row] = {
        (r["dataset"], r["model"], r["loss"], r["stage"]): r
        for r in rows("intriguing_effects")
        if r["table"] == table
    }
    losses = dict.fromkeys(key[2] for key in printed)
    stages = dict.fromkeys(key[3] for key in printed)
    metric = next(iter(printed.values()))["metric"]
    runs = [
        run for run in (*material.runs, *published.golden_run(material.data)) if run.loss in losses
    ]
    if not runs:
        reason = f"no stored run with one of {', '.join(losses)}"
        return Analysis((Finding(NAMES[metric], reason=reason),), f"Not run: {reason}.")
    findings, same = [], 0
    for run, stage in itertools.product(runs, stages):
        paper, setting = known(run, printed, stage)
        same += bool(paper) and not setting
        after = f" at T {run.temperature:.1f}" if stage == "post" else ""
        what = f"{NAMES[metric]}, {run.label}, {stage}{after}"
        if paper.get("temperature"):
            what += f" (paper: T {paper['temperature']})"
        e = _of(run, stage)[METRICS[metric]]
        findings.append(Finding.percent(what, e, number(paper.get("value")), setting=setting))
        theirs = number(paper.get("temperature"))
        if stage == "post" and theirs is not None and metric == "ece%":
            # A step and a half of the grid that T is chosen from.
            what = f"T, {run.label}"
            t, n = run.temperature, run.calibration.n
            findings.append(Finding(what, t, theirs, n=n, tolerance=0.15, setting=setting))
    text = f"{same} of the table's {len(printed)} cells have a run in the paper's own setting"
    text += f", {len(runs) * len(stages) - same} values are of other settings, as named. "
    text += " ".join(filter(None, (_order(runs, METRICS[metric], s, printed) for s in stages)))
    if metric == "mce%":
        text += " One bin of few samples decides the MCE; so wide are its intervals that a verdict "
        text += "means little."
    text = text.rstrip() + seeds(material.runs)
    return Analysis(tuple(findings), text, (as_table(findings),))


def seeds(runs: Sequence[Run]) -> str:
    """How many seeds stand behind the numbers."""
    counted: dict[tuple[str, str, str, int], int] = {}
    for run in runs:
        key = (run.settings["dataset"], run.network, run.loss, run.settings["epochs"])
        counted[key] = counted.get(key, 0) + 1
    if not runs:
        return ""
    once = sum(n == 1 for n in counted.values())
    if once == len(counted):
        return " One run (n = 1) per loss: the intervals say nothing of other seeds."
    most = max(counted.values())
    text = f" {len(counted) - once} of {len(counted)} settings have several seeds (up to {most})"
    return text + "; intervals are over samples and say nothing of other seeds."


def _of(run: Run, stage: str) -> Any:
    return run.before if stage == "pre" else run.after


def _order(runs: Sequence[Run], metric: str, stage: str, printed: dict[Key, Row]) -> str:
    """Our losses from the lowest on, and which pairs of them stand in the paper's order.

    Of several seeds the mean is listed, and the first compared.
    """
    groups: dict[tuple[str, str], dict[str, tuple[Estimate, float | None]]] = {}
    values: dict[tuple[str, str, str], list[float]] = {}
    for run in runs:
        paper, _ = known(run, printed, stage)
        where, e = (run.settings["dataset"], run.network), _of(run, stage)[metric]
        groups.setdefault(where, {}).setdefault(run.loss, (e, number(paper.get("value"))))
        values.setdefault((*where, run.loss), []).append(100 * e.value)
    parts = []
    for (data, network), by_loss in groups.items():
        if len(by_loss) < 2:
            continue
        every = {loss: values[data, network, loss] for loss in by_loss}
        listed = ", ".join(
            f"{loss} {_mean_and_spread(every[loss])}"
            for loss in sorted(every, key=lambda loss: np.mean(every[loss]))
        )
        text = f"{data} {network} {STAGES[stage]}, lowest first: {listed}"
        pairs = [
            (a, b, x < y)
            for (a, x), (b, y) in itertools.combinations(by_loss.values(), 2)
            if x is not None and y is not None
        ]
        apart = [(a, b, less) for a, b, less in pairs if a.high < b.low or b.high < a.low]
        kept = sum((a.value < b.value) == less for a, b, less in apart)
        if pairs:
            text += f"; of {len(pairs)} pairs of losses "
            text += (
                f"{len(apart)} have intervals that do not meet, and {kept} of these are in the "
                "paper's order"
                if apart
                else "none has intervals that do not meet"
            )
        parts.append(text + ".")
    return " ".join(parts)


def _mean_and_spread(values: list[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:.2f}"
    return f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f} ({len(values)} seeds)"


def as_table(findings: Sequence[Finding]) -> Table:
    """Findings as a panel."""
    cells = tuple((f.what, f.ours, "" if f.paper is None else f.paper, f.verdict) for f in findings)
    return Table("", ("cell", "ours", "paper", "verdict"), cells)
