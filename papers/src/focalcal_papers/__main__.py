"""`python -m focalcal_papers`: the whole command line, even if nothing is installed."""

from __future__ import annotations

import importlib

from focalcal.cli import app, main
from focalcal_papers.cli import COMMANDS

known = {command.name or command.callback.__name__ for command in app.registered_commands}
for name in COMMANDS:
    if name not in known:
        importlib.import_module(f"focalcal_papers.cli.{name}").register(app)
main()
