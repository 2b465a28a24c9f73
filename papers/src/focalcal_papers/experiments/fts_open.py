"""What FTS left open: four questions."""

from __future__ import annotations

from functools import partial

import numpy as np
from scipy.special import log_softmax

from focalcal.calibrators import METHODS, FocalTemperatureScaling, TemperatureScaling
from focalcal.calibrators.focal import GAMMAS
from focalcal.maps import (
    closest_temperature,
    focal_map,
    gradient_factor,
    quick_temperature,
)
from focalcal.metrics import adaptive_ece
from focalcal_papers.experiments import published
from focalcal_papers.experiments.base import Analysis, Experiment, Finding, Material
from focalcal_papers.experiments.fts import accepts_image
from focalcal_papers.experiments.published import Network, best_temperature
from focalcal_papers.experiments.runs import fitted, measured
from focalcal_papers.experiments.settings import BASES, Settings, with_losses
from focalcal_papers.figures import Curve, Curves, Table

FILES = (published.GOLDEN,)


def all_networks(material: Material) -> list[Network]:
    """The trained runs and the published networks, in one form."""
    trained = [
        Network(run.label, run.calibration, run.test, np.arange(run.test.n))
        for run in material.runs
    ]
    return trained + published.networks(material.data)


def smallest_slope(gamma: float) -> float:
    """min over q of d ln h/d ln q, h = q/g(q,γ): how little Ψ^γ can stretch two small classes.

    >>> round(smallest_slope(1.0), 3)
    0.955
    """
    q = np.linspace(1e-6, 0.999, 20001)
    log_h = np.log(q) - np.log(gradient_factor(q, gamma))
    return float(np.gradient(log_h, np.log(q)).min())


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
            z = rng.normal(size=(4000, k)) * rng.gamma(1.0, 3.0, size=(4000, 1))
            q = np.exp(z - z.max(axis=1, keepdims=True))
            q = q / q.sum(axis=1, keepdims=True)
            order = np.sort(q, axis=1)[:, -2:]
            p = np.sort(focal_map(q, gamma), axis=1)[:, -2:]
            gap = np.log(order[:, 1] / order[:, 0])
            some = (gap > 1e-3) & (gap < 30) & (p[:, 0] > 1e-300)
            ratio = np.log(p[some, 1] / p[some, 0]) / gap[some]
            seen.append((ratio.min(), ratio.max()))
            inside = np.mean((ratio >= low - 1e-6) & (ratio <= 1 + gamma + 1e-6))
            findings.append(
                Finding(
                    f"share of sampled points within the bounds, K = {k}, γ = {gamma:g}",
                    float(inside),
                    n=int(some.sum()),
                )
            )
        for at, name in ((0, "least"), (1, "largest")):
            values = np.array([s[at] for s in seen])
            curves.append(Curve(f"γ = {gamma:g}, {name}", np.log10(classes), values))
    text = (
        "With h = q/g, ln(Ψ_i/Ψ_j)/ln(q_i/q_j), the 1/T of a pair of classes, is the mean of u = "
        "d ln h/d ln q between q_j and q_i, whatever K. Above it is at most 1 + γ: u = 1 + "
        "γq/(1−q) − γq r'/(1+γr) and r' ≥ 0 give u ≤ 1 + γ for q ≤ ½; if q_i > ½, q_j ≤ 1−q_i and "
        "the mean is that over [1−q_i, q_i], which Prop. 3 (K = 2) keeps below 1 + γ, and that "
        "over [q_j, 1−q_i], where u is at most that. Below it is at least the least u, under 1 "
        "(.955, .910, .884 for γ = 1, 3, 5, at q = .047, .028, .021). Both ends are sharp for K ≥ "
        "3: two classes that share all the mass come near 1 + γ, two close ones at that small "
        "q near the least u. So for K > 2 the two temperatures of Prop. 3 widen to 1/(1+γ) and one "
        "above 1: no useful single temperature, and the failure of Prop. 5 for many classes has "
        "room. Sampled points, top two classes, all obey both bounds."
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


def _line(material: Material) -> Analysis:
    """Best T by NLL for each γ_ev, against T₀ times 1/T of the closest temperature."""
    gammas = np.array([g for g in GAMMAS if g <= 1])
    findings, curves = [], []
    beta2 = np.array([1 / quick_temperature(g) for g in gammas])
    predicted2 = float(np.polyfit(gammas, beta2, 1)[0])
    beta3 = [1 / closest_temperature(g, 3).temperature for g in (0.0, 1.0)]
    findings.append(Finding("slope of T/T₀ the rule for K = 2 predicts", predicted2))
    findings.append(
        Finding("slope of T/T₀ the closest temperature for K = 3 predicts", beta3[1] - beta3[0])
    )
    slopes, first, rows = [], [], []
    for net in all_networks(material):
        base = fitted(TemperatureScaling(), net.calibration).temperature_
        if not 0.05 < base < 20:
            continue
        best = np.array([best_temperature(net.calibration, g, base) for g in gammas])
        slope, offset = np.polyfit(gammas, best, 1)
        left = np.abs(slope * gammas + offset - best).max() / base
        step = [best_temperature(net.calibration, g, base) for g in (-0.05, 0.05)]
        local = (step[1] - step[0]) / 0.1 / base
        theory = predicted_slope(
            log_softmax(np.asarray(net.calibration.as_logits()) / base, axis=1)
        )
        slopes.append(slope / base)
        first.append((local, theory))
        n = net.calibration.n
        findings += [
            Finding(f"slope of T/T₀ on γ, {net.name}", float(slope / base), n=n),
            Finding(f"largest distance from its line, of T₀, {net.name}", float(left), n=n),
            Finding(f"slope at γ = 0, measured, {net.name}", float(local), n=n),
            Finding(f"slope at γ = 0, predicted, {net.name}", theory, n=n),
        ]
        shown = (f"{base:.2f}", f"{slope / base:.3f}", f"{left:.3f}", f"{local:.3f}")
        rows.append((net.name, *shown, f"{theory:.3f}"))
        curves.append(Curve(net.name.split(",")[0], gammas, best / base))
    curves.append(Curve("K = 2 rule", gammas, beta2, style="--"))
    text = (
        "Ψ^γ acts like a temperature 1/β(γ), β = 1 + γ − .386γ/(1 + .693γ) for two classes. The "
        "composition Ψ^γ∘softmax(z/T) then scales logits by β(γ)/T; keeping that at the best "
        "1/T₀ gives T = T₀·β(γ), which is nearly straight. For any K: to first order Ψ^γ adds "
        "γ·a(p) to the logits, a(p) = −ln(1−p) + p ln p/(1−p), and T can take back what of it is "
        "proportional to ln p. At a calibrated p the slope of T/T₀ at γ = 0 is therefore the least-"
        "squares slope of a(p) on ln p under p, ΣCov_p(ln p, a)/ΣVar_p(ln p): .614 for two classes "
        "near ½ (the rule above), near 1 for confident pairs, near 0 for mass spread over many "
        "classes."
    )
    if slopes:
        apart = max(abs(a - b) for a, b in first)
        text += (
            f" Measured against predicted at γ = 0 on {len(first)} networks: largest difference "
            f"{apart:.3f}, correlation {np.corrcoef(np.array(first).T)[0, 1]:.3f}"
            if len(first) > 1
            else f" Measured {first[0][0]:.3f}, predicted {first[0][1]:.3f} at γ = 0"
        )
        text += (
            f". Over −.5 ≤ γ ≤ 1 the slopes of T/T₀ are {min(slopes):.2f} to {max(slopes):.2f}, "
            f"median {np.median(slopes):.2f}."
        )
    columns = ("network", "T₀", "slope", "largest distance", "at γ = 0", "predicted")
    table = Table("T/T₀ against γ", columns, tuple(rows))
    panel = Curves("", "γ", "best T / T₀", tuple(curves))
    return Analysis(tuple(findings), text, (panel,), (table,) if rows else ())


RIVALS = (
    "identity",
    "temperature",
    "focal-temperature",
    "vector",
    "matrix",
    "structured-vector",
    "structured-matrix",
)
PAIR = ("focal-temperature", "structured-vector")


def _rivals(material: Material) -> Analysis:
    findings, wins, rows, gains = [], {}, [], []
    for net in all_networks(material):
        names = [r for r in RIVALS if r in METHODS]
        if net.test.n_classes > 20:
            names = [r for r in names if "matrix" not in r]  # a parameter per pair of classes
        scores = {}
        for name in names:
            found = fitted(METHODS[name](), net.calibration)
            probs = found.predict_proba(net.test.as_logits())
            for metric, scale in (("nll", 1), ("ece", 100)):
                e = measured(metric, net.test.labels, probs)
                what = f"{'NLL' if scale == 1 else 'ECE %'}, {net.name}, {name}"
                findings.append(
                    Finding(what, scale * e.value, None, scale * e.low, scale * e.high, e.n)
                )
                scores[name, metric] = e.value
        best = min(names, key=lambda n: scores[n, "nll"])
        wins[best] = wins.get(best, 0) + 1
        cells = (
            f"{scores[n, 'nll']:.4f} / {100 * scores[n, 'ece']:.2f}" if n in names else "—"
            for n in RIVALS
        )
        rows.append((net.name, *cells))
        gains.append([1 - scores[n, "nll"] / scores["temperature", "nll"] for n in PAIR])
    if not findings:
        return published.absent("published predictions")
    listed = ", ".join(f"{k} {v}" for k, v in sorted(wins.items(), key=lambda kv: -kv[1]))
    mean = 100 * np.mean(gains, axis=0)
    text = (
        f"Lowest test NLL, number of networks: {listed}. Against temperature scaling, focal "
        f"temperature scaling lowers the NLL by {mean[0]:.1f} % on average over {len(gains)} "
        f"networks, structured vector scaling by {mean[1]:.1f} %: one more parameter for the shape "
        "of the confidence buys less than parameters per class, where there are data to fit them."
    )
    table = Table("test NLL / ECE %", ("network", *RIVALS), tuple(rows))
    return Analysis(tuple(findings), text, tables=(table,))


def _three(material: Material) -> list[Network]:
    """Trained with cross-entropy, trained with focal loss, published; else the first there are."""
    every = all_networks(material)
    losses = [run.loss for run in material.runs]
    picked = [losses.index(loss) for loss in ("ce", "fla-53") if loss in losses]
    picked += [i for i in range(len(losses), len(every)) if i not in picked]
    picked += [i for i in range(len(every)) if i not in picked]
    return [every[i] for i in picked[:3]]


def _generalisation(material: Material) -> Analysis:
    """Test NLL and equal-mass ECE when only n samples calibrate."""
    findings, curves = [], []
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
            curves.append(Curve(f"{net.name}, {name}", np.log10(sizes), np.array(values)))
    last = {}
    for f in findings:
        method = next(m for m in sorted(methods, key=len, reverse=True) if f", {m}, " in f.what)
        last.setdefault((method, int(f.what.split()[-2])), []).append(f.ours)
    smallest = min(n for _, n in last)
    largest = max(n for _, n in last)
    listed = "; ".join(
        f"{m}: {np.mean(last[m, smallest]):.2f} % to {np.mean(last[m, largest]):.2f} %"
        for m in methods
    )
    text = (
        f"Mean test equal-mass ECE from {smallest} to {largest} calibration samples: {listed}. "
        f"Means over three draws of the calibration samples and {len(networks)} networks: "
        f"{'; '.join(net.name for net in networks)}."
    )
    panel = Curves("", "log₁₀ calibration samples", "equal-mass ECE, %", tuple(curves))
    return Analysis(tuple(findings), text, (panel,))


def loss_recipes(losses: tuple[str, ...], scale: str) -> dict[str, Settings]:
    return with_losses(BASES[scale], losses)


EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment("fts/open1", "Temperature bounds for more than two classes", "left open", _bounds),
    Experiment(
        "fts/open2",
        "Why (γ_ev, T) lie on a line",
        "left open",
        _line,
        partial(loss_recipes, ("ce", "fl-3")),
        accepts_image,
        files=FILES,
    ),
    Experiment(
        "fts/open3",
        "Against vector, matrix and structured scaling",
        "left open",
        _rivals,
        partial(loss_recipes, ("ce", "fl-3")),
        accepts_image,
        files=FILES,
    ),
    Experiment(
        "fts/open4",
        "How fitting generalises from few samples",
        "left open",
        _generalisation,
        partial(loss_recipes, ("ce", "fl-3")),
        accepts_image,
        files=FILES,
    ),
)
