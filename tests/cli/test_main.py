"""What every command shares: exit codes, one-line errors, --quiet, --json, completion, colours."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import typer
from rich.text import Text
from typer.testing import CliRunner

import focalcal.cli
from focalcal import __version__
from focalcal.cli import COMMANDS, PAPERS, app, terminal

runner = CliRunner()
every_command = pytest.mark.parametrize("name", [*COMMANDS, *PAPERS])


def run(*arguments, code=None, **environment):
    """The real command, or main() after `code`, in its own process: (exit code, out, err)."""
    start = ["-m", "focalcal"] if code is None else ["-c", f"from focalcal.cli import *\n{code}"]
    done = subprocess.run(
        [sys.executable, *start, *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    return done.returncode, done.stdout, done.stderr


def test_version():
    result = runner.invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"focalcal {__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "No such command 'nonsense'; see focalcal --help"),
        (["evaluate"], "Missing argument"),
        (["methods", "--jsno"], "--json"),
        (["evaluate", "nowhere.npz"], "no file at nowhere.npz"),
        (["evaluate", "nowhere.npz", "--seed", "-1"], "--seed"),
        (
            ["evaluate", "week1.csv", "week2.csv"],
            "quote patterns, as in 'weeks/*.csv'; see focalcal",
        ),
    ],
)
def test_bad_input_is_one_line_with_a_hint_and_code_two(arguments, message, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["focalcal", *arguments])
    with pytest.raises(SystemExit) as stop:
        focalcal.cli.main()
    out, err = capsys.readouterr()
    assert (stop.value.code, out) == (2, "")
    assert err.startswith("focalcal: error: ")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        ("KeyboardInterrupt()", (130, "interrupted\n")),
        ("InputError('bad value')", (2, "focalcal: error: bad value\n")),
        ("FocalcalError('no\\nluck')", (1, "focalcal: error: no luck\n")),
        ("OSError(28, 'No space left')", (1, "focalcal: error: [Errno 28] No space left\n")),
        ("PermissionError(13, 'denied')", (2, "focalcal: error: [Errno 13] denied\n")),
        ("MemoryError()", (1, "focalcal: error: out of memory\n")),
        ("typer.Exit(1)", (1, "")),
    ],
)
def test_exit_codes(raised, expected, capsys, monkeypatch):
    def fail(**_):
        raise eval(raised, vars(focalcal.cli))

    lone = typer.Typer(pretty_exceptions_enable=False)
    lone.command()(lambda: fail())
    monkeypatch.setattr(focalcal.cli, "app", lone)
    monkeypatch.setattr(sys, "argv", ["focalcal"])
    with pytest.raises(SystemExit) as stop:
        focalcal.cli.main()
    assert (stop.value.code, capsys.readouterr().err) == expected


def test_an_interrupt_signal_ends_with_130():
    # A parent that ignores the signal, as a shell's background jobs do, would hand that down.
    code = (
        "import signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "app.command('wait')(lambda: os.kill(os.getpid(), signal.SIGINT))\n"
        "main()"
    )
    assert run("wait", code=code) == (130, "", "interrupted\n")


def test_an_interrupt_while_the_commands_are_imported_ends_alike():
    code = (
        "import sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'typer':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "from focalcal.__main__ import main\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


@pytest.mark.parametrize("reader", ["head -n 1", "true"])  # after a line, and before the first
def test_a_reader_that_leaves_is_no_error(reader):
    shell = f"{sys.executable} -m focalcal methods | {reader}; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "0"
    assert done.stderr == ""


def test_without_arguments_the_help_is_shown():
    code, out, err = run()
    assert code == 2
    for name in (*COMMANDS, *PAPERS):
        assert name in out + err


@pytest.mark.parametrize("name", PAPERS)
def test_without_the_papers_their_commands_say_how_to_get_them(name):
    code = "import importlib.metadata as m; m.entry_points = lambda **_: ()"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; from focalcal.cli import main; main()", name, "--help"],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"focalcal: error: focalcal {name} is a command of")
    assert "pip install focalcal-papers" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_broken_guest_leaves_the_other_commands_alone():
    code = (
        "import importlib.metadata as m; "
        "m.entry_points = lambda **_: [m.EntryPoint('odd', 'no_such_module:register', '')]; "
        "from focalcal.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code, "methods"], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr == ("focalcal: warning: no command odd: No module named 'no_such_module'\n")


@every_command
def test_every_command_has_help_json_and_quiet(name):
    result = runner.invoke(app, [name, "--help"], env={"COLUMNS": "120"})
    assert result.exit_code == 0
    assert "json" in result.stdout
    assert "--quiet" in result.stdout


def test_quiet_prints_nothing_but_json(tmp_path, rng):
    file = tmp_path / "p.npz"
    np.savez(file, logits=rng.normal(size=(60, 3)), labels=rng.integers(0, 3, 60))
    silent = runner.invoke(app, ["fit", str(file), "-o", str(tmp_path / "c.json"), "--quiet"])
    assert (silent.exit_code, silent.output) == (0, "")
    assert (tmp_path / "c.json").is_file()
    spoken = runner.invoke(app, ["methods", "--quiet", "--json"])
    assert spoken.stdout.startswith("[")
    assert runner.invoke(app, ["methods"]).stdout  # the setting does not outlive its command


@pytest.mark.parametrize("arguments", [["methods"], ["--help"]])
def test_no_escape_codes_off_a_terminal(arguments):
    assert "\x1b[" not in "".join(run(*arguments)[1:])


def test_no_color_is_obeyed_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich: draw as on a terminal
    terminal.show("[x]", style="red")
    assert capsys.readouterr().out.strip() == "[x]"  # and nothing is read as markup


def test_a_terminal_without_unicode_gets_no_traceback():
    code, out, err = run("methods", PYTHONIOENCODING="ascii")
    assert (code, err) == (0, "")
    assert "temperature" in out


def test_shell_completion_can_be_installed():
    code, out, _ = run(_FOCALCAL_COMPLETE="source_bash")
    assert code == 0
    assert "complete -o default -F _focalcal_completion focalcal" in out


def test_completion_offers_the_commands():
    words = {"_FOCALCAL_COMPLETE": "complete_bash", "COMP_WORDS": "focalcal e", "COMP_CWORD": "1"}
    assert "evaluate" in run(**words)[1]


def options_of_every_command():
    for name, command in typer.main.get_command(app).commands.items():
        if name in COMMANDS:
            yield from ((name, parameter) for parameter in command.params)


def test_help_is_text_and_no_markup():
    for name, parameter in options_of_every_command():
        text = parameter.help or ""
        assert Text.from_markup(text).plain == text, (name, parameter.name)


def test_the_summary_of_every_command_fits_on_a_line():
    text = runner.invoke(app, ["--help"], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"}).stdout
    rows = [line.split(maxsplit=2) for line in text.splitlines() if line.startswith("│ ")]
    begun = {row[1]: row[2] for row in rows if row[1] in (*COMMANDS, *PAPERS)}
    assert set(begun) == {*COMMANDS, *PAPERS}
    assert all(words.rstrip("│ ").endswith(".") for words in begun.values())
