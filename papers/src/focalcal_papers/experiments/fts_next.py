"""What the summary of FTS asks next."""

from __future__ import annotations

from functools import partial

import numpy as np

from focalcal.calibrators import METHODS, TemperatureScaling
from focalcal.calibrators.focal import TEMPERATURES
from focalcal.maps import closest_temperature
from focalcal.metrics import adaptive_ece, nll
from focalcal_papers.experiments import published
from focalcal_papers.experiments.base import Analysis, Experiment, Finding, Material
from focalcal_papers.experiments.fts import accepts_image, landscape_analysis, landscape_table
from focalcal_papers.experiments.fts_open import FILES, all_networks, loss_recipes
from focalcal_papers.experiments.ie_grid import seeds
from focalcal_papers.experiments.reference import rows
from focalcal_papers.experiments.runs import fitted, measured
from focalcal_papers.experiments.settings import BASES, SMOKE, Settings, with_losses
from focalcal_papers.figures import Curve, Curves, Table


def _architectures(material: Material) -> Analysis:
    findings, wins, shown = [], [], []
    for net in all_networks(material):
        pair = {}
        for name in ("temperature", "focal-temperature"):
            found = fitted(METHODS[name](), net.calibration)
            probs = found.predict_proba(net.test.as_logits())
            for metric, scale in (("nll", 1), ("adaptive_ece", 100)):
                e = measured(metric, net.test.labels, probs)
                unit = "NLL" if scale == 1 else "equal-mass ECE %"
                findings.append(
                    Finding(
                        f"{unit}, {net.name}, {name}",
                        scale * e.value,
                        None,
                        scale * e.low,
                        scale * e.high,
                        e.n,
                    )
                )
                pair[name, metric] = e.value
        wins.append(
            [pair["focal-temperature", m] < pair["temperature", m] for m in ("nll", "adaptive_ece")]
        )
        cells = (
            f"{pair[name, 'nll']:.4f} / {100 * pair[name, 'adaptive_ece']:.2f}"
            for name in ("temperature", "focal-temperature")
        )
        shown.append((net.name, *cells))
    nll_wins, ece_wins = np.sum(wins, axis=0) if wins else (0, 0)
    text = (
        f"Fitted by NLL, focal temperature scaling is ahead of temperature scaling in NLL for "
        f"{nll_wins} and in equal-mass ECE for {ece_wins} of {len(wins)} networks."
    )
    columns = ("network", "temperature", "focal temperature")
    table = Table("test NLL / equal-mass ECE %", columns, tuple(shown))
    return Analysis(tuple(findings), text, tables=(table,) if shown else ())


def _ablation(material: Material) -> Analysis:
    findings, panels = [], []
    for net in all_networks(material)[:10]:
        z, y = net.calibration.as_logits(), net.calibration.labels
        numbers, drawn = landscape_analysis(net.name, z, y)
        findings += numbers
        panels += drawn
    ends = {
        k: [f.ours for f in findings if f.what.startswith(f"equal-mass ECE % of the {k}")]
        for k in ("grid", "line")
    }
    loss = max((b - a for a, b in zip(ends["grid"], ends["line"])), default=0.0)
    text = (
        "The valley of low error runs along the line, so its search, a third of the grid's points "
        f"or fewer, loses at most {loss:.2f} points of equal-mass ECE on the calibration set."
    )
    return Analysis(tuple(findings), text, tuple(panels), landscape_table(findings))


def _criterion(material: Material) -> Analysis:
    """T by NLL against T by the reported metric: what the choice buys on the test set."""
    findings, gains = [], {"ece": [], "nll": []}
    for net in all_networks(material):
        z, y = net.test.as_logits(), net.test.labels
        by_nll = fitted(TemperatureScaling(), net.calibration).predict_proba(z)
        by_ece = fitted(
            TemperatureScaling("adaptive_ece", TEMPERATURES), net.calibration
        ).predict_proba(z)
        pairs = {"ece": (adaptive_ece, by_ece, by_nll), "nll": (nll, by_nll, by_ece)}
        for name, (metric, own, other) in pairs.items():
            gain = 100 * (1 - metric(y, own) / metric(y, other))
            gains[name].append(gain)
            findings.append(Finding(f"{name}: gain %, {net.name}", gain, n=net.n))
    if not findings:
        return published.absent("published predictions")
    ece_gain = _mean_gain("equal-mass ECE: mean gain %", gains["ece"], 20.0)
    nll_gain = _mean_gain("log-loss: mean gain %", gains["nll"], 1.0)
    names = [net.name for net in all_networks(material)]
    rows = zip(names, gains["ece"], gains["nll"])
    shown = tuple((name, f"{a:+.1f}", f"{b:+.2f}") for name, a, b in rows)
    columns = ("network", "% of equal-mass ECE", "% of log-loss")
    table = Table("gain of choosing T by the reported metric, test set", columns, shown)
    text = (
        "Choosing T by the reported metric on the calibration set buys "
        f"{ece_gain.ours:.0f} % of equal-mass ECE ({ece_gain.low:.0f} to {ece_gain.high:.0f}, the "
        f"95 % interval of the mean over {ece_gain.n} networks) and {nll_gain.ours:.1f} % of "
        f"log-loss ({nll_gain.low:.1f} to {nll_gain.high:.1f}); single networks range from "
        f"{min(gains['ece']):.0f} to {max(gains['ece']):.0f} % of ECE, so one says nothing."
    )
    findings = [ece_gain, nll_gain, *findings]
    return Analysis(tuple(findings), text, tables=(table,))


