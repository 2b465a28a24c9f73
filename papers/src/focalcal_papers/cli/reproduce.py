"""`focalcal reproduce`: every table and figure of the papers by name; the result store."""

from __future__ import annotations

import difflib
import fnmatch
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from focalcal.cli import terminal
from focalcal.errors import InputError
from focalcal.files import check_suffix
from focalcal_papers.cli import Device, Json

if TYPE_CHECKING:
    from focalcal_papers.experiments import Result, Store


RESULTS = Path("results")
SCALES_MEAN = (
    "paper scale: the paper's own data, split, network, length and recipe (an open question has "
    "none: ours, at that length); lite: a smaller network or fewer epochs; smoke: made-up data, "
    "which stand in for real ones. shortened: fewer epochs than the paper."
)


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: focalcal reproduce fts/fig1")(reproduce)


def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="E.g. ie/table1, 'fts/*', all; see --list."),
    ] = None,
    list_names: Annotated[
        bool, typer.Option("--list", help="List the names given, or all, and what has been run.")
    ] = False,
    scale: Annotated[
        str, typer.Option(help="smoke (CPU), lite (a GPU, minutes) or paper.")
    ] = "smoke",
    data: Annotated[Path | None, typer.Option(help="Folder of data and predictions.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Result store: results; --list looks in papers/results too.")
    ] = None,
    add: Annotated[
        list[Path] | None,
        typer.Option(metavar="RUN_DIR", help="Add a finished run folder to the store."),
    ] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE.md", help="Write the report of the store.")
    ] = None,
    device: Device = "auto",
    json_output: Json = False,
) -> None:
    """Reproduce tables and figures of the papers.

    Results are shown beside the published values. Runs are kept under --out and shared between
    names; what is finished is not run again.
    """
    from focalcal_papers.experiments import EXPERIMENTS, Run, Store
    from focalcal_papers.experiments import reproduce as run_experiment
    from focalcal_papers.experiments.runner import NothingToRun

    if not (names or list_names or add or report):
        raise InputError("expected a NAME, --list, --add RUN_DIR or --report FILE.md; got none")
    if report is not None:
        check_suffix(report, (".md",))
    if list_names:
        ours = Path("papers") / RESULTS
        here = (RESULTS / "trained").is_dir() or not ours.is_dir()
        _list(names or ["all"], Store(out or (RESULTS if here else ours)), json_output)
        return
    out = out or RESULTS
    store = Store(out)
    stored = any((out / part).is_dir() for part in ("trained", "findings"))
    if report is not None and not (names or add or stored):
        raise InputError(f"expected a result store at --out {out}, got none; check its name")
    for folder in add or []:
        typer.echo(f"kept: {store.add(Run.from_folder(folder))}", err=json_output)
    records = []
    chosen = _chosen(names or [], list(EXPERIMENTS))
    for name in chosen:
        try:
            with terminal.working(name):
                options = {"data": data, "device": device, "tell": _tell}
                result = run_experiment(EXPERIMENTS[name], scale, out, **options)
        except NothingToRun as error:
            if not records and name == chosen[-1]:
                raise
            typer.echo(f"left out: {error}", err=True)
            continue
        records.append(result.to_dict())
        if not json_output:
            _print(result, EXPERIMENTS[name].title)
    if report is not None:
        _write_report(report, store, data)
        typer.echo(f"report: {report}", err=json_output)
    if json_output and records:
        terminal.print_json(records if len(records) > 1 else records[0])


def _tell(step: str) -> None:
    if sys.stderr.isatty():
        terminal.note(f"  {step}")


def _write_report(report: Path, store: Store, data: Path | None) -> None:
    """Measure and analyse the stored runs again, then write the report of the whole store."""
    from focalcal_papers.experiments import EXPERIMENTS, refresh, reproduction_document

    with terminal.working("intervals of the stored runs"):
        store.remeasure()
    stored = store.runs()
    for name, experiment in EXPERIMENTS.items():
        with terminal.working(name):
            refresh(experiment, store, stored, data)
    figures = os.path.relpath(store.path / "figures", report.parent)
    made = reproduction_document(EXPERIMENTS.values(), store, Path(figures).as_posix())
    made.write(report, store)


def _chosen(patterns: list[str], known: list[str]) -> list[str]:
    """The names that match, in order; `*` and `?` are wildcards, "all" is everything."""
    found: dict[str, None] = {}
    for pattern in patterns:
        matches = known if pattern == "all" else fnmatch.filter(known, pattern)
        if not matches:
            near = difflib.get_close_matches(pattern, known, n=1, cutoff=0.0)[0]
            raise InputError(f"expected a name of --list, got {pattern!r}; the nearest is {near}")
        found |= dict.fromkeys(matches)
    return list(found)


def _list(patterns: list[str], store: Store, json_output: bool) -> None:
    """Names, the number of runs each needs at every scale, and what the store has of it."""
    from rich.padding import Padding

    from focalcal_papers.experiments import EXPERIMENTS, SCALES
    from focalcal_papers.experiments.overview import what_was_run

    stored = store.runs()
    rows: list[dict[str, Any]] = [
        {
            "name": e.name,
            "title": e.title,
            "runs": {scale: len(e.recipes(scale)) for scale in SCALES},
            "theory": e.theory,
            "files": list(e.files),
            "run": _with_stand_ins(what_was_run(e, stored, store), e.name, store),
        }
        for e in map(EXPERIMENTS.__getitem__, _chosen(patterns, list(EXPERIMENTS)))
    ]
    if json_output:
        terminal.print_json(rows)
        return
    for row in rows:
        terminal.show(f"{row['name']}  {row['title']}", style="bold")
        counts = [f"{n} {scale}" for scale, n in row["runs"].items() if n]
        needs = [f"runs needed: {', '.join(counts)}"] if counts else []
        for text in (*needs, row["run"]):
            terminal.show(Padding(text, (0, 0, 0, 4), expand=False))
    terminal.show(f"\nWhat has been run: {store.path}. {SCALES_MEAN}")


def _with_stand_ins(run: str, name: str, store: Store) -> str:
    made_up = run == "not run" and store.read(name, "smoke") is not None
    return "smoke scale: stand-in data" if made_up else run


def _print(result: Result, title: str) -> None:
    rows = []
    for f in result.findings:
        paper = "" if f.paper is None else f"{f.paper:.4g}"
        ours = f.reason if f.ours is None else f"{f.ours:.4g}"
        interval = "" if f.low is None or f.high is None else f"{f.low:.4g} to {f.high:.4g}"
        n = "" if f.n is None else str(f.n)
        verdict = f.verdict if result.comparable else "stand-in data"
        rows.append((f.what, paper, ours, interval, n, verdict))
    header = ("quantity", "paper", "ours", "95 %", "n", "verdict")
    shown = terminal.table(header, rows, f"{result.name}: {title} ({result.scale})")
    terminal.show(shown, result.conclusion)
