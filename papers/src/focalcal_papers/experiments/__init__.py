"""Every table and figure of the four papers by name: recipes, runs, findings, the result store.

>>> EXPERIMENTS["cpe/minimizers"].title
'Focal-risk minimiser for p = (.9, .1)'
"""

from focalcal_papers.experiments import (
    cpe,
    fts,
    fts_next,
    fts_open,
    geo,
    ie,
    ie_figures,
    ie_recipe,
)
from focalcal_papers.experiments.base import SCALES, Experiment, Finding, Material, Result
from focalcal_papers.experiments.document import refresh, reproduction_document
from focalcal_papers.experiments.runner import reproduce
from focalcal_papers.experiments.runs import Run
from focalcal_papers.experiments.store import Store

EXPERIMENTS: dict[str, Experiment] = {
    name: experiment
    for module in (ie, ie_recipe, ie_figures, fts, fts_open, fts_next, cpe, geo)
    for name, experiment in module.EXPERIMENTS.items()
}
"""Name on the command line to experiment, in the papers' order."""

__all__ = [
    "EXPERIMENTS",
    "SCALES",
    "Finding",
    "Material",
    "Result",
    "Run",
    "Store",
    "refresh",
    "reproduce",
    "reproduction_document",
]
