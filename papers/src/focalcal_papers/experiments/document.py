"""REPRODUCTION.md, generated from the result store."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path

from focalcal.metrics import Estimate
from focalcal_papers.experiments import published
from focalcal_papers.experiments.base import MARGIN, STORED, Experiment, Finding, Material, Result
from focalcal_papers.experiments.runner import analysed, figure_of
from focalcal_papers.experiments.runs import Run
from focalcal_papers.experiments.store import Store
from focalcal_papers.figures import Table

SHOWN = 40
"""Rows of one experiment in the document; the store has them all."""

RUNS_HEAD = (
    "| run | error % | NLL | ECE % | equal-mass ECE % | class-wise ECE % | T | ECE % after T |",
    "|---|---|---|---|---|---|---|---|",
)
HEAD = f"""# Reproduction

Generated from the result store by `focalcal reproduce --report`; do not edit. A result counts only
if it was really run. Every name runs with `focalcal reproduce NAME --scale smoke|lite|paper`; the
smallest scale trains on made-up stand-in data, and such results are not reported here. Theory, and
what published networks' predictions answer, is the same at every scale.

Verdicts. *agrees*: for theory, within the printed precision of the paper's (or, where the paper is
wrong, of the independently checked) value; for trained networks, the printed value, give or take
{100 * MARGIN:.0f} % of itself, meets our 95 % interval, and a T, chosen from a grid of step .1,
is within .15. *differs*: not so. *similar* and *unlike*: the same rule where the paper's setting,
named beside its value, is not ours (a larger network, more epochs). *measured*: the paper prints
no number to compare with. *not run*: with the reason.

Intervals in brackets are 95 % bootstrap intervals over the test samples (over the probes for a
trace); they say nothing of other seeds, and every trained network here is one seed unless it says
otherwise. T is chosen on the calibration set.
"""
DRAWN = ("fts/open2", "fts/shift")
"""Shown as a picture too, like the figures."""
VERDICTS = ("agrees", "differs", "similar", "unlike", "measured", "not run")


def reproduction_text(
    experiments: Iterable[Experiment], store: Store, figures: str | None = None
) -> str:
    """The whole document, with the store's summary.md, written by hand, on top.

    figures: where the store's figures are, as seen from the document.
    """
    stored = store.runs()
    results = [(e, _result(e, store, stored)) for e in experiments]
    summary = store.path / "summary.md"
    lines = [HEAD, *([summary.read_text("utf-8")] if summary.is_file() else [])]
    lines += ["| name | what | verdict |", "|---|---|---|"]
    lines += [f"| [{e.name}](#{_anchor(e)}) | {e.title} | {_summary(r)} |" for e, r in results]
    if stored:
        lines += ["", "## Stored runs", "", *RUNS_HEAD, *map(_run_row, stored)]
    for experiment, result in results:
        lines += ["", *_section(experiment, result)]
        picture = store.path / "figures" / f"{experiment.name}.{STORED}.png"
        if figures is not None and result is not None and picture.is_file():
            lines += ["", f"![{experiment.title}]({figures}/{experiment.name}.{STORED}.png)"]
    return "\n".join(lines) + "\n"


def refresh(experiment: Experiment, store: Store, stored: list[Run], data: Path | None) -> bool:
    """Analyse the stored runs, and published predictions in `data`, and keep what comes out.

    True if there was something to analyse. Without the published files an experiment reads, what
    was found with them before is joined.
    """
    own = _accepted(experiment, stored)
    files = published.available(data, experiment.files)
    if not own and not files:
        return False
    found = _analysed(experiment, own, data)
    other = _other(experiment, store)
    says = _says(found)
    if says or files or not experiment.files:  # else its files may be given another time
        # Or what it said of other runs, or drew, would stay.
        store.forget(experiment.name, STORED)
    if not says:
        return False
    if other is not None and (experiment.made_up or not files):
        found = _joined(experiment, found, other)
    store.write(found)
    whole = all(f.verdict != "not run" for f in found.findings)
    if own and whole and found.panels and ("/fig" in experiment.name or experiment.name in DRAWN):
        figure_of(found, store.path)
    return True


def _result(experiment: Experiment, store: Store, stored: list[Run]) -> Result | None:
    """What was kept of just these stored runs, else an analysis of them, else another scale's."""
    own = _accepted(experiment, stored)
    kept = store.read(experiment.name, STORED)
    if kept is not None and kept.runs == tuple(run.label for run in own):
        return kept
    other = _other(experiment, store)
    found = _analysed(experiment, own, None) if own else None
    if _says(found):
        return found if other is None else _joined(experiment, found, other)
    if other is None and experiment.from_tables:
        return analysed(experiment, Material(STORED))
    return other or found


