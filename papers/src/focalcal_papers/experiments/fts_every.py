"""FTS Table 1 on every stored network, with FocalStructuredScaling beside it."""

from __future__ import annotations

import numpy as np

from focalcal.calibrators import FocalStructuredScaling
from focalcal.metrics import adaptive_ece, nll
from focalcal_papers.experiments.base import Analysis, Experiment, Finding, Material
from focalcal_papers.experiments.fts import calibrators
from focalcal_papers.experiments.ie_grid import by_setting, seeds
from focalcal_papers.experiments.runs import IMAGES, Run, fitted
from focalcal_papers.experiments.settings import BASES, is_published, with_losses
from focalcal_papers.figures import Curve, Curves, Table

WAYS = ("temperature", "focal temperature", "focal structured")


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


def _every(material: Material) -> Analysis:
    groups = by_setting(material.runs)
    if not groups:
        reason = "no stored network with its predictions"
        return Analysis((Finding("equal-mass ECE %", reason=reason),), f"Not run: {reason}.")
    findings, shown, means = [], [], []
    for setting, own in groups.items():
        scores = [_scores(run) for run in own]
        mean = {w: np.mean([s[w] for s in scores], axis=0) for w in WAYS}
        spread = {
            w: np.std([s[w] for s in scores], axis=0, ddof=min(1, len(own) - 1)) for w in WAYS
        }
        means.append([mean[w] for w in WAYS])
        more = {"n": own[0].test.n}
        for w in WAYS:
            if len(own) > 1:
                more |= {"seeds": len(own), "spread": float(spread[w][0])}
            findings.append(Finding(f"equal-mass ECE %, {setting}, {w}", float(mean[w][0]), **more))
        for w in WAYS:
            if len(own) > 1:
                more["spread"] = float(spread[w][1])
            findings.append(Finding(f"NLL, {setting}, {w}", float(mean[w][1]), **more))
        cells = (f"{mean[w][0]:.2f} / {mean[w][1]:.4f}" for w in WAYS)
        shown.append((setting, len(own), *cells))
    table = Table("test equal-mass ECE % / NLL", ("setting", "seeds", *WAYS), tuple(shown))
    text = _conclusion(np.array(means)) + seeds(material.runs)
    return Analysis(tuple(findings), text, _panels(groups, np.array(means)), (table,))


def _conclusion(means: np.ndarray) -> str:
    """means: (settings, ways, [ECE, NLL])."""
    n = len(means)
    ece, cost = means[:, :, 0], means[:, :, 1]
    parts = []
    for i, way in enumerate(WAYS[1:], start=1):
        lower, cheaper = (ece[:, i] < ece[:, 0]).sum(), (cost[:, i] < cost[:, 0]).sum()
        change = 100 * (np.exp(np.log(cost[:, i] / cost[:, 0]).mean()) - 1)
        parts.append(
            f"{way} scaling has the lower equal-mass ECE for {lower} and the lower NLL for "
            f"{cheaper} of {n} settings (mean ECE {ece[:, i].mean():.2f} %, NLL {change:+.1f} %)"
        )
    text = f"Against temperature scaling (mean ECE {ece[:, 0].mean():.2f} %): "
    return text + "; ".join(parts) + "."


def _panels(groups: dict[str, list[Run]], means: np.ndarray) -> tuple[Curves, ...]:
    ece = means[:, :, 0]
    curves = tuple(Curve(w, ece[:, 0], ece[:, i], style="o") for i, w in enumerate(WAYS[1:], 1))
    labels = ("equal-mass ECE %, temperature scaling", "equal-mass ECE %, the other")
    return (Curves(f"{len(groups)} settings, test set", *labels, curves, diagonal=True),)


def _accepts(settings: dict) -> bool:
    return settings["dataset"] in IMAGES or is_published(settings)


EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        "fts/every",
        "Table 1 on every stored network, with FocalStructuredScaling",
        "focal temperature scaling lowers equal-mass ECE",
        _every,
        lambda scale: with_losses(BASES[scale], ("ce", "fl-3")),
        _accepts,
    ),
)
