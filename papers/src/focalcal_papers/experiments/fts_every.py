"""FTS Table 1 on every stored network, with FocalStructuredScaling beside it."""

from __future__ import annotations

from functools import partial

import numpy as np

from focalcal.calibrators import FocalStructuredScaling
from focalcal.metrics import adaptive_ece, nll
from focalcal_papers.experiments.base import Analysis, Experiments, Finding, Material, Result
from focalcal_papers.experiments.fts import calibrators
from focalcal_papers.experiments.ie_grid import by_setting, seeds
from focalcal_papers.experiments.runs import IMAGES, Run, fitted
from focalcal_papers.experiments.settings import is_published, loss_recipes
from focalcal_papers.figures import Curve, Curves, Table

WAYS = ("temperature", "focal temperature", "focal structured")
EXPERIMENTS = Experiments()


def _scores(run: Run) -> dict[str, tuple[float, float]]:
    """Test equal-mass ECE % and NLL of each way, fitted on the calibration set.

    The first two are chosen by equal-mass ECE, as the paper's table does; the third by NLL.
    """
    made = dict(zip(WAYS, (*calibrators("adaptive_ece").values(), FocalStructuredScaling())))
    found = {}
    for name, calibrator in made.items():
        probs = fitted(calibrator, run.calibration).predict_proba(run.test.as_logits())
        found[name] = (100 * adaptive_ece(run.test.labels, probs), nll(run.test.labels, probs))
    return found


def _accepts(settings: dict) -> bool:
    return settings["dataset"] in IMAGES or is_published(settings)


@EXPERIMENTS.declare(
    "fts/every",
    "Table 1 on every stored network, with FocalStructuredScaling",
    "focal temperature scaling lowers equal-mass ECE",
    recipes=partial(loss_recipes, ("ce", "fl-3")),
    accepts=_accepts,
)
def _every(material: Material) -> Analysis:
    groups = by_setting(material.runs)
    if not groups:
        return Analysis.not_run("equal-mass ECE %", "no stored network with its predictions")
    findings, shown, means = [], [], []
    for setting, own in groups.items():
        scores = np.array([list(_scores(run).values()) for run in own])  # (seeds, ways, 2)
        mean, spread = scores.mean(axis=0), scores.std(axis=0, ddof=min(1, len(own) - 1))
        means.append(mean)
        for at, unit in enumerate(("equal-mass ECE %", "NLL")):
            for i, way in enumerate(WAYS):
                more: dict = {"n": own[0].test.n}
                if len(own) > 1:
                    more |= {"seeds": len(own), "spread": float(spread[i, at])}
                findings.append(Finding(f"{unit}, {setting}, {way}", float(mean[i, at]), **more))
        shown.append((setting, len(own), *(f"{ece:.2f} / {cost:.4f}" for ece, cost in mean)))
    table = Table("test equal-mass ECE % / NLL", ("setting", "seeds", *WAYS), tuple(shown))
    text = _conclusion(np.array(means)) + seeds(material.runs)
    return Analysis(tuple(findings), text, panels(np.array(means)), (table,))


def stored_means(result: Result) -> np.ndarray:
    """Its means again, (settings, ways, [ECE, NLL]), from the findings."""
    values = np.array([f.ours for f in result.findings])
    return values.reshape(-1, 2, len(WAYS)).transpose(0, 2, 1)


def lower_than_temperature(means: np.ndarray) -> np.ndarray:
    """In how many settings ECE and NLL of the second and third way are lower: (2, [ECE, NLL])."""
    return (means[:, 1:] < means[:, :1]).sum(axis=0)


def _conclusion(means: np.ndarray) -> str:
    """means: (settings, ways, [ECE, NLL])."""
    ece, cost = means[:, :, 0], means[:, :, 1]
    parts = []
    for i, (lower, cheaper) in enumerate(lower_than_temperature(means), start=1):
        change = 100 * (np.exp(np.log(cost[:, i] / cost[:, 0]).mean()) - 1)
        parts.append(
            f"{WAYS[i]} scaling has the lower equal-mass ECE for {lower} and the lower NLL for "
            f"{cheaper} of {len(means)} settings (mean ECE {ece[:, i].mean():.2f} %, NLL "
            f"{change:+.1f} %)"
        )
    text = f"Against temperature scaling (mean ECE {ece[:, 0].mean():.2f} %): "
    return text + "; ".join(parts) + "."


def panels(means: np.ndarray) -> tuple[Curves, ...]:
    """ECE of the second and third way against that of temperature scaling."""
    ece = means[:, :, 0]
    curves = tuple(Curve(w, ece[:, 0], ece[:, i], style="o") for i, w in enumerate(WAYS[1:], 1))
    labels = ("equal-mass ECE %, temperature scaling", "equal-mass ECE %, the other")
    return (Curves(f"{len(means)} settings, test set", *labels, curves, diagonal=True),)
