"""IE's tables of one metric: losses × networks, our runs beside the printed cells."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from focalcal.experiments import published
from focalcal.experiments.base import Analysis, Finding, Material
from focalcal.experiments.reference import Row, number, rows
from focalcal.experiments.runs import IMAGES, Run
from focalcal.figures import Table

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
    if (s.get("data_settings") or {}).get("length", 1000) != 1000:
        setting.append("1000 words")
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
    text = f"{same} of the table's {len(printed)} cells have a run in the paper's own setting"
    text += f", {len(findings) - same} values are of other settings, as named. "
    text += " ".join(filter(None, (_order(runs, METRICS[metric], s, printed) for s in stages)))
    return Analysis(tuple(findings), (text + seeds(material.runs)).strip(), (as_table(findings),))


def seeds(runs: Sequence[Run]) -> str:
    """How many seeds stand behind the numbers, where there is but one."""
    counted: dict[tuple[str, str, str, int], int] = {}
    for run in runs:
        key = (run.settings["dataset"], run.network, run.loss, run.settings["epochs"])
        counted[key] = counted.get(key, 0) + 1
    if not runs or max(counted.values()) > 1:
        return ""
    return " One run (n = 1) per loss: the intervals are of the test samples, not of the seeds."


def _of(run: Run, stage: str) -> Any:
    return run.before if stage == "pre" else run.after


def _order(runs: Sequence[Run], metric: str, stage: str, printed: dict[Key, Row]) -> str:
    """Our losses from the lowest on, and how many pairs of them stand in the paper's order."""
    groups: dict[tuple[str, str], dict[str, list[tuple[float, float | None]]]] = {}
    for run in runs:
        paper, _ = known(run, printed, stage)
        pair = (100 * _of(run, stage)[metric].value, number(paper.get("value")))
        place = groups.setdefault((run.settings["dataset"], run.network), {})
        place.setdefault(run.loss, []).append(pair)
    parts = []
    for (data, network), by_loss in groups.items():
        ours = {k: float(np.mean([v[0] for v in pairs])) for k, pairs in by_loss.items()}
        theirs = {k: pairs[0][1] for k, pairs in by_loss.items() if pairs[0][1] is not None}
        if len(ours) < 2:
            continue
        listed = ", ".join(f"{k} {ours[k]:.2f}" for k in sorted(ours, key=ours.__getitem__))
        text = f"{data} {network} {STAGES[stage]}, lowest first: {listed}"
        pairs = list(itertools.combinations(theirs, 2))
        kept = sum((ours[a] < ours[b]) == (theirs[a] < theirs[b]) for a, b in pairs)
        if pairs:
            text += f"; {kept} of {len(pairs)} pairs of losses are in the paper's order"
        parts.append(text + ".")
    return " ".join(parts)


def as_table(findings: Sequence[Finding]) -> Table:
    """Findings as a panel."""
    cells = tuple((f.what, f.ours, "" if f.paper is None else f.paper, f.verdict) for f in findings)
    return Table("", ("cell", "ours", "paper", "verdict"), cells)
