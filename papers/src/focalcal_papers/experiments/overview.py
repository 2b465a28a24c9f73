"""Tables over all stored runs: the losses beside the paper, every run, what each name has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from focalcal_papers.experiments.base import STORED, Experiment, Finding, mean_and_spread
from focalcal_papers.experiments.ie_grid import by_setting, known, printed_cells
from focalcal_papers.experiments.reference import number
from focalcal_papers.experiments.runs import CHANGES, Run, grouped
from focalcal_papers.experiments.settings import EPOCHS, SAME_LOSS, Settings, is_published
from focalcal_papers.experiments.store import Store

COLUMNS = (
    ("error %", "before", "error", ("3", "9"), "pre"),
    ("ECE %", "before", "ece", ("1", "7"), "pre"),
    ("T", "", "", ("1", "7"), "post"),
    ("ECE % after T", "after", "ece", ("1", "7"), "post"),
    ("NLL ×100", "before", "nll", ("10",), "pre"),
)
ORDER = (
    *("ce", "brier", "mmce", "fl-1", "fl-2", "fl-3", "fl-5", "fl-7"),
    *("fls-531", "fls-532", "fla-532", "fla-53"),
)
NOTES = {
    "20newsgroups-random": "the paper's split: test and calibration cut at random, headers dropped",
    "20newsgroups": "the official split by date; the paper's values are of a random one",
    "sst": "word vectors of 100 numbers, the paper's have 300",
}


def table_lines(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """A table in Markdown."""
    head = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return head + ["| " + " | ".join(map(str, row)) + " |" for row in rows]


def overview(stored: Sequence[Run]) -> list[str]:
    """For each data set and network in a published setting: its losses beside the paper's."""
    places: dict[tuple[str, str], dict[str, list[Run]]] = {}
    for own in by_setting(r for r in stored if is_published(r.settings)).values():
        if own[0].dataset.endswith("-headers"):
            continue
        by_loss = places.setdefault((own[0].dataset, own[0].network), {})
        by_loss.setdefault(own[0].variant, own)
    lines = ["## The losses beside the paper's values"]
    for (data, network), by_loss in places.items():
        settings = (known(own[0], printed_cells("1"), "pre")[1] for own in by_loss.values())
        other = any(setting.startswith("resnet50") for setting in settings)
        note = NOTES.get(data) or ("IE has ResNet-50" if other else "")
        lines += ["", f"### {data} {network}"]
        lines += ["", f"{note[:1].upper()}{note[1:]}."] if note else []
        heads = [head for name, *_ in COLUMNS for head in (name, "paper")]
        losses = sorted(by_loss, key=lambda k: (ORDER.index(k) if k in ORDER else len(ORDER), k))
        rows = []
        for loss in losses:
            cells = (cell for column in COLUMNS for cell in _cells(by_loss[loss], *column[1:]))
            rows.append((loss, len(by_loss[loss]), *cells))
        lines += ["", *table_lines(("loss", "seeds", *heads), rows)]
    return lines


def _cells(
    own: list[Run], stage: str, metric: str, tables: tuple[str, ...], printed_stage: str
) -> tuple[str, str]:
    """Ours, and what the paper prints for the same loss."""
    rows = [known(own[0], printed_cells(table), printed_stage)[0] for table in tables]
    column = "value" if stage else "temperature"
    printed = next((v for r in rows if (v := number(r.get(column))) is not None), None)
    if stage:
        ours = mean_and_spread([100 * getattr(run, stage)[metric].value for run in own], 2)
    else:
        ours = mean_and_spread([run.temperature for run in own], 1)
    return ours, "" if printed is None else f"{printed:g}"


