"""The order of the gallery, and a picture for each example that prints instead of drawing."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
from sphinx_gallery.sorting import FileNameSortKey
from style import LIGHT, settings

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FIRST = (
    "plot_reliability",
    "plot_a_year",
    "plot_choosing_a_calibrator",
    "plot_what_ece_hides",
    "plot_gamma_in_training",
    "plot_deciding_alone",
    "plot_monitoring",
    "plot_slices",
    "plot_imbalanced_cost",
    "plot_comparing_models",
    "plot_segmentation",
    "plot_text_classifier",
    "plot_multilabel",
    "plot_thousand_classes",
    "plot_forest_with_zeros",
    "plot_curvature",
    "plot_onnx",
    "plot_dask",
)
"""Examples with pictures; those that print a table come after them."""
LONGEST = 70
"""Longer lines are logs of other libraries, not the table."""


class Order(FileNameSortKey):
    """`FIRST`, then the others by name."""

    def __call__(self, filename: str) -> tuple[int, str]:
        name = Path(filename).stem
        return (FIRST.index(name) if name in FIRST else len(FIRST), filename)


def printing() -> list[Path]:
    """Examples whose result is a printed table: they name their card as their thumbnail."""
    return [p for p in sorted(EXAMPLES.glob("*.py")) if "thumbnail_path" in p.read_text()]


def write_cards(folder: Path, *, run: bool) -> None:
    """What each of them prints, as a picture; without `run` its title only."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = printing()
    with ThreadPoolExecutor(2) as pool:
        texts = list(pool.map(_printed if run else _title, paths))
    with mpl.rc_context(settings()):
        for path, text in zip(paths, texts):
            _draw(text, folder / f"{path.stem}.png")


def _printed(path: Path) -> str:
    with tempfile.TemporaryDirectory() as place:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", path],
            cwd=place,
            capture_output=True,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},  # two of them run at a time
            timeout=900,
        )
    if done.returncode:
        raise RuntimeError(f"{path.name}: {done.stderr[-2000:]}")
    return done.stdout


def _title(path: Path) -> str:
    return path.read_text().split("\n")[1]


def _draw(text: str, file: Path) -> None:
    lines = [line for line in text.rstrip().split("\n") if len(line) <= LONGEST][-7:]
    size = min(24.0, 560 / max(map(len, lines)))
    figure = plt.figure(figsize=(5, 3.5), facecolor="#f6f7f9")
    figure.text(
        0.5,
        0.5,
        "\n".join(lines),
        family="monospace",
        size=size,
        ha="center",
        va="center",
        linespacing=1.7,
        color=LIGHT["text"],
    )
    figure.savefig(file, dpi=100, facecolor="#f6f7f9")
    plt.close(figure)
