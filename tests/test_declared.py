"""Every library that a package imports is one it declares."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {"focalcal": ROOT, "focalcal_papers": ROOT / "papers"}
NOT_FOR_USERS = ("dev", "docs")
PART_OF = {"triton": "torch", "lightning": "pytorch-lightning"}
"""Modules that come with a declared package, or do the same as it."""


def names(lines):
    return {re.match(r"[\w.-]+", line)[0].lower().replace("_", "-") for line in lines}


def declared(folder):
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    extras = project.get("optional-dependencies", {})
    return names(project["dependencies"]).union(
        *(names(lines) for extra, lines in extras.items() if extra not in NOT_FOR_USERS)
    )


def imported(folder):
    """Top-level modules that the sources import anywhere, with one place for each."""
    found = {}
    for path in (folder / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0]: path.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                found[node.module.split(".")[0]] = path.name
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_are_declared(package):
    provided = importlib.metadata.packages_distributions()
    own = {package, "focalcal"}
    known = declared(PACKAGES[package])
    if package != "focalcal":
        known |= declared(ROOT)
    for module, where in imported(PACKAGES[package]).items():
        if module in sys.stdlib_module_names or module in own:
            continue
        owner = PART_OF.get(module, module)
        owners = {d.lower().replace("_", "-") for d in provided.get(owner, [owner])}
        assert owners & known, f"{where} imports {module}, which pyproject.toml does not declare"
