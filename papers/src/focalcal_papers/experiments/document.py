"""papers/REPRODUCTION.md and the pages beside it, generated from the result store."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from focalcal.files import write_text
from focalcal_papers.experiments import published
from focalcal_papers.experiments.base import MARGIN, STORED, Experiment, Material, Result
from focalcal_papers.experiments.claims import ONLY_IF, PAPERS, Claim, by_paper, claims
from focalcal_papers.experiments.ie_grid import own_cells, printed_cells
from focalcal_papers.experiments.overview import overview, run_rows, table_lines
from focalcal_papers.experiments.runner import analysed, figure_of
from focalcal_papers.experiments.runs import Run
from focalcal_papers.experiments.store import Store
from focalcal_papers.figures import draw, save

SHOWN = 40
"""Comparisons of one experiment on its page; values.csv has them all."""
IE_TABLES = ("1", "2", "3", "7", "8", "9", "10", "11", "12", "13")
DRAWN = ("fts/open2", "fts/shift", "fts/every")
"""Shown as a picture too, like the figures."""
VERDICTS = ("agrees", "differs", "similar", "unlike", "measured", "not run")


@dataclass(frozen=True)
class Document:
    """The first page, the pages beside it by file name, and the figures of the claims."""

    first: str
    pages: dict[str, str]
    claims: tuple[Claim, ...]

    def write(self, path: Path, store: Store) -> None:
        """Write the first page to `path`, the others to the folder `reproduction` beside it."""
        for paper, found in by_paper(self.claims).items():
            if panels := [p for claim in found for p in claim.panels]:
                save(draw(panels), store.path / "figures" / "claims" / f"{paper.lower()}.png")
        for name, text in self.pages.items():
            write_text(path.parent / "reproduction" / name, text)
        write_text(path, self.first)


def reproduction_document(
    experiments: Iterable[Experiment], store: Store, figures: str | None = None
) -> Document:
    """All pages. figures: where the store's figures are, as seen from the first page."""
    stored = store.runs()
    results = [(e, _result(e, store, stored)) for e in experiments]
    found = tuple(claims(stored, store))
    pages = {
        f"{paper}.md": _paper_page(paper, results, store, figures)
        for paper in dict.fromkeys(_paper(e) for e, _ in results)
    }
    pages["runs.md"] = "\n".join(["# Stored runs", "", *run_rows(stored)]) + "\n"
    pages["values.csv"] = _values(results)
    questions = store.path / "open_questions.md"
    if questions.is_file():
        pages["open-questions.md"] = questions.read_text("utf-8")
    count, cells = _cells(stored)
    first = [
        _prose("head"),
        count,
        "",
        *_claims(found, stored, figures),
        "",
        *cells,
        "",
        *overview(stored),
        "",
        *_names(results, pages),
        "",
        _prose("reading").format(margin=100 * MARGIN).rstrip(),
    ]
    return Document("\n".join(first) + "\n", pages, found)


def _prose(name: str) -> str:
    """A fixed text of the first page."""
    return (Path(__file__).parent / f"{name}.md").read_text("utf-8")


def _paper(e: Experiment) -> str:
    return e.name.split("/")[0]


def _claims(found: Sequence[Claim], stored: Sequence[Run], figures: str | None) -> list[str]:
    n = {run.dataset: run.before["ece"].n for run in stored}
    sizes = "; ".join(f"{name} {count:,}" for name, count in n.items())
    lines = ["## What the papers claim, and what we found", ""]
    rows = [(c.paper, c.says, f"**{c.verdict}**") for c in found]
    lines += table_lines(("paper", "claim", "verdict"), rows)
    lines += ["", f"n, the number of test samples: {sizes}."]
    for paper, own in by_paper(found).items():
        lines += ["", f"### {paper}: {PAPERS[paper]}"]
        for c in own:
            condition = f" {c.condition}." if c.verdict == ONLY_IF and c.condition else ""
            lines += ["", f"**{c.says[:1].upper()}{c.says[1:]}: {c.verdict}{condition or '.'}**"]
            lines += ["", c.evidence]
        if figures is not None and any(c.panels for c in own):
            lines += ["", f"![{paper}]({figures}/claims/{paper.lower()}.png)"]
    return lines


def _cells(stored: Sequence[Run]) -> tuple[str, list[str]]:
    """How many printed cells have runs in the paper's own setting, and the section about it."""
    counted = [(t, own_cells(t, stored), len(printed_cells(t))) for t in IE_TABLES]
    own, total = (sum(c[i] for c in counted) for i in (1, 2))
    count = (
        f"{own} of the {total} cells of IE's Tables 1–3 and 7–13 have runs in the paper's own"
        f" setting, among them {counted[0][1]} of the {counted[0][2]} of Table 1."
    )
    table = table_lines(("table", *IE_TABLES), [("cells", *(f"{a} of {b}" for _, a, b in counted))])
    return count, [_prose("own-setting").format(count=count), *table]


def _names(results: Sequence[tuple[Experiment, Result | None]], pages: dict[str, str]) -> list[str]:
    lines = ["## Names", "", "Every name runs with `focalcal reproduce NAME`; all values are in"]
    lines += ["`reproduction/values.csv`, all runs in [runs](reproduction/runs.md)."]
    if "open-questions.md" in pages:
        lines[-1] += " What the papers left open: [answers](reproduction/open-questions.md)."
    rows = []
    for e, r in results:
        place = f"reproduction/{_paper(e)}.md#{e.name.replace('/', '')}"
        rows.append((f"[{e.name}]({place})", e.title, summary(r)))
    return [*lines, "", *table_lines(("name", "what", "verdict"), rows)]