def _mean_gain(what: str, values: list[float], paper: float) -> Finding:
    """A mean over networks with its normal 95 % interval."""
    mean, spread = float(np.mean(values)), float(np.std(values, ddof=min(1, len(values) - 1)))
    half = 1.96 * spread / len(values) ** 0.5
    return Finding(what, mean, paper, mean - half, mean + half, len(values))


def _compensation(material: Material) -> Analysis:
    """ln T of a focal network less ln T of the cross-entropy one, against Ψ's own temperature."""
    table = {
        (r["dataset"], r["model"], r["loss"]): float(r["temperature"])
        for r in rows("intriguing_effects")
        if r["metric"] == "ece%" and r["stage"] == "post" and r["temperature"]
    }
    findings, middle = [], {}
    for gamma in (1, 2, 3):
        ratios = np.array(
            [
                t / table[data, model, "ce"]
                for (data, model, loss), t in table.items()
                if loss == f"fl-{gamma}" and (data, model, "ce") in table
            ]
        )
        for k in (2, 3, 10):
            alone = closest_temperature(float(gamma), k).temperature
            middle[gamma, k] = float(np.median(ratios) / alone)
            what = f"T of fl-{gamma} / (T of ce × T of Ψ, K = {k}), median of IE's tables"
            findings.append(Finding(what, middle[gamma, k], 1.0, n=len(ratios), tolerance=0.1))
    own, said = _own_compensation(material)
    findings += own
    two, three, ten = ([middle[g, k] for g in (1, 2, 3)] for k in (2, 3, 10))
    text = (
        "If the under-confidence of focal training (T of Ψ, below 1) and the generalisation gap "
        "(T of the cross-entropy network, above 1) multiplied, the ratio would be 1. In IE's own "
        f"tables its median for γ = 1, 2, 3 is {_listed(two)} with the T of Ψ for two classes, "
        f"{_listed(three)} for three, {_listed(ten)} for ten: it depends on the number of "
        "classes assumed for Ψ, so the tables alone do not settle whether the two compensate."
    )
    return Analysis(tuple(findings), f"{text} {said}".strip())


def _own_compensation(material: Material) -> tuple[list[Finding], str]:
    """The same ratio for our runs, T by NLL on the calibration set; T on training data if at hand.

    A network that has learned its training set by heart has no T there: NLL falls as T → 0.
    """
    findings, parts = [], []
    plain = {run.network: run for run in material.runs if run.loss == "ce"}
    for run in material.runs:
        if run.gamma is None:
            continue
        t = fitted(TemperatureScaling(), run.calibration).temperature_
        findings.append(Finding(f"T, {run.label}", t, n=run.calibration.n))
        if run.gamma and run.network in plain:
            base = fitted(TemperatureScaling(), plain[run.network].calibration).temperature_
            ratios = []
            for k in (2, 3, run.test.n_classes):
                ratios.append(t / base / closest_temperature(run.gamma, k).temperature)
                what = f"T / (T of ce × T of Ψ, K = {k}), {run.label}"
                findings.append(Finding(what, ratios[-1], 1.0, n=run.calibration.n, tolerance=0.1))
            parts.append(f"{run.loss} {_listed(ratios)}")
        last = next((row for row in reversed(run.rows) if "train" in row), None)
        if last is not None:
            gap = 100 * (last["train"]["confidence"] - 1 + last["train"]["error"])
            what = f"confidence − accuracy on training samples, points, {run.label}"
            findings.append(Finding(what, gap, n=last["train"]["n"]))
            gap = run.before["confidence_gap"]
            what = f"confidence − accuracy on test samples, points, {run.label}"
            findings.append(Finding.percent(what, gap))
        if run.folder is not None:
            from focalcal_papers.training import predict

            train = predict(run.folder, "train", data_dir=run.data)
            t_train = fitted(TemperatureScaling(), train).temperature_
            findings.append(Finding(f"T on the training set, {run.label}", t_train, n=train.n))
    if not parts:
        return findings, ""
    return findings, f"Our runs, K = 2, 3 and that of the data: {'; '.join(parts)}." + seeds(
        material.runs
    )


