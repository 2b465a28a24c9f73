"""What the commands share: a console, a progress bar that only people see, JSON output."""

from __future__ import annotations

import contextlib
import contextvars
import json
import sys
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer
from rich.console import Console

_QUIET = contextvars.ContextVar("quiet", default=False)


@contextlib.contextmanager
def quietly(quiet: bool) -> Iterator[None]:
    """While this is open and `quiet`, text for people and progress are not printed."""
    token = _QUIET.set(quiet)
    try:
        yield
    finally:
        _QUIET.reset(token)


def is_quiet() -> bool:
    return _QUIET.get()


LogitsKey = Annotated[str | None, typer.Option(help="Array or column of logits.")]
ProbsKey = Annotated[str | None, typer.Option(help="Array or column of probabilities.")]
LabelsKey = Annotated[str | None, typer.Option(help="Array or column of labels.")]
Floor = Annotated[float | None, typer.Option(help="Smallest probability, for files with zeros.")]


def out() -> Console:
    """Standard output; rich drops colours by itself off a terminal and where NO_COLOR is set."""
    return Console(highlight=False, quiet=is_quiet())


def print_json(record: Any) -> None:
    """Machine-readable output: strict JSON, NaN and infinity never appear."""
    sys.stdout.write(json.dumps(record, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


@contextlib.contextmanager
def progress(what: str) -> Iterator[Callable[[float], None]]:
    """Yield a function of the fraction done; it draws on stderr, and only on a terminal."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=is_quiet() or not console.is_terminal,
    ) as bar:
        task = bar.add_task(what, total=1.0)
        yield lambda fraction: bar.update(task, completed=fraction)


@contextlib.contextmanager
def working(what: str) -> Iterator[None]:
    """A spinner on stderr, and only on a terminal, while something of unknown length runs."""
    console = Console(stderr=True)
    if is_quiet() or not console.is_terminal:
        yield
        return
    with console.status(what):
        yield
