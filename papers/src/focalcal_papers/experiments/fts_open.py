"""What FTS left open: four questions."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from scipy.special import log_softmax, softmax

from focalcal.calibrators import METHODS, FocalTemperatureScaling, TemperatureScaling
from focalcal.calibrators.focal import GAMMAS
from focalcal.maps import closest_temperature, focal_map, gradient_factor, quick_temperature
from focalcal.metrics import adaptive_ece
from focalcal_papers.experiments import published
from focalcal_papers.experiments.base import Analysis, Experiments, Finding, Material
from focalcal_papers.experiments.fts import accepts_image
from focalcal_papers.experiments.published import Network, all_networks, best_temperature
from focalcal_papers.experiments.runs import evaluated, fitted
from focalcal_papers.experiments.settings import loss_recipes
from focalcal_papers.figures import Curve, Curves, Table

FILES = (published.GOLDEN,)
EXPERIMENTS = Experiments()
ON_NETWORKS: dict[str, Any] = {
    "recipes": partial(loss_recipes, ("ce", "fl-3")),
    "accepts": accepts_image,
    "files": FILES,
}
"""Analyses of any trained or published network."""


def compare_methods(
    material: Material, methods: tuple[str, ...], ece: str, unit: str
) -> tuple[Analysis, list[dict[str, tuple[float, float]]]]:
    """Methods fitted on the calibration set, by test NLL and an ECE; the values by network too."""
    findings, rows, values = [], [], []
    for net in all_networks(material):
        own = {}
        # Matrices have a parameter for each pair of classes.
        for method in (m for m in methods if net.test.n_classes <= 20 or "matrix" not in m):
            calibrator = fitted(METHODS[method](), net.calibration)
            probs = calibrator.predict_proba(net.test.as_logits())
            scores = evaluated(net.test.labels, probs)
            findings.append(Finding.of(f"NLL, {net.name}, {method}", scores["nll"]))
            findings.append(Finding.percent(f"{unit}, {net.name}, {method}", scores[ece]))
            own[method] = scores["nll"].value, scores[ece].value
        shown = {m: f"{cost:.4f} / {100 * error:.2f}" for m, (cost, error) in own.items()}
        rows.append((net.name, *(shown.get(m, "—") for m in methods)))
        values.append(own)
    table = Table(f"test NLL / {unit}", ("network", *methods), tuple(rows))
    return Analysis(tuple(findings), "", tables=(table,) if rows else ()), values


def smallest_slope(gamma: float) -> float:
    """min over q of d ln h/d ln q, h = q/g(q,γ): how little Ψ^γ can stretch two small classes.

    >>> round(smallest_slope(1.0), 3)
    0.955
    """
    q = np.linspace(1e-6, 0.999, 20001)
    log_h = np.log(q) - np.log(gradient_factor(q, gamma))
    return float(np.gradient(log_h, np.log(q)).min())


@EXPERIMENTS.declare("fts/open1", "Temperature bounds for more than two classes", "left open")
def _bounds(material: Material) -> Analysis:
    """Every pair's ratio of log-odds under Ψ lies between the smallest slope and 1 + γ, any K."""
    rng = np.random.default_rng(0)
    findings, curves = [], []
    for gamma in (1.0, 3.0, 5.0):
        low = smallest_slope(gamma)
        findings.append(Finding(f"least 1/T of any pair, γ = {gamma:g}", low))
        seen = []
        classes = (2, 3, 4, 10, 100)
        for k in classes:
            q = softmax(rng.normal(size=(4000, k)) * rng.gamma(1.0, 3.0, size=(4000, 1)), axis=1)
            order = np.sort(q, axis=1)[:, -2:]
            p = np.sort(focal_map(q, gamma), axis=1)[:, -2:]
            gap = np.log(order[:, 1] / order[:, 0])
            some = (gap > 1e-3) & (gap < 30) & (p[:, 0] > 1e-300)
            ratio = np.log(p[some, 1] / p[some, 0]) / gap[some]
            seen.append((ratio.min(), ratio.max()))
            inside = np.mean((ratio >= low - 1e-6) & (ratio <= 1 + gamma + 1e-6))
            what = f"share of sampled points within the bounds, K = {k}, γ = {gamma:g}"
            findings.append(Finding(what, float(inside), n=int(some.sum())))
        for at, name in ((0, "least"), (1, "largest")):
            values = np.array([s[at] for s in seen])
            curves.append(Curve(f"γ = {gamma:g}, {name}", np.log10(classes), values))
    text = (
        "For any K the 1/T of a pair of classes lies between the least slope of ln h, below 1, and "
        "1 + γ (proof: open questions). Sampled points, top two classes, all obey both bounds."
    )
    panel = Curves("top two classes", "log₁₀ K", "ln(Ψ₁/Ψ₂)/ln(q₁/q₂)", tuple(curves))
    return Analysis(tuple(findings), text, (panel,))


