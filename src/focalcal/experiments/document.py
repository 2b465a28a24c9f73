"""docs/REPRODUCTION.md, generated from the result store."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path

from focalcal.experiments import published
from focalcal.experiments.base import MARGIN, Experiment, Finding, Material, Result
from focalcal.experiments.runner import analysed
from focalcal.experiments.runs import Run
from focalcal.experiments.store import Store
from focalcal.metrics import Estimate

SHOWN = 40
"""Rows of one experiment in the document; the store has them all."""

RUNS_HEAD = (
    "| run | test error % | NLL | ECE % | T | ECE % after T |",
    "|---|---|---|---|---|---|",
)
HEAD = f"""# Reproduction

Generated from the result store by `focalcal reproduce --report`; do not edit. A result counts only
if it was really run. Every name runs with `focalcal reproduce NAME --scale smoke|lite|paper`; the
smallest scale trains on made-up stand-in data, and such results are not reported here. Theory, and
what published networks' predictions answer, is the same at every scale.

Verdicts. *agrees*: for theory, within the printed precision of the paper's (or, where the paper is
wrong, of the independently checked) value; for trained networks, the printed value, give or take
{MARGIN:.0%} of itself, meets our 95 % interval. *differs*: it does not. *measured*: the paper
prints no number to compare with. *not run*: with the reason.
"""


def reproduction_text(
    experiments: Iterable[Experiment], store: Store, data: Path | None = None
) -> str:
    """The whole document; `data` may hold published predictions to analyse anew."""
    stored = store.runs()
    results = [(e, _result(e, store, stored, data)) for e in experiments]
    lines = [HEAD, "| name | what | verdict |", "|---|---|---|"]
    lines += [f"| [{e.name}](#{_anchor(e)}) | {e.title} | {_summary(r)} |" for e, r in results]
    if stored:
        lines += [
            "",
            "## Stored runs",
            "",
            "| run | test error % | NLL | ECE % | T | ECE % after T |",
            "|---|---|---|---|---|---|",
        ]
        for run in stored:
            b, a = run.before, run.after
            where = run.provenance.get("hardware", {})
            lines.append(
                f"| {run.label}, {run.settings.get('reduction')} loss, clip "
                f"{run.settings.get('clip_norm')}, {where.get('gpu') or where.get('cpu')} "
                f"| {100 * b['error'].value:.2f} | {b['nll'].value:.4f} "
                f"| {_interval(b['ece'])} | {run.temperature:.1f} | {_interval(a['ece'])} |"
            )
    for experiment, result in results:
        lines += ["", *_section(experiment, result)]
    return "\n".join(lines) + "\n"


def _result(
    experiment: Experiment, store: Store, stored: list[Run], data: Path | None
) -> Result | None:
    """From stored runs and published predictions where there are any, else the kept findings."""
    own = [run for run in stored if experiment.accepts(run.settings)]
    files = published.available(data, experiment.files)
    kept = [store.read(experiment.name, scale) for scale in ("paper", "lite", "smoke")]
    kept = [r for r in kept if r is not None and r.comparable]
    best = kept[0] if kept else None
    if files or (own and (best is None or not best.runs)):
        try:
            found = analysed(experiment, Material("stored", tuple(own), data))
        except (KeyError, StopIteration):  # a run it needs is not among the stored
            return best
        return found if files or best is None else _joined(found, best)
    if best is None and experiment.from_tables:
        return analysed(experiment, Material("stored"))
    return best


def _joined(ours: Result, published: Result) -> Result:
    """Our stored runs, then what published networks say."""
    return dataclasses.replace(
        ours,
        findings=ours.findings + published.findings,
        conclusion=f"{ours.conclusion} Published networks: {published.conclusion}",
    )


def _summary(result: Result | None) -> str:
    if result is None:
        return "not run"
    counts: dict[str, int] = {}
    for f in result.findings:
        counts[f.verdict] = counts.get(f.verdict, 0) + 1
    order = ("agrees", "differs", "measured", "not run")
    return ", ".join(f"{counts[k]} {k}" for k in order if k in counts)


def _section(experiment: Experiment, result: Result | None) -> list[str]:
    lines = [f"## {experiment.name}", "", f"{experiment.title}. The paper: {experiment.claim}.", ""]
    if result is None:
        needs = experiment.recipes("paper")
        data = sorted({s["dataset"] for s in needs.values()})
        return [*lines, f"Not run: it takes {len(needs)} training runs on {', '.join(data)}."]
    lines += [result.conclusion, ""]
    lines += ["| quantity | paper | ours | n | verdict |", "|---|---|---|---|---|"]
    lines += [_row(f) for f in result.findings[:SHOWN]]
    if len(result.findings) > SHOWN:
        lines += ["", f"{len(result.findings) - SHOWN} more rows are in the store."]
    if result.scale in ("paper", "lite") and not experiment.theory:
        lines += ["", f"Scale: {result.scale}."]
    return lines


def _row(f: Finding) -> str:
    if f.ours is None:
        ours = f"— ({f.reason})" if f.reason else "—"
    else:
        ours = _number(f.ours)
        if f.low is not None and f.high is not None:
            ours += f" [{_number(f.low)}, {_number(f.high)}]"
    paper = "—" if f.paper is None else _number(f.paper)
    what = f.what.replace("|", "\\|")
    return f"| {what} | {paper} | {ours} | {'' if f.n is None else f.n} | {f.verdict} |"


def _number(x: float) -> str:
    return f"{x:.4g}"


def _interval(e: Estimate) -> str:
    return f"{100 * e.value:.2f} [{100 * e.low:.2f}, {100 * e.high:.2f}]"


def _anchor(e: Experiment) -> str:
    return e.name.replace("/", "")
