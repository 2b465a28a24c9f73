"""CPE (Charoenphakdee et al., CVPR 2021): minimisers, many classes, Ψ on a trained network."""

from __future__ import annotations

import numpy as np

from focalcal.experiments import published
from focalcal.experiments.base import Analysis, Experiment, Finding, Material
from focalcal.experiments.settings import SMOKE, Settings
from focalcal.figures import cpe as figures
from focalcal.maps import focal_log_map, focal_map, inverse_focal_map
from focalcal.metrics import evaluate


def _minimizers(material: Material) -> Analysis:
    printed = {1: 0.78, 3: 0.65, 5: 0.60}
    findings = [
        Finding(
            f"q* for p = (.9, .1), γ = {g}",
            float(inverse_focal_map([0.9, 0.1], float(g))[0]),
            v,
            tolerance=0.005,
        )
        for g, v in printed.items()
    ]
    table = figures.minimiser_table()
    worst = max(abs(row[3] - 0.9) for row in table.rows)
    findings.append(Finding("largest |Ψ(q*) − p|", worst, 0.0, tolerance=1e-8))
    text = (
        "The minimiser is under-confident and Ψ takes it back exactly. The paper prints .78 for "
        "γ = 1; the value is .7744, which rounds to .77."
    )
    return Analysis(tuple(findings), text, (table,))


def _many_classes(material: Material) -> Analysis:
    def top(p: float, k: int, gamma: float) -> float:
        return float(inverse_focal_map(figures.uniform_rest(np.array([p]), k), gamma)[0, 0])

    findings = (
        Finding(
            "q_max, K = 1000, γ = 3, p_max = .05", top(0.05, 1000, 3.0), 0.0622, tolerance=5e-5
        ),
        Finding("q, K = 2, γ = 2, p = .8", top(0.8, 2, 2.0), 0.6266, tolerance=5e-5),
        Finding(
            "Ψ of q_max = .1451, K = 1000, γ = 3",
            float(focal_map(figures.uniform_rest(np.array([0.1451]), 1000), 3.0)[0, 0]),
            0.1221,
            tolerance=5e-5,
        ),
    )
    text = (
        "With two classes focal loss is under-confident everywhere; with many it is over-confident "
        "where the largest probability is small."
    )
    return Analysis(findings, text, tuple(figures.confidence_of_minimiser()))


def _psi_trained(material: Material) -> Analysis:
    run = next(r for r in material.runs if r.gamma)
    z, y = run.test.as_logits(), run.test.labels
    stages = {
        "as trained": run.test.probabilities(),
        f"through Ψ, γ = {run.gamma:g}": np.exp(focal_log_map(z, run.gamma)),
    }
    found = {k: evaluate(y, p, resamples=200) for k, p in stages.items()}
    findings = [
        Finding(f"{name}, {k}", scale * e[m].value, None, scale * e[m].low, scale * e[m].high, e.n)
        for k, e in found.items()
        for name, m, scale in (("ECE %", "ece", 100), ("NLL", "nll", 1))
    ]
    before, after = (e["ece"].value for e in found.values())
    better = "brings it to" if after < before else "makes it"
    text = (
        f"{run.label}: trained with γ = {run.gamma:g} the ECE is {100 * before:.2f} %; Ψ {better} "
        f"{100 * after:.2f} % without fitting anything, and without touching the accuracy."
    )
    panels = figures.psi_trained({k: e.reliability for k, e in found.items()})
    return Analysis(tuple(findings), text, tuple(panels))


def _psi_recipes(scale: str) -> dict[str, Settings]:
    """Enough made-up data that the network reaches the risk minimiser: there Ψ must be right."""
    data = {"n_train": 21000, "n_test": 10000, "calibration": 1000, "features": 2, "n_classes": 3}
    settings = SMOKE | {"loss": "fl-3", "data_settings": data, "epochs": 4, "batch_size": 256}
    return {"blobs-mlp-fl-3": settings | {"trace_every": 0}}


def _human(material: Material) -> Analysis:
    """−Σ_k h_k ln q_k against the human label distribution h, for each way to calibrate q."""
    counts = published.human_counts(material.data)
    if counts is None:
        return published.absent("the human label counts and logits of CIFAR-10")
    share = counts / counts.sum(axis=1, keepdims=True)
    findings, wins = [], []
    for net in published.networks(material.data, n_classes=10, calibration=True):
        scores = {}
        for name, log_q in published.calibrated(net, gammas=(1.0, 3.0)).items():
            each = -(share * log_q).sum(axis=1)
            half = 1.96 * each.std() / len(each) ** 0.5
            scores[name] = float(each.mean())
            what = f"human log-loss, {net.name}, {name}"
            findings.append(
                Finding(what, scores[name], None, scores[name] - half, scores[name] + half, net.n)
            )
        focal = min(v for k, v in scores.items() if k.startswith("Ψ"))
        wins.append((net.name, scores["temperature"], focal))
    floor = -(share * np.log(np.where(share > 0, share, 1))).sum(axis=1).mean()
    findings.append(Finding("entropy of the human labels", float(floor), n=len(share)))
    text = "; ".join(
        f"{name}: Ψ alone {focal:.4f} against temperature scaling {t:.4f}"
        for name, t, focal in wins
    )
    return Analysis(tuple(findings), f"Human log-loss, the lower the better. {text}.")


EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        "cpe/minimizers",
        "Focal-risk minimiser for p = (.9, .1)",
        "q₁ = .78, .65, .60 for γ = 1, 3, 5, not .9: focal loss is not proper",
        _minimizers,
    ),
    Experiment(
        "cpe/k1000",
        "Under- and over-confidence with 2 and 1000 classes",
        "under-confident for two classes; over-confident is possible for many",
        _many_classes,
    ),
    Experiment(
        "cpe/psi-trained",
        "Ψ on a network trained with focal loss",
        "Ψ turns the focal network's output into class-posterior probabilities",
        _psi_trained,
        _psi_recipes,
        made_up=True,
    ),
    Experiment(
        "cpe/human",
        "Does Ψ recover the human label distribution?",
        "an open question: p(y|x) is known here from about 51 people per image",
        _human,
        files=(published.HUMAN, published.GOLDEN),
    ),
)