def run_rows(stored: Sequence[Run]) -> list[str]:
    """Every stored run as a row of a table."""
    columns = ("run", "error %", "NLL", "ECE %", "equal-mass ECE %", "class-wise ECE %", "T")
    rows = []
    for run in stored:
        b, a, s = run.before, run.after, run.settings
        where = run.provenance.get("hardware", {})
        how = f"{s.get('reduction')} loss, clip {s.get('clip_norm')}, {s.get('precision')}"
        error, ece, adaptive, after = (
            Finding.percent("", e).text for e in (b["error"], b["ece"], b["adaptive_ece"], a["ece"])
        )
        label = f"{run.label}, {how}, {where.get('gpu') or where.get('cpu')}"
        classwise = f"{100 * b['classwise_ece'].value:.3f}"
        cells = (error, f"{b['nll'].value:.4f}", ece, adaptive, classwise, f"{run.temperature:.1f}")
        rows.append((label, *cells, after))
    return table_lines((*columns, "ECE % after T"), rows)


def what_was_run(experiment: Experiment, stored: Sequence[Run], store: Store) -> str:
    """What has been run for a name, and at which scale.

    Stored runs by the scale whose recipes they follow, then what was found at a scale without
    keeping its runs.
    """
    if experiment.theory:
        return "theory"
    own = experiment.used(stored)
    parts = []
    for scale in ("paper", "lite"):
        recipes = experiment.recipes(scale).values()
        matching = [run for run in own if any(_follows(run, recipe) for recipe in recipes)]
        done = sum(any(_follows(run, recipe) for run in own) for recipe in recipes)
        own = [run for run in own if run not in matching]
        if matching:
            parts.append(f"{scale} scale, {done} of {len(recipes)} recipes: {_places(matching)}")
    short = [run for run in own if run.settings["epochs"] < EPOCHS.get(run.settings["dataset"], 0)]
    other = [run for run in own if run not in short]
    parts += [f"shortened: {_places(short)}"] if short else []
    parts += [f"other settings: {_places(other)}"] if other else []
    kept = store.kept(experiment.name)
    if parts and not kept and store.read(experiment.name, STORED) is None:
        parts.append("too few for a result")
    for result in kept:
        if not result.runs:
            parts.append("published networks")
        else:
            data = "made-up data" if experiment.made_up else "runs not kept"
            count = f"{len(result.runs)} of {len(experiment.recipes(result.scale))} recipes"
            parts.append(f"{result.scale} scale, {count}: {data}")
    return "; ".join(parts) or "not run"


FREE = (
    *("precision", "trace_every", "checkpoint_every", "eval_batch_size", "snapshots"),
    "data_settings",
)
"""Settings in which a run may differ from its recipe; of the data's, see `_data`."""


def _follows(run: Run, recipe: Settings) -> bool:
    wanted = dict.fromkeys(CHANGES, 0) | {"model_settings": {}, "loss_settings": {}} | recipe
    wanted["loss"] = SAME_LOSS.get(recipe["loss"], recipe["loss"])
    same = all(run.settings.get(k, v) == v for k, v in wanted.items() if k not in FREE)
    whole = bool(run.snapshots) or not recipe.get("snapshots")
    return same and whole and _data(run.settings) == _data(recipe)


def _data(settings: Settings) -> tuple[Any, ...]:
    """The split, the length of a text and the size of its word vectors."""
    of = settings.get("data_settings") or {}
    wide = "300d" in of.get("vectors", "")
    return of.get("split", "bydate"), of.get("headers", True), of.get("length", 1000), wide


def _places(runs: Sequence[Run]) -> str:
    """Data set, network and length, with the losses and the number of seeds."""
    places = grouped(runs, lambda run: f"{run.place} {run.settings['epochs']} epochs")
    parts = []
    for where, own in places.items():
        losses, most = {r.variant: 1 for r in own}, max(map(len, by_setting(own).values()))
        seeds = f", up to {most} seeds" if most > 1 else ""
        named = ", ".join(losses) if len(losses) < 3 else f"{len(losses)} losses"
        parts.append(f"{where} ({named}{seeds})")
    return ", ".join(parts)