def _paper_page(
    paper: str,
    results: Sequence[tuple[Experiment, Result | None]],
    store: Store,
    figures: str | None,
) -> str:
    lines = [f"# {paper.upper()}: {PAPERS.get(paper.upper(), paper)}"]
    for experiment, result in results:
        if _paper(experiment) != paper:
            continue
        lines += ["", *_section(experiment, result)]
        picture = store.path / "figures" / f"{experiment.name}.{STORED}.png"
        if figures is not None and result is not None and picture.is_file():
            lines += ["", f"![{experiment.title}](../{figures}/{experiment.name}.{STORED}.png)"]
    return "\n".join(lines) + "\n"


def _section(experiment: Experiment, result: Result | None) -> list[str]:
    title = experiment.title if experiment.title.endswith("?") else f"{experiment.title}."
    lines = [f"## {experiment.name}", "", f"{title} The paper: {experiment.claim}.", ""]
    if result is None:
        needs = experiment.recipes("paper")
        data = sorted({s["dataset"] for s in needs.values()})
        runs = "1 training run" if len(needs) == 1 else f"{len(needs)} training runs"
        return [*lines, f"Not run: it takes {runs} on {', '.join(data)}."]
    lines += [result.conclusion]
    for table in result.tables:
        lines += ["", f"{table.title[:1].upper()}{table.title[1:]}:", ""]
        lines += table_lines(table.columns, table.rows)
    listed = [f for f in result.findings if f.verdict != "measured"]
    if listed and not result.tables:
        rows = []
        for f in listed[:SHOWN]:
            ours = f"— ({f.reason})" if f.ours is None else f.text
            paper = "—" if f.paper is None else f"{f.paper:.4g}"
            paper += f" ({f.setting})" if f.setting and f.paper is not None else ""
            n = "" if f.n is None else f.n
            rows.append((f.what.replace("|", "\\|"), paper, ours, n, f.verdict))
        lines += ["", *table_lines(("quantity", "paper", "ours", "n", "verdict"), rows)]
    if result.scale in ("paper", "lite") and not experiment.theory:
        lines += ["", f"Scale: {result.scale}."]
    return lines


def _values(results: Sequence[tuple[Experiment, Result | None]]) -> str:
    """Every value as a line of CSV."""
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    names = ("ours", "spread", "seeds", "low", "high", "n", "paper", "setting", "verdict", "reason")
    table.writerow(("name", "quantity", *names))
    for e, r in results:
        for f in r.findings if r is not None else ():
            values = (getattr(f, name) for name in names)
            shown = (f"{v:.6g}" if isinstance(v, float) else v for v in values)
            table.writerow((e.name, f.what, *shown))
    return out.getvalue()


def summary(result: Result | None) -> str:
    """How many values have which verdict."""
    if result is None:
        return "not run"
    counts = Counter(f.verdict for f in result.findings)
    return ", ".join(f"{counts[k]} {k}" for k in VERDICTS if k in counts)


def refresh(experiment: Experiment, store: Store, stored: list[Run], data: Path | None) -> bool:
    """Analyse the stored runs and the published predictions in `data`, and keep the result.

    True if there was something to analyse. If the published files that an experiment reads are
    missing, its earlier result with them is joined.
    """
    own = experiment.accepted(stored)
    files = published.available(data, experiment.files)
    if not own and not files:
        return False
    found = _analysed(experiment, own, data)
    other = next(iter(store.kept(experiment.name)), None)
    was_run = _was_run(found)
    if was_run or files or not experiment.files:  # else its files may be given another time
        # Otherwise results and figures of other runs would remain.
        store.forget(experiment.name, STORED)
    if not was_run:
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
    own = experiment.accepted(stored)
    kept = store.read(experiment.name, STORED)
    if kept is not None and kept.runs == tuple(run.label for run in own):
        return kept
    other = next(iter(store.kept(experiment.name)), None)
    found = _analysed(experiment, own, None) if own else None
    if _was_run(found):
        return found if other is None else _joined(experiment, found, other)
    if other is None and experiment.from_tables:
        return analysed(experiment, Material(STORED))
    return other or found


def _was_run(found: Result | None) -> bool:
    """Whether anything in it was run."""
    return found is not None and any(f.verdict != "not run" for f in found.findings)


def _analysed(experiment: Experiment, own: list[Run], data: Path | None) -> Result | None:
    """The result, or None if a run or file it needs is missing."""
    try:
        return analysed(experiment, Material(STORED, tuple(own), data))
    except (KeyError, StopIteration):
        return None


def _joined(experiment: Experiment, ours: Result, other: Result) -> Result:
    """Our stored runs, followed by the results on synthetic data or published networks."""
    origin = "On made-up data" if experiment.made_up else "Published networks"
    return dataclasses.replace(
        ours,
        findings=ours.findings + other.findings,
        tables=ours.tables + other.tables,
        conclusion=f"{ours.conclusion} {origin}: {other.conclusion}",
    )
