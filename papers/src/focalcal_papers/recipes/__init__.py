"""Settings of the papers' networks, one TOML file each.

>>> recipe("cifar10-resnet50")["epochs"]
350
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


def recipe(name: str, folder: Path = FOLDER) -> dict[str, Any]:
    """The settings of a recipe by the name of its file."""
    return tomllib.loads((folder / f"{name}.toml").read_text("utf-8"))