def _listed(values: list[float]) -> str:
    return ", ".join(f"{v:.2f}" for v in values)


def _shift(material: Material) -> Analysis:
    """ECE and Brier score under our own corruptions, calibrated on clean data and not."""
    findings, shown, cells = [], [], []
    curves: dict[str, list[Curve]] = {}
    for run in material.runs:
        for kind, severities in (run.shift or {}).items():
            row = [run.label, kind.replace("_", " ")]
            for severity, found in severities.items():
                where = f"{run.label}, {kind} {severity}"
                findings.append(Finding(f"error %, {where}", 100 * found["error"], n=found["n"]))
                for metric, name, scale in (("ece", "ECE %", 100), ("brier", "Brier score", 1)):
                    for method, value in found[metric].items():
                        what = f"{name}, {where}, {method}"
                        findings.append(Finding(what, scale * value, n=found["n"]))
                row.append(" / ".join(f"{100 * v:.2f}" for v in found["ece"].values()))
                if severity != "0":
                    cells.append(found)
            shown.append(tuple(row))
            x = np.array(list(severities), dtype=float)
            y = np.array([100 * found["ece"]["ts"] for found in severities.values()])
            curves.setdefault(row[1], []).append(Curve(f"{run.network} {run.loss}", x, y))
    if not findings:
        reason = "no run was predicted under shift, which takes its weights"
        return Analysis((Finding("ECE under shift", reason=reason),), f"Not run: {reason}.")
    methods = list(cells[0]["ece"])
    ece_of, brier_of = ([[c[m][k] for k in methods] for c in cells] for m in ("ece", "brier"))
    mean_of = zip(methods, 100 * np.mean(ece_of, axis=0), np.mean(brier_of, axis=0))
    means = "; ".join(f"{name} {e:.2f} % and {b:.3f}" for name, e, b in mean_of)
    ahead = [c for c in cells if c["brier"]["fts"] < c["brier"]["ts"]]
    worse = [c for c in cells if c["ece"]["ts"] > c["ece"]["none"]]
    text = (
        f"Calibrated by NLL on clean data, over {len(cells)} pairs of a network and a corruption, "
        f"mean ECE and Brier score are: {means}. Temperature scaling raises ECE in {len(worse)} of "
        f"them; focal temperature scaling is ahead of it in Brier score in {len(ahead)}."
    )
    columns = ("run", "corruption", *(f"severity {s}" for s in severities))
    table = Table(f"ECE % under shift: {' / '.join(methods)}", columns, tuple(shown))
    panels = (
        Curves(kind, "severity", "ECE after temperature scaling, %", tuple(each))
        for kind, each in curves.items()
    )
    return Analysis(tuple(findings), text, tuple(panels), (table,))


def _shift_recipes(scale: str) -> dict[str, Settings]:
    data = {"n_train": 1200, "n_test": 600, "calibration": 400, "contrast": 0.2}
    images = SMOKE | {"dataset": "synthetic_images", "data_settings": data, "epochs": 6}
    return with_losses(images if scale == "smoke" else BASES[scale], ("ce", "fl-3"))


def _architecture_recipes(scale: str) -> dict[str, Settings]:
    if scale == "smoke":
        return {
            f"blobs-mlp{hidden}": SMOKE | {"model_settings": {"hidden": hidden}, "loss": "ce"}
            for hidden in (16, 64, 256)
        }
    models = ("resnet18", "mobilenet_v2", "vgg19", "vit")
    return {f"cifar10-{m}": BASES[scale] | {"model": m, "loss": "ce"} for m in models}


EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        "fts/architectures",
        "Over architectures",
        "asked for in the summary",
        _architectures,
        _architecture_recipes,
        accepts_image,
        files=FILES,
    ),
    Experiment(
        "fts/ablation",
        "The whole (γ, T) landscape",
        "asked for in the summary",
        _ablation,
        partial(loss_recipes, ("ce", "fl-3")),
        accepts_image,
        files=FILES,
    ),
    Experiment(
        "fts/shift",
        "Under noise, blur and contrast",
        "asked for in the summary",
        _shift,
        _shift_recipes,
        accepts_image,
        ("shift",),
    ),
    Experiment(
        "fts/criterion",
        "T by the reported metric",
        "buys 20 % of ECE, 1 % of log-loss",
        _criterion,
        partial(loss_recipes, ("ce", "fl-1", "fl-3")),
        accepts_image,
        files=FILES,
    ),
    Experiment(
        "fts/compensation",
        "Does T_train · T_generalisation ≈ 1 hold?",
        "focal training and the generalisation gap compensate",
        _compensation,
        partial(loss_recipes, ("ce", "fl-1", "fl-2", "fl-3")),
        accepts_image,
        from_tables=True,
    ),
)
