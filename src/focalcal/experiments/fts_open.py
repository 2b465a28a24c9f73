"""What FTS left open: four questions."""

from __future__ import annotations

from functools import partial

import numpy as np

from focalcal.calibrators import METHODS, FocalTemperatureScaling, TemperatureScaling
from focalcal.calibrators.focal import GAMMAS
from focalcal.experiments import published
from focalcal.experiments.base import Analysis, Experiment, Finding, Material
from focalcal.experiments.fts import accepts_image
from focalcal.experiments.published import Network
from focalcal.experiments.runs import fitted, measured
from focalcal.experiments.settings import BASES, Settings, with_losses
from focalcal.figures import Curve, Curves
from focalcal.maps import closest_temperature, focal_map, gradient_factor, quick_temperature
from focalcal.metrics import adaptive_ece

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
    """Every pair's log-odds ratio under Ψ lies between the smallest slope and 1 + γ, any K."""
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
        "For K > 2 no tight temperature bound exists. With h = q/g, ln(Ψ_i/Ψ_j)/ln(q_i/q_j) is the "
        "mean of d ln h/d ln q between q_j and q_i. Two classes that share all the mass stretch up "
        "to 1 + γ as for K = 2; two small ones barely move, or shrink: the least slope is below 1. "
        "So the least slope bounds 1/T of a pair from below for every K. That 1 + γ bounds it from "
        "above is proven for K = 2 only; here it held for the two largest classes of every sampled "
        "point. The lower end below 1 fits the failure of Prop. 5 for many classes."
    )
    panel = Curves("top two classes", "log₁₀ K", "ln(Ψ₁/Ψ₂)/ln(q₁/q₂)", tuple(curves))
    return Analysis(tuple(findings), text, (panel,))


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
    slopes = []
    for net in all_networks(material):
        base = fitted(TemperatureScaling(), net.calibration).temperature_
        if not 0.05 < base < 20:
            continue
        best = []
        for gamma in gammas:
            grid = np.geomspace(0.3, 3, 200) * base * max(1 + 0.8 * gamma, 0.3)
            one = FocalTemperatureScaling(search="grid", gammas=[gamma], temperatures=grid)
            best.append(fitted(one, net.calibration).temperature_)
        slope, offset = np.polyfit(gammas, best, 1)
        left = np.abs(slope * gammas + offset - best).max() / base
        slopes.append(slope / base)
        findings += [
            Finding(f"slope of T/T₀ on γ, {net.name}", float(slope / base), n=net.calibration.n),
            Finding(f"largest distance from its line, of T₀, {net.name}", float(left)),
        ]
        curves.append(Curve(net.name, gammas, np.array(best) / base))
    curves.append(Curve("K = 2 rule", gammas, beta2, style="--"))
    text = (
        "Ψ^γ acts like a temperature 1/β(γ), β = 1 + γ − .386γ/(1 + .693γ) for two classes. The "
        "composition Ψ^γ∘softmax(z/T) then scales logits by β(γ)/T; keeping that at the best "
        "1/T₀ gives T = T₀·β(γ), which is nearly straight. With more classes β is the closest "
        "temperature's, whose slope falls with K (.95, .64, .49 for 2, 3, 4). A likely reading, "
        "not tested: on data the slope averages the local stretch 1 − d ln g/d ln q, so it is "
        "larger for accurate networks than for weak ones"
        + (
            f"; measured slopes of T/T₀: {min(slopes):.2f} to {max(slopes):.2f}, median "
            f"{np.median(slopes):.2f}."
            if slopes
            else "."
        )
    )
    return Analysis(tuple(findings), text, (Curves("", "γ", "best T / T₀", tuple(curves)),))


RIVALS = (
    "identity",
    "temperature",
    "focal-temperature",
    "vector",
    "matrix",
    "structured-vector",
    "structured-matrix",
)


def _rivals(material: Material) -> Analysis:
    findings, wins = [], {}
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
    if not findings:
        return published.absent("published predictions")
    listed = ", ".join(f"{k} {v}" for k, v in sorted(wins.items(), key=lambda kv: -kv[1]))
    return Analysis(tuple(findings), f"Lowest test NLL, number of networks: {listed}.")


def _generalisation(material: Material) -> Analysis:
    """Test NLL and equal-mass ECE when only n samples calibrate."""
    findings, curves = [], []
    methods = {
        "temperature": TemperatureScaling,
        "focal temperature": FocalTemperatureScaling,
        "focal temperature, grid by ECE": partial(FocalTemperatureScaling, "adaptive_ece"),
    }
    for net in all_networks(material)[:3]:
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
        "Means over three draws of the calibration samples."
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