def predicted_slope(log_p: np.ndarray) -> float:
    """d(T/T₀)/dγ at γ = 0 for calibrated log-probabilities (N, K).

    To first order Ψ^γ adds γ·a(p) to the logits, a(p) = −ln(1−p) − r(p). T takes this back as far
    as it can: by least squares of a(p) on ln p under the predictions themselves, so the slope is
    Σ Cov_p(ln p, a)/Σ Var_p(ln p). For two classes near ½ this is 1 − .38629, the rule for K = 2.

    >>> round(predicted_slope(np.log([[0.501, 0.499]])), 3)
    0.614
    """
    p = np.exp(log_p)
    rest = np.maximum(-np.expm1(np.minimum(log_p, -1e-15)), 1e-15)
    a = -np.log(rest) + p * log_p / rest

    def centred(x: np.ndarray) -> np.ndarray:
        return x - (p * x).sum(axis=1, keepdims=True)

    left, right = centred(log_p), centred(a)
    return float((p * left * right).sum() / (p * left**2).sum())


@EXPERIMENTS.declare("fts/open2", "Why (γ_ev, T) lie on a line", "left open", **ON_NETWORKS)
def _line(material: Material) -> Analysis:
    """Best T by NLL for each γ_ev, against T₀ times 1/T of the closest temperature."""
    gammas = np.array([g for g in GAMMAS if g <= 1])
    beta2 = np.array([1 / quick_temperature(g) for g in gammas])
    predicted2 = float(np.polyfit(gammas, beta2, 1)[0])
    beta3 = [1 / closest_temperature(g, 3).temperature for g in (0.0, 1.0)]
    findings = [
        Finding("slope of T/T₀ the rule for K = 2 predicts", predicted2),
        Finding("slope of T/T₀ the closest temperature for K = 3 predicts", beta3[1] - beta3[0]),
    ]
    every, rows, curves = [], [], []
    for net in all_networks(material):
        base = fitted(TemperatureScaling(), net.calibration).temperature_
        if not 0.05 < base < 20:
            continue  # on data that a network predicts perfectly T → 0
        ratios = np.array([best_temperature(net.calibration, g, base) / base for g in gammas])
        slope, offset = np.polyfit(gammas, ratios, 1)
        below, above = (best_temperature(net.calibration, g, base) for g in (-0.05, 0.05))
        log_p = log_softmax(np.asarray(net.calibration.as_logits()) / base, axis=1)
        named = {
            "slope of T/T₀ on γ": float(slope),
            "largest distance from its line, of T₀": float(
                np.abs(slope * gammas + offset - ratios).max()
            ),
            "slope at γ = 0, measured": float((above - below) / 0.1 / base),
            "slope at γ = 0, predicted": predicted_slope(log_p),
        }
        every.append(list(named.values()))
        findings += [Finding(f"{k}, {net.name}", v, n=net.calibration.n) for k, v in named.items()]
        rows.append((net.name, f"{base:.2f}", *(f"{v:.3f}" for v in named.values())))
        curves.append(Curve(net.name.split(",")[0], gammas, ratios))
    curves.append(Curve("K = 2 rule", gammas, beta2, style="--"))
    columns = ("network", "T₀", "slope", "largest distance", "at γ = 0", "predicted")
    table = Table("T/T₀ against γ", columns, tuple(rows))
    panel = Curves("", "γ", "best T / T₀", tuple(curves))
    text = "T takes back what of Ψ^γ is proportional to ln p (see open questions)."
    text += _measured_slopes(every)
    return Analysis(tuple(findings), text, (panel,), (table,) if rows else ())


