"""What the commands share: a console, a progress bar that only people see, JSON output."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console


def out() -> Console:
    """Standard output; rich drops colours by itself where it is not a terminal."""
    return Console(highlight=False)


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
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task(what, total=1.0)
        yield lambda fraction: bar.update(task, completed=fraction)


@contextlib.contextmanager
def working(what: str) -> Iterator[None]:
    """A spinner on stderr, and only on a terminal, while something of unknown length runs."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(what):
        yield
