"""Figures for papers: compute a panel, then plot it on an `ax` (matplotlib).

A panel is a small frozen record of what is shown; `plot(panel, ax)` draws it, returns the axes,
never calls show and never touches global style. `draw(panels)` lays several out on one figure and
`save(figure, path)` writes PDF, PNG or SVG. The modules `fts`, `ie`, `geo` and `cpe` make the
panels of the papers' figures; reliability diagrams are those of `focalcal.figures`.

>>> from focalcal_papers.figures import fts
>>> fts.figure1()[0].curves[1].label
'γ = 1'
"""

from focalcal_papers.figures.drawing import draw, plot, save
from focalcal_papers.figures.panels import (
    Arrows,
    Bars,
    Curve,
    Curves,
    HeatMap,
    Panel,
    Simplex,
    Table,
)

__all__ = [
    "Arrows",
    "Bars",
    "Curve",
    "Curves",
    "HeatMap",
    "Panel",
    "Simplex",
    "Table",
    "draw",
    "plot",
    "save",
]
