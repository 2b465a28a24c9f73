"""IE's tables of one metric: losses × networks, our runs beside the printed cells."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from focalcal.metrics import Estimate
from focalcal_papers.experiments import published
from focalcal_papers.experiments.base import Z95, Analysis, Finding, Material, sampling_error, t95
from focalcal_papers.experiments.reference import PRINTED_DATASETS, Row, number, rows
from focalcal_papers.experiments.runs import IMAGES, Run, grouped
from focalcal_papers.experiments.settings import EPOCHS, is_published
from focalcal_papers.figures import Table

PRINTED_MODELS = {"wrn26_10": "wrn-26-10", "text_cnn": "gpcnn", "tree_lstm": "tree-lstm"}
METRICS = {
    "ece%": ("ece", "ECE %"),
    "adaece%": ("adaptive_ece", "equal-mass ECE %"),
    "error%": ("error", "error %"),
    "nll%": ("nll", "NLL ×100"),
    "mce%": ("mce", "MCE %"),
}
"""The reference's names for metrics: ours, and how tables write them."""
STAGES = {"pre": "before scaling", "post": "after scaling"}
Key = tuple[str, str, str, str]


def known(run: Run, table: dict[Any, Row], *rest: str) -> tuple[Row, str]:
    """The printed row of the run's data set, network and loss, and the paper's setting if not ours.

    The paper has no ResNet-18: such networks are compared with its ResNet-50 on the same images.
    """
    s = run.settings
    data, model = PRINTED_DATASETS.get(s["dataset"]), PRINTED_MODELS.get(s["model"], s["model"])
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
    if s["dataset"] == "20newsgroups" and run.dataset != "20newsgroups-random":
        setting.append("random split without headers")
    if run.variant != run.loss:
        setting.append(f"not {run.variant.removeprefix(run.loss).strip()}")
    if s["dataset"] == "sst" and "300d" not in of_data.get("vectors", ""):
        setting.append("word vectors of 300 numbers, ours 100")
    return (row, ", ".join(setting)) if row else ({}, "")


def printed_s99() -> dict[tuple[str, str, str], Row]:
    """IE Table 6."""
    return {(r["dataset"], r["model"], r["loss"]): r for r in rows("intriguing_effects_s99")}


def printed_cells(table: str) -> dict[Key, Row]:
    """A table's printed cells by data set, network, loss and stage."""
    return {
        (r["dataset"], r["model"], r["loss"], r["stage"]): r
        for r in rows("intriguing_effects")
        if r["table"] == table
    }


def own_cells(table: str, runs: Sequence[Run]) -> int:
    """How many of a table's cells have a run in the paper's own setting."""
    printed = printed_cells(table)
    stages = dict.fromkeys(key[3] for key in printed)
    found = set()
    published_runs = [run for run in runs if is_published(run.settings)]
    for run, stage in itertools.product(published_runs, stages):
        row, setting = known(run, printed, stage)
        if row and not setting:
            found.add((row["dataset"], row["model"], row["loss"], row["stage"]))
    return len(found)