def _says(found: Result | None) -> bool:
    """Whether it has anything beside reasons for not having been run."""
    return found is not None and any(f.verdict != "not run" for f in found.findings)


def _accepted(experiment: Experiment, stored: list[Run]) -> list[Run]:
    return [run for run in stored if experiment.accepts(run.settings)]


def _other(experiment: Experiment, store: Store) -> Result | None:
    """The best of what was found at a scale."""
    kept = (store.read(experiment.name, scale) for scale in ("paper", "lite", "smoke"))
    return next((r for r in kept if r is not None and r.comparable), None)


def _analysed(experiment: Experiment, own: list[Run], data: Path | None) -> Result | None:
    """None if a run or file it needs is not there."""
    try:
        return analysed(experiment, Material(STORED, tuple(own), data))
    except (KeyError, StopIteration):
        return None


def _joined(experiment: Experiment, ours: Result, other: Result) -> Result:
    """Our stored runs, then what made-up data or published networks say."""
    origin = "On made-up data" if experiment.made_up else "Published networks"
    return dataclasses.replace(
        ours,
        findings=ours.findings + other.findings,
        tables=ours.tables + other.tables,
        conclusion=f"{ours.conclusion} {origin}: {other.conclusion}",
    )


def _run_row(run: Run) -> str:
    b, a, s = run.before, run.after, run.settings
    where = run.provenance.get("hardware", {})
    how = f"{s.get('reduction')} loss, clip {s.get('clip_norm')}, {s.get('precision')}"
    return (
        f"| {run.label}, {how}, {where.get('gpu') or where.get('cpu')} "
        f"| {_interval(b['error'])} | {b['nll'].value:.4f} | {_interval(b['ece'])} "
        f"| {_interval(b['adaptive_ece'])} | {100 * b['classwise_ece'].value:.3f} "
        f"| {run.temperature:.1f} | {_interval(a['ece'])} |"
    )


def _summary(result: Result | None) -> str:
    if result is None:
        return "not run"
    counts: dict[str, int] = {}
    for f in result.findings:
        counts[f.verdict] = counts.get(f.verdict, 0) + 1
    return ", ".join(f"{counts[k]} {k}" for k in VERDICTS if k in counts)


def _section(experiment: Experiment, result: Result | None) -> list[str]:
    title = experiment.title if experiment.title.endswith("?") else f"{experiment.title}."
    lines = [f"## {experiment.name}", "", f"{title} The paper: {experiment.claim}.", ""]
    if result is None:
        needs = experiment.recipes("paper")
        data = sorted({s["dataset"] for s in needs.values()})
        runs = "1 training run" if len(needs) == 1 else f"{len(needs)} training runs"
        return [*lines, f"Not run: it takes {runs} on {', '.join(data)}."]
    lines += [result.conclusion, ""]
    for table in result.tables:
        lines += ["", *_table(table)] if lines[-1] else _table(table)
    # Where tables show the measured values, only comparisons are listed beside them.
    listed = [f for f in result.findings if not result.tables or f.verdict != "measured"]
    if listed:
        lines += [""] if result.tables else []
        lines += ["| quantity | paper | ours | n | verdict |", "|---|---|---|---|---|"]
        lines += [_row(f) for f in listed[:SHOWN]]
    left = len(result.findings) - len(listed[:SHOWN])
    if left:
        lines += ["", f"The store has {left} more values, with n and intervals."]
    if result.scale in ("paper", "lite") and not experiment.theory:
        lines += ["", f"Scale: {result.scale}."]
    return lines


def _table(table: Table) -> list[str]:
    head = ["| " + " | ".join(table.columns) + " |", "|" + "---|" * len(table.columns)]
    body = ["| " + " | ".join(map(str, row)) + " |" for row in table.rows]
    return [f"{table.title[:1].upper()}{table.title[1:]}:", "", *head, *body]


def _row(f: Finding) -> str:
    if f.ours is None:
        ours = f"— ({f.reason})" if f.reason else "—"
    else:
        ours = _number(f.ours)
        if f.low is not None and f.high is not None:
            ours += f" [{_number(f.low)}, {_number(f.high)}]"
    paper = "—" if f.paper is None else _number(f.paper)
    paper += f" ({f.setting})" if f.setting and f.paper is not None else ""
    what = f.what.replace("|", "\\|")
    return f"| {what} | {paper} | {ours} | {'' if f.n is None else f.n} | {f.verdict} |"


def _number(x: float) -> str:
    return f"{x:.4g}"


def _interval(e: Estimate) -> str:
    return f"{100 * e.value:.2f} [{100 * e.low:.2f}, {100 * e.high:.2f}]"


def _anchor(e: Experiment) -> str:
    return e.name.replace("/", "")
