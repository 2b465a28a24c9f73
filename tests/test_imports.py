"""Imports go one way, and the light parts stay light."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import focalcal
import focalcal_papers

SOURCE = Path(focalcal.__file__).parent
PAPERS = Path(focalcal_papers.__file__).parent

HEAVY = {
    "torch",
    "numba",
    "matplotlib",
    "plotly",
    "pandas",
    "dask",
    "distributed",
    "onnx",
    "pyarrow",
}

# What each part may import at module level; a name that is absent may import anything of ours.
FOUNDATION = {"errors", "_arrays", "_blocks", "_checks", "files", "_labels"}
ALLOWED = {
    "errors": set(),
    "_arrays": {"errors"},
    "_blocks": {"_arrays"},
    "_checks": {"errors", "_arrays", "_labels"},
    "files": {"errors"},
    "formats": FOUNDATION,
    "_labels": {"errors", "_arrays"},
    "loading": FOUNDATION | {"formats", "_labels", "predictions"},
    "provenance": {"__init__"},
    "amx": set(),
    "predictions": FOUNDATION | {"formats", "_labels"},
    "maps": FOUNDATION,
    "kernels": FOUNDATION,
    "bins": FOUNDATION | {"kernels"},
    "columns": FOUNDATION | {"kernels"},
    "ordered": FOUNDATION | {"kernels", "bins"},
    "stats": FOUNDATION | {"kernels", "bins", "columns", "ordered"},
    "metrics": FOUNDATION | {"kernels", "bins", "columns", "ordered", "stats"},
    "decisions": FOUNDATION | {"metrics"},
    "calibrators": FOUNDATION
    | {"kernels", "maps", "bins", "ordered", "metrics", "predictions", "__init__"},
    "curvature": FOUNDATION | {"losses"},
    "losses": FOUNDATION | {"maps", "bins"},
}


def _part(path: Path) -> str:
    relative = path.relative_to(SOURCE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def _module_level_imports(path: Path) -> set[str]:
    """Dotted names imported when the module is: bodies of functions and TYPE_CHECKING excluded."""
    found: set[str] = set()
    stack: list[ast.AST] = [ast.parse(path.read_text())]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add(node.module)
            if node.module == "focalcal":
                found |= {f"focalcal.{alias.name}" for alias in node.names}
        stack.extend(ast.iter_child_nodes(node))
    return found


PARTS = {_part(path) for path in SOURCE.rglob("*.py")}


@pytest.mark.parametrize("part", ALLOWED)
def test_imports_go_one_way(part):
    for path in SOURCE.rglob("*.py"):
        if _part(path) != part:
            continue
        names = {n.split(".")[1] for n in _module_level_imports(path) if n.startswith("focalcal.")}
        ours = names & PARTS
        extra = ours - ALLOWED[part] - {part}
        assert not extra, f"{path.relative_to(SOURCE)} imports {sorted(extra)}"


def test_the_library_never_names_the_papers():
    for path in SOURCE.rglob("*.py"):
        names = {
            name
            for node in ast.walk(ast.parse(path.read_text()))
            for name in (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
        }
        assert not any(name.startswith("focalcal_papers") for name in names), path


def _every_import(path: Path) -> set[str]:
    """Dotted names of all modules and names that a file imports, wherever in the file."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def _owners(name: str) -> set[str]:
    """The modules to which the private parts of a dotted name belong."""
    parts = name.split(".")
    private = (i for i, p in enumerate(parts) if p.startswith("_") and not p.startswith("__"))
    return {".".join(parts[:i]) for i in private}


def test_private_modules_stay_within_their_package():
    """`focalcal._arrays` and its like are private to the library, `losses._base` to the losses."""
    for path in SOURCE.rglob("*.py"):
        relative = path.relative_to(SOURCE)
        home = ".".join(["focalcal", *relative.parts[:-1], relative.stem])
        for name in _every_import(path):
            if name.startswith("focalcal."):
                inside = all(f"{home}.".startswith(f"{owner}.") for owner in _owners(name))
                assert inside, f"{relative.as_posix()} imports {name}"


def test_the_papers_use_public_names_only():
    for path in PAPERS.rglob("*.py"):
        names = {n for n in _every_import(path) if n.startswith("focalcal.") and _owners(n)}
        assert not names, f"{path.relative_to(PAPERS)} imports {sorted(names)}"


# The papers' own order; commands and pages stand on everything.
PAPERS_ALLOWED = {
    "recipes": set(),
    "data": set(),
    "models": {"data"},
    "theory": set(),
    "errata": {"theory"},
    "training": {"data", "models"},
    "figures": {"theory", "errata"},
}


@pytest.mark.parametrize("part", PAPERS_ALLOWED)
def test_the_papers_go_one_way_too(part):
    for path in PAPERS.rglob("*.py"):
        relative = path.relative_to(PAPERS)
        if relative.parts[0].removesuffix(".py") != part:
            continue
        names = _module_level_imports(path)
        ours = {n.split(".")[1] for n in names if n.startswith("focalcal_papers.")}
        extra = ours - PAPERS_ALLOWED[part] - {part}
        assert not extra, f"{relative} imports {sorted(extra)}"


def test_the_architecture_page_says_the_same():
    page = Path(__file__).parents[1] / "docs" / "architecture.md"
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\|([^|]*)\|$", page.read_text(), re.MULTILINE)
    said = {part: set(re.findall(r"`(\w+)`", names)) for part, names in rows}
    aside = {*FOUNDATION, "provenance", "amx"}
    assert said == {
        part: allowed - FOUNDATION - {"__init__"}
        for part, allowed in ALLOWED.items()
        if part not in aside
    }


def test_no_module_imports_the_command_line():
    for path in SOURCE.rglob("*.py"):
        if _part(path) in ("cli", "__main__"):
            continue
        names = _module_level_imports(path)
        assert not any(name.startswith("focalcal.cli") for name in names), path


@pytest.mark.parametrize(
    "module",
    ["metrics", "maps", "bins", "decisions", "predictions", "calibrators", "cli", "provenance"],
)
def test_light_modules_import_nothing_heavy(module):
    # scikit-learn imports pandas by itself where it is installed; that is not our doing.
    code = (
        "import sys, sklearn.base\n"
        "before = set(sys.modules)\n"
        f"import focalcal.{module}\n"
        f"print(*sorted({HEAVY!r} & {{m.split('.')[0] for m in set(sys.modules) - before}}))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert out == []
