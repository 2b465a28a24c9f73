"""One look for every picture of the documentation: the colours of the report, light and dark."""

from __future__ import annotations

from typing import Any

import matplotlib as mpl

LIGHT = {"text": "#16191d", "muted": "#59616b", "grid": "#e3e6ea", "page": "#ffffff"}
DARK = {"text": "#e8eaed", "muted": "#a3abb5", "grid": "#2b3038", "page": "#131416"}
CYCLE = {
    "light": ("#0b5cad", "#c2540a", "#2a8f84", "#7a4fb5", "#c0304f", "#8a7a00"),
    "dark": ("#6cb2ff", "#ff9d57", "#5cc7bb", "#c3a1f5", "#ff7d97", "#d8c64a"),
}


def settings(theme: str = "light") -> dict[str, Any]:
    """matplotlib's rcParams of a theme."""
    colours = LIGHT if theme == "light" else DARK
    return {
        "axes.axisbelow": True,
        "axes.edgecolor": colours["muted"],
        "axes.facecolor": colours["page"],
        "axes.grid": True,
        "axes.labelcolor": colours["text"],
        "axes.prop_cycle": mpl.cycler(color=CYCLE[theme]),
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlesize": 12,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "figure.dpi": 120,
        "figure.facecolor": colours["page"],
        "font.size": 11,
        "grid.color": colours["grid"],
        "legend.frameon": False,
        "lines.linewidth": 2,
        "savefig.facecolor": colours["page"],
        "svg.hashsalt": "focalcal",
        "text.color": colours["text"],
        "xtick.color": colours["muted"],
        "ytick.color": colours["muted"],
    }


def for_gallery(gallery_conf: dict[str, Any], name: str) -> None:
    """What sphinx-gallery calls before each example."""
    mpl.rcParams.update(settings())
