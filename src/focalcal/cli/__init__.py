"""The command line: parses, calls, prints. One module per command, which defers heavy imports."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import inspect
import os
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
import typer.core

from focalcal import __version__
from focalcal.cli import _inputs, terminal
from focalcal.cli.options import Json, Quiet, declared
from focalcal.errors import FileFormatError, FocalcalError, InputError, MissingExtraError

PAPERS = ("train", "predict", "curvature", "reproduce", "theory")
"""Commands of the package focalcal-papers. Like any other package it announces a function
`register(app)` per command as an entry point of the group "focalcal.commands"."""
PANELS = {
    "Measure": ("evaluate", "compare", "report"),
    "Calibrate": ("fit", "apply", "methods", "show", "export"),
    "Decide and monitor": ("decide", "monitor"),
    "Installation": ("demo", "doctor"),
    "Papers": PAPERS,
}
"""Commands by their heading in the help."""
COMMANDS = tuple(name for names in PANELS.values() for name in names if name not in PAPERS)
"""Commands of this package; each is a function of its own module."""

BAD_INPUT = (
    InputError,
    FileFormatError,
    MissingExtraError,
    FileNotFoundError,
    FileExistsError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)
"""Errors that different input or options would avoid: exit code 2. Other expected errors: 1."""


class Group(typer.core.TyperGroup):
    """Names the package to install for a command of the papers."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in PAPERS and args[0] not in self.commands:
            raise InputError(
                f"focalcal {args[0]} is a command of focalcal-papers, which is not installed; "
                "install it with: pip install focalcal-papers (in a clone: pip install ./papers)"
            )
        return super().resolve_command(ctx, args)


class App(typer.Typer):
    """A Typer whose commands share options, and print the `terminal.Result` that they return.

    All take `--quiet`, those that return a Result `--json`, and those with a parameter `inputs`
    the options of its type. example: a command line at the end of the help.
    """

    def command(
        self, *args: Any, example: str | None = None, **options: Any
    ) -> Callable[[Callable], Callable]:
        add = super().command

        def register(function: Callable) -> Callable:
            panels = [title for title, names in PANELS.items() if function.__name__ in names]
            options["rich_help_panel"] = panels[0] if panels else None
            if example:
                files = "inputs" in inspect.signature(function).parameters
                options["epilog"] = f"Example: {example}" + f"\n\n{_inputs.LAYOUTS}" * files
            paragraphs = inspect.cleandoc(function.__doc__ or "").split("\n\n")
            options["help"] = "\n\n".join(" ".join(text.split()) for text in paragraphs)
            add(*args, **options)(_with_options(function))
            return function

        return register


def _flags(json: Json = False, quiet: Quiet = False) -> None:
    """Options of every command that returns a `terminal.Result`."""


def _with_options(function: Callable) -> Callable:
    given = inspect.signature(function, eval_str=True)
    prints = given.return_annotation is terminal.Result
    parameters = dict(given.parameters)
    flags = dict(inspect.signature(_flags, eval_str=True).parameters)
    group = parameters.pop("inputs").annotation if "inputs" in parameters else None
    fields = inspect.signature(group, eval_str=True).parameters if group else {}
    if not prints:
        del flags["json"]

    @functools.wraps(function)
    def run(*args: Any, quiet: bool = False, **options: Any) -> None:
        json = prints and options.pop("json")
        if group:
            options["inputs"] = group(**{name: options.pop(name) for name in fields})
        with terminal.quietly(quiet):
            found = function(*args, **options)
            if prints:
                terminal.result(json, found.record, *found.parts)
        if prints and found.code:
            raise typer.Exit(found.code)

    shown = [declared(parameter) for parameter in (*parameters.values(), *flags.values())]
    shown += [declared(field, "Input files") for field in fields.values()]
    # Typer reads types from both.
    run.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return run


app = App(
    name="focalcal",
    cls=Group,
    help="Measure and correct the calibration of classifiers.",
    epilog="Exit codes: 0 done, 1 the command failed, 2 bad input or usage, 3 an alarm (monitor), "
    "130 interrupted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"focalcal {__version__}")
        raise typer.Exit()


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    pass


for _name in COMMANDS:
    importlib.import_module(f"focalcal.cli.{_name}")
for _entry in importlib.metadata.entry_points(group="focalcal.commands"):
    try:
        _entry.load()(app)
    except ImportError as _error:  # a broken plug-in must not disable the other commands
        sys.stderr.write(f"focalcal: warning: no command {_entry.name}: {_error}\n")


def main() -> None:
    """Run the command line; expected failures become one line on stderr and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # without UTF-8: "?", not a traceback
    try:
        code = app(standalone_mode=False, prog_name="focalcal")
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except BrokenPipeError:
        # The reader has exited (`focalcal ... | head`); Python must not flush into the closed pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    # UsageError, whose module depends on typer's version.
    except typer.BadParameter.__base__ as error:
        code = error.exit_code
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()
        else:
            path = error.ctx.command_path if error.ctx else "focalcal"
            text = error.format_message().rstrip(".")
            if "extra argument" in text:  # the shell has replaced a pattern by file names
                text += "; quote patterns, as in 'weeks/*.csv'"
            _print_error(f"{text}; see {path} --help")
    except (FocalcalError, OSError, MemoryError) as error:
        _print_error(str(error) or "out of memory")
        code = 2 if isinstance(error, BAD_INPUT) else 1
    if code == 130:
        sys.stderr.write("interrupted\n")
    sys.exit(code if isinstance(code, int) else 0)


def _print_error(message: str) -> None:
    sys.stderr.write(f"focalcal: error: {' '.join(message.split())}\n")