def _measured_slopes(every: list[list[float]]) -> str:
    if not every:
        return ""
    slopes, _, local, theory = np.array(every).T
    text = f" Measured {local[0]:.3f}, predicted {theory[0]:.3f} at γ = 0"
    if len(every) > 1:
        text = (
            f" Measured against predicted at γ = 0 on {len(every)} networks: largest difference "
            f"{np.abs(local - theory).max():.3f}, correlation "
            f"{np.corrcoef(local, theory)[0, 1]:.3f}"
        )
    return text + (
        f". Over −.5 ≤ γ ≤ 1 the slopes of T/T₀ are {min(slopes):.2f} to {max(slopes):.2f}, "
        f"median {np.median(slopes):.2f}."
    )


RIVALS = (
    *("identity", "temperature", "focal-temperature", "vector", "matrix"),
    *("structured-vector", "structured-matrix"),
)
PAIR = ("focal-temperature", "structured-vector")


@EXPERIMENTS.declare(
    "fts/open3", "Against vector, matrix and structured scaling", "left open", **ON_NETWORKS
)
def _rivals(material: Material) -> Analysis:
    found, values = compare_methods(material, RIVALS, "ece", "ECE %")
    if not values:
        return published.absent("published predictions")
    wins = Counter(min(own, key=lambda name: own[name][0]) for own in values)
    gains = [[1 - own[name][0] / own["temperature"][0] for name in PAIR] for own in values]
    listed = ", ".join(f"{k} {v}" for k, v in wins.most_common())
    mean = 100 * np.mean(gains, axis=0)
    text = (
        f"Lowest test NLL, number of networks: {listed}. Against temperature scaling, focal "
        f"temperature scaling lowers the NLL by {mean[0]:.1f} % on average over {len(gains)} "
        f"networks, structured vector scaling by {mean[1]:.1f} %: one more parameter for the shape "
        "of the confidence buys less than parameters per class, where there are data to fit them."
    )
    return replace(found, conclusion=text)


def _three(material: Material) -> list[Network]:
    """Trained with cross-entropy, trained with focal loss, published; else the first there are."""
    every = all_networks(material)
    losses = [run.loss for run in material.runs]
    picked = [losses.index(loss) for loss in ("ce", "fla-53") if loss in losses]
    picked += [i for i in range(len(losses), len(every)) if i not in picked]
    picked += [i for i in range(len(every)) if i not in picked]
    return [every[i] for i in picked[:3]]


@EXPERIMENTS.declare(
    "fts/open4", "How fitting generalises from few samples", "left open", **ON_NETWORKS
)
def _generalisation(material: Material) -> Analysis:
    """Test equal-mass ECE when only n samples calibrate."""
    findings, curves, means = [], [], {}
    methods = {
        "temperature": TemperatureScaling,
        "focal temperature": FocalTemperatureScaling,
        "focal temperature, grid by ECE": partial(FocalTemperatureScaling, "adaptive_ece"),
    }
    networks = _three(material)
    for net in networks:
        sizes = [n for n in (100, 300, 1000, 3000) if n <= net.calibration.n]
        for name, make in methods.items():
            values = []
            for n in sizes:
                each = []
                for seed in range(3):
                    pick = np.random.default_rng(seed).permutation(net.calibration.n)[:n]
                    found = fitted(make(), net.calibration.take(pick))
                    probs = found.predict_proba(net.test.as_logits())
                    each.append(adaptive_ece(net.test.labels, probs))
                values.append(100 * float(np.mean(each)))
                what = f"equal-mass ECE %, {net.name}, {name}, {n} calibrate"
                findings.append(Finding(what, values[-1], n=net.n))
                means.setdefault((name, n), []).append(values[-1])
            curves.append(Curve(f"{net.name}, {name}", np.log10(sizes), np.array(values)))
    smallest, largest = min(n for _, n in means), max(n for _, n in means)
    listed = "; ".join(
        f"{m}: {np.mean(means[m, smallest]):.2f} % to {np.mean(means[m, largest]):.2f} %"
        for m in methods
    )
    text = (
        f"Mean test equal-mass ECE from {smallest} to {largest} calibration samples: {listed}. "
        f"Means over three draws of the calibration samples and {len(networks)} networks: "
        f"{'; '.join(net.name for net in networks)}."
    )
    panel = Curves("", "log₁₀ calibration samples", "equal-mass ECE, %", tuple(curves))
    return Analysis(tuple(findings), text, (panel,))
