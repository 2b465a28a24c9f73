"""`focalcal theory`: the figures, numbers and errata of the theory, as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from focalcal.cli import terminal


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: focalcal theory -o theory.html")(theory)


def theory(
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write.")] = Path(
        "theory.html"
    ),
    json: Annotated[
        bool, typer.Option("--json", help="Print the errata as JSON instead of writing a page.")
    ] = False,
) -> None:
    """Write the theory page: figures, numbers and errata."""
    if json:
        import dataclasses

        from focalcal_papers.errata import errata

        terminal.print_json([dataclasses.asdict(e) for e in errata()])
        return
    from focalcal_papers import theory_page as page

    with terminal.progress("theory") as progress:
        path = page.write(output, progress)
    terminal.out().print(
        f"{path} ({path.stat().st_size / 1e6:.1f} MB)", markup=False, soft_wrap=True
    )