def by_setting(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """The seeds of each setting."""
    return grouped(runs, lambda run: run.setting)


def grid(table: str, material: Material) -> Analysis:
    """A table of one metric: losses × networks, before and after temperature scaling."""
    printed = printed_cells(table)
    losses = dict.fromkeys(key[2] for key in printed)
    stages = dict.fromkeys(key[3] for key in printed)
    printed_metric = next(iter(printed.values()))["metric"]
    metric, title = METRICS[printed_metric]
    runs = [
        run for run in (*material.runs, *published.golden_run(material.data)) if run.loss in losses
    ]
    if not runs:
        return Analysis.not_run(title, f"no stored run with one of {', '.join(losses)}")
    groups = by_setting(runs)
    findings: list[Finding] = []
    shown = []
    for name, own in groups.items():
        line: dict[str, str] = {"setting": name, "seeds": str(len(own))}
        for stage in stages:
            paper, setting = known(own[0], printed, stage)
            found = _finding(metric, title, own, stage, paper, setting)
            line[STAGES[stage]] = found.text
            value = number(paper.get("value"))
            remark = f" ({setting})" if setting else ""
            line[f"paper, {stage}"] = "" if value is None else f"{value:g}{remark}"
            findings.append(found)
            theirs = number(paper.get("temperature"))
            if stage == "post" and theirs is not None and metric == "ece":
                findings.append(_temperature(own, theirs, setting))
                line["T"] = findings[-1].text
                line["paper, T"] = f"{theirs:g}"
        shown.append(line)
    same = own_cells(table, runs)
    text = f"{same} of the table's {len(printed)} cells have a run in the paper's own setting"
    other = len(groups) * len(stages) - same
    text += f", {other} values are of other settings, as named. "
    text += " ".join(filter(None, (_order(runs, metric, s, printed) for s in stages)))
    if metric == "mce":
        text += " One bin of few samples decides the MCE, and its intervals show the spread of "
        text += "seeds alone: a verdict means little."
    columns = tuple(dict.fromkeys(k for line in shown for k in line))
    cells = tuple(tuple(line.get(k, "") for k in columns) for line in shown)
    shown_table = Table(title, columns, cells)
    text = text.rstrip() + seeds(material.runs)
    return Analysis(tuple(findings), text, tables=(shown_table,))


def name_of(own: Sequence[Run]) -> str:
    """What the seeds of a setting have in common; a single run's label."""
    return own[0].setting if len(own) > 1 else own[0].label


def _finding(
    metric: str, title: str, own: list[Run], stage: str, paper: Row, setting: str
) -> Finding:
    at = np.mean([run.temperature for run in own])
    what = f"{title}, {name_of(own)}, {stage}"
    what += f" at T {at:.1f}" if stage == "post" else ""
    what += f" (paper: T {paper['temperature']})" if paper.get("temperature") else ""
    each = [_of(run, stage)[metric] for run in own]
    return Finding.of_seeds(what, each, number(paper.get("value")), setting=setting)


def _temperature(own: list[Run], theirs: float, setting: str) -> Finding:
    """The mean T of the seeds beside the printed one."""
    each = [run.temperature for run in own]
    # A step and a half of the grid that T is chosen from, or what seeds differ by.
    more: dict[str, Any] = {"tolerance": 0.15}
    if len(own) > 1:
        spread = float(np.std(each, ddof=1))
        more = {"tolerance": max(0.15, 2 * spread), "seeds": len(own), "spread": spread}
    n = own[0].kept["n"]["calibration"] if own[0].kept else own[0].calibration.n
    mean = float(np.mean(each))
    return Finding(f"T, {name_of(own)}", mean, theirs, n=n, setting=setting, **more)


def seeds(runs: Sequence[Run], given: str = "given as mean ± standard deviation") -> str:
    """How many seeds stand behind the numbers of `runs`, and how those of several are `given`."""
    counted = [len(own) for own in by_setting(runs).values()]
    if not counted:
        return ""
    once = counted.count(1)
    if once == len(counted):
        return " One run (n = 1) per loss: the intervals say nothing of other seeds."
    text = f" {len(counted) - once} of {len(counted)} settings have several seeds"
    text += f" (up to {max(counted)}), {given}"
    return text + ("; the others are one run each." if once else ".")


def _of(run: Run, stage: str) -> Any:
    return run.before if stage == "pre" else run.after


def _order(runs: Sequence[Run], metric: str, stage: str, printed: dict[Key, Row]) -> str:
    """Which pairs of losses stand in the paper's order, of those that can be told apart.

    Only losses with the paper's own settings, and pairs with different printed values.
    """
    groups: dict[tuple[str, str, int], dict[str, list[Run]]] = {}
    for own in by_setting(runs).values():
        where = (own[0].dataset, own[0].network, own[0].settings["epochs"])
        groups.setdefault(where, {}).setdefault(own[0].variant, own)
    parts = []
    for (data, network, _), by_loss in groups.items():
        found = [
            (ends, theirs)
            for own in by_loss.values()
            if own[0].variant == own[0].loss
            and (ends := _mean_interval([_of(run, stage)[metric] for run in own]))
            and (theirs := number(known(own[0], printed, stage)[0].get("value"))) is not None
        ]
        pairs = [(a, b) for a, b in itertools.combinations(found, 2) if a[1] != b[1]]
        apart = [(a, b) for a, b in pairs if a[0][1] < b[0][0] or b[0][1] < a[0][0]]
        kept = sum((a[0] < b[0]) == (a[1] < b[1]) for a, b in apart)
        if pairs:
            text = f"{data} {network} {STAGES[stage]}: of {len(pairs)} pairs of losses {len(apart)}"
            parts.append(f"{text} have intervals that do not meet, {kept} in the paper's order.")
    return " ".join(parts)


def _mean_interval(each: list[Estimate]) -> tuple[float, float] | None:
    """The 95 % interval in percent of the mean of seeds, if it has one.

    Student's t for the spread of the seeds, the normal for the sampling error of the test set.
    """
    found = Finding.of_seeds("", each)
    if found.spread is None:
        return None if found.low is None else (found.low, found.high)
    of_seeds = t95(len(each) - 1) * found.spread / len(each) ** 0.5
    half = math.hypot(of_seeds, Z95 * sampling_error(each))
    return found.ours - half, found.ours + half
