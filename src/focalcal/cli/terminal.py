"""Output of the commands: text and tables for people, JSON for programs, progress on stderr."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import json
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from focalcal.errors import InputWarning

_QUIET = contextvars.ContextVar("quiet", default=False)
LOG_EVERY = 10.0
"""Seconds between progress lines in a log."""


@dataclasses.dataclass(frozen=True)
class Result:
    """The result of a command: a record for programs, text and tables for people, an exit code."""

    record: Any
    parts: Iterable[Any]
    code: int = 0


@contextlib.contextmanager
def quietly(quiet: bool) -> Iterator[None]:
    """Suppress text and progress if `quiet`; each warning is printed once, as one line."""
    token = _QUIET.set(quiet)
    printed: set[str] = set()

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        if str(message) not in printed:
            printed.add(str(message))
            sys.stderr.write(f"focalcal: warning: {message}\n")

    try:
        with warnings.catch_warnings(action="always", category=InputWarning):
            warnings.showwarning = show
            yield
    finally:
        _QUIET.reset(token)


def note(text: str) -> None:
    """A line for people on standard error, so that standard output stays machine-readable."""
    if not _QUIET.get():
        sys.stderr.write(f"{text}\n")


class Output(Console):
    """A console that leaves a broken pipe to `main`; rich would exit with code 1."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def out() -> Console:
    """Standard output; rich drops colours off a terminal and where NO_COLOR is set."""
    return Output(highlight=False, markup=False, quiet=_QUIET.get())


def show(*parts: Any, style: str | None = None) -> None:
    """Print texts and tables one below the other; a Text with `no_wrap` stays on one line."""
    for part in parts:
        out().print(part, style=style, soft_wrap=isinstance(part, Text) and part.no_wrap)


def print_json(record: Any) -> None:
    """Machine-readable output: strict JSON, in which NaN and infinity are null."""
    from focalcal.metrics.summary import plain

    text = json.dumps(plain(record), indent=2, allow_nan=False, ensure_ascii=False)
    sys.stdout.write(text + "\n")


def result(json: bool, record: Any, *parts: Any) -> None:
    """Print the result of a command: the record as JSON if `json`, otherwise texts and tables."""
    if json:
        print_json(record)
    else:
        show(*parts)


def table(
    header: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None, *, text: int = 1
) -> Table:
    """A table whose first `text` columns hold text and whose other columns hold numbers."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    made.title, made.title_justify = title, "left"
    for i, name in enumerate(header):
        made.add_column(name, justify="left" if i < text else "right", overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made


def count(n: int, one: str, several: str = "") -> str:
    """A number of things, as in "1 file" or "1,000 files"."""
    return f"{n:,} {one if n == 1 else several or one + 's'}"


@contextlib.contextmanager
def progress(what: str) -> Iterator[Callable[..., None]]:
    """Yield a function of the fraction done and, optionally, of the current step.

    It draws a bar on a terminal and writes an occasional line to a log.
    """
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if _QUIET.get() or not console.is_terminal:
        yield _logger(what)
        return
    columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=1.0)
        yield lambda fraction, now=None: bar.update(task, completed=fraction, description=now)


def _logger(what: str) -> Callable[..., None]:
    started = last = time.monotonic()

    def log(fraction: float, now: str | None = None) -> None:
        nonlocal last
        time_now = time.monotonic()
        if time_now - last < LOG_EVERY or not 0 < fraction < 1:
            return
        last = time_now
        left = (time_now - started) * (1 - fraction) / fraction
        doing = f"{what}: {now}" if now else what
        note(f"{doing}, {100 * fraction:.0f} % done, about {_duration(left)} left")

    return log


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@contextlib.contextmanager
def working(what: str) -> Iterator[None]:
    """Show what runs for an unknown time: a spinner, or a line in a log if it takes long."""
    console = Console(stderr=True)
    if _QUIET.get():  # read here, because the timer's thread has another context
        yield
    elif console.is_terminal:
        with console.status(what):
            yield
    else:
        later = threading.Timer(LOG_EVERY, note, [f"{what} …"])
        later.daemon = True
        later.start()
        try:
            yield
        finally:
            later.cancel()
            later.join()
