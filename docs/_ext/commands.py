"""A page per command: its options from the program, its output from running it.

The pages are written anew by every build, so they cannot age.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import typer
from typer.testing import CliRunner

from focalcal.cli import app as program
from focalcal.examples import resnet18

# What each page shows, run in order in one folder that holds val.npz and test.npz.
EXAMPLES = {
    "evaluate": ["focalcal evaluate test.npz"],
    "fit": ["focalcal fit val.npz --method temperature -o cal.json"],
    "apply": [
        "focalcal fit val.npz --method temperature -o cal.json",
        "focalcal apply cal.json test.npz -o calibrated.npz",
    ],
    "decide": [
        "focalcal fit val.npz --method temperature -o cal.json",
        "focalcal decide test.npz --calibrator cal.json --target-accuracy 0.99",
    ],
    "compare": [
        "focalcal fit val.npz --method temperature -o cal.json",
        "focalcal apply cal.json test.npz -o calibrated.npz",
        "focalcal compare test.npz calibrated.npz --resamples 200",
    ],
    "monitor": [
        "focalcal fit val.npz --method temperature -o cal.json",
        "focalcal monitor val.npz test.npz --calibrator cal.json --tolerance 0.03",
    ],
    "methods": ["focalcal methods"],
    "doctor": ["focalcal doctor"],
    "report": [
        "focalcal report --val val.npz --test test.npz --methods identity,temperature "
        "--resamples 50 -o report.html"
    ],
}
LONG = {
    "demo": ["focalcal demo"],
    "train": ["focalcal train fashion-mnist-mlp --data FOLDER --loss fl-3"],
    "predict": ["focalcal predict RUN"],
    "curvature": ["focalcal curvature RUN"],
    "reproduce": ["focalcal reproduce 'ie/table*' --list", "focalcal reproduce fts/fig1"],
    "theory": ["focalcal theory -o theory.html"],
}
"""Commands that need data sets or more than a moment: shown, not run."""


@contextlib.contextmanager
def sample_files() -> Iterator[Path]:
    """A folder with the predictions of a ResNet-18 that come with the package."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for name, part in zip(("val", "test"), resnet18()):
                part.save(f"{name}.npz")
            yield Path(folder)
        finally:
            os.chdir(before)


def transcript(lines: list[str], run: bool) -> str:
    """The commands as typed, each followed by what it printed."""
    shown = []
    for line in lines:
        shown.append(f"$ {line}")
        if run:
            result = CliRunner().invoke(
                program, shlex.split(line)[1:], env={"COLUMNS": "80", "NO_COLOR": "1"}
            )
            if result.exit_code not in (0, 3):
                raise RuntimeError(f"{line}: exit code {result.exit_code}\n{result.output}")
            shown.append(re.sub(r"\x1b\[[0-9;]*m", "", result.stdout).rstrip())
    return "\n".join(shown)


def page(name: str, command, example: str) -> str:
    help_text = re.split(r"\n\s*Examples?:", (command.help or "").replace("\b", ""))[0].strip()
    lines = [f"# focalcal {name}", "", help_text, "", "```text", example, "```", ""]
    context = typer.Context(command, info_name=f"focalcal {name}")
    rows = []
    for parameter in command.get_params(context):
        record = getattr(parameter, "help", None) or ""
        if parameter.param_type_name == "argument":
            rows.append((parameter.name.upper(), record, ""))
        elif not getattr(parameter, "hidden", False):
            default = parameter.default
            plain = "" if default in (None, False) or callable(default) else str(default)
            rows.append((", ".join(parameter.opts + parameter.secondary_opts), record, plain))
    if rows:
        lines += ["| option | meaning | default |", "|---|---|---|"]
        lines += [
            f"| `{o}` | {' '.join(h.split())} | {f'`{d}`' if d else ''} |".replace("\\|", "|")
            for o, h, d in rows
        ]
    return "\n".join(lines) + "\n"


def with_output(page: str) -> str:
    """The page with what its `$ focalcal …` lines print, all run in one folder."""
    with sample_files():

        def run(block: re.Match[str]) -> str:
            lines = block[1].replace("\\\n", " ").strip().splitlines()
            if not all(line.startswith("$ focalcal") for line in lines):
                return block[0]
            return f"```text\n{transcript([line[2:] for line in lines], run=True)}\n```"

        return re.sub(r"```console\n(.*?)```", run, page, flags=re.DOTALL)


def write_pages(folder: Path) -> list[str]:
    """One Markdown file per command; the names, in the order of `focalcal --help`."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    commands = typer.main.get_command(program).commands
    for name, command in commands.items():
        told = (command.epilog or "").removeprefix("Example:").strip() or f"focalcal {name} --help"
        with sample_files():
            example = transcript(
                EXAMPLES.get(name) or LONG.get(name) or [told], run=name in EXAMPLES
            )
        (folder / f"{name}.md").write_text(page(name, command, example))
    return list(commands)
