"""The next questions in the summary of FTS, and Table 1 on every stored network."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from focalcal import metrics
from focalcal.calibrators import METHODS, FocalStructuredScaling, TemperatureScaling
from focalcal.calibrators.focal import TEMPERATURES
from focalcal.maps import closest_temperature
from focalcal.metrics import adaptive_ece, nll
from focalcal.predictions import Predictions
from focalcal_papers.experiments import published
from focalcal_papers.experiments.base import Analysis, Experiments, Finding, Material, Result
from focalcal_papers.experiments.fts import accepts_image, calibrators, landscapes
from focalcal_papers.experiments.fts_open import FILES, ON_NETWORKS, compare_methods
from focalcal_papers.experiments.ie_grid import by_setting, seeds
from focalcal_papers.experiments.published import all_networks
from focalcal_papers.experiments.reference import rows
from focalcal_papers.experiments.runs import IMAGES, Run, fitted, grouped
from focalcal_papers.experiments.settings import (
    BASES,
    SMOKE,
    Settings,
    is_published,
    loss_recipes,
    with_losses,
)
from focalcal_papers.figures import Curve, Curves, Table

EXPERIMENTS = Experiments()


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


@EXPERIMENTS.declare(
    "fts/architectures",
    "Over architectures",
    "asked for in the summary",
    **(ON_NETWORKS | {"recipes": _architecture_recipes}),
)
def _architectures(material: Material) -> Analysis:
    pair = ("temperature", "focal-temperature")
    found, values = compare_methods(material, pair, "adaptive_ece", "equal-mass ECE %")
    nll_wins, ece_wins = (
        sum(own[pair[1]][i] < own[pair[0]][i] for own in values) for i in range(2)
    )
    text = (
        f"Fitted by NLL, focal temperature scaling is ahead of temperature scaling in NLL for "
        f"{nll_wins} and in equal-mass ECE for {ece_wins} of {len(values)} networks."
    )
    return replace(found, conclusion=text)


@EXPERIMENTS.declare(
    "fts/ablation", "The whole (γ, T) landscape", "asked for in the summary", **ON_NETWORKS
)
def _ablation(material: Material) -> Analysis:
    found = landscapes(all_networks(material), 10)
    ends = {
        k: [f.ours for f in found.findings if f.what.startswith(f"equal-mass ECE % of the {k}")]
        for k in ("grid", "line")
    }
    loss = max((b - a for a, b in zip(ends["grid"], ends["line"])), default=0.0)
    text = (
        "The valley of low error runs along the line, so its search, a third of the grid's points "
        f"or fewer, loses at most {loss:.2f} points of equal-mass ECE on the calibration set."
    )
    return replace(found, conclusion=text + found.conclusion)


SEVERITIES = (1, 3, 5)
STRONG = "focal-structured"
MEASURED = ("ece", "brier")
"""As Ovadia et al. 2019; under shift NLL may be infinite."""


def shift_record(place: Path, splits: Any, device: str) -> dict[str, Any]:
    """Predict the corrupted test images with a finished run's weights, and measure."""
    import torch

    from focalcal_papers.data.corruption import CORRUPTIONS, corrupt
    from focalcal_papers.training import open_run

    corrupted = {}
    for kind in CORRUPTIONS:
        for severity in SEVERITIES:
            generator = torch.Generator().manual_seed(severity)
            images = corrupt(splits.test.inputs, kind, severity, generator)
            test = replace(splits.test, inputs=images)
            changed = replace(splits, test=test)
            session = open_run(place, device=device, splits=changed)
            corrupted[kind, severity] = session.predictions("test")
    return measured_shift(Run.from_folder(place), corrupted)


def measured_shift(run: Run, corrupted: dict[tuple[str, int], Predictions]) -> dict[str, Any]:
    """Error, and ECE and Brier score by calibrator, for each kind and severity.

    The calibrators are fitted to the run's own, clean, calibration set; severity 0 is its test set.
    """
    found = calibrators("nll") | {STRONG: METHODS[STRONG]()}
    ready = {name: fitted(calibrator, run.calibration) for name, calibrator in found.items()}

    def row(p: Predictions) -> dict[str, Any]:
        probs = {"none": p.probabilities()}
        probs |= {name: c.predict_proba(p.as_logits()) for name, c in ready.items()}
        found = {
            metric: {name: getattr(metrics, metric)(p.labels, q) for name, q in probs.items()}
            for metric in MEASURED
        }
        return {"n": p.n, "error": metrics.error(p.labels, probs["none"]), **found}

    clean, record = row(run.test), {}
    for (kind, severity), predictions in corrupted.items():
        record.setdefault(kind, {"0": clean})[str(severity)] = row(predictions)
    return record


@EXPERIMENTS.declare(
    "fts/shift",
    "Under noise, blur and contrast",
    "asked for in the summary",
    recipes=_shift_recipes,
    accepts=accepts_image,
    measures=("shift",),
)
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
        return Analysis.not_run("ECE under shift", reason)
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


@EXPERIMENTS.declare(
    "fts/criterion",
    "T by the reported metric",
    "buys 20 % of ECE, 1 % of log-loss",
    recipes=partial(loss_recipes, ("ce", "fl-1", "fl-3")),
    accepts=accepts_image,
    files=FILES,
)
def _criterion(material: Material) -> Analysis:
    """T by NLL against T by the reported metric: what the choice buys on the test set."""
    findings, gains = [], {"ece": [], "nll": []}
    nets = all_networks(material)
    for net in nets:
        z, y = net.test.as_logits(), net.test.labels
        by_nll, by_ece = (
            fitted(scaling, net.calibration).predict_proba(z)
            for scaling in (TemperatureScaling(), TemperatureScaling("adaptive_ece", TEMPERATURES))
        )
        pairs = {"ece": (adaptive_ece, by_ece, by_nll), "nll": (nll, by_nll, by_ece)}
        for name, (metric, own, other) in pairs.items():
            gain = 100 * (1 - metric(y, own) / metric(y, other))
            gains[name].append(gain)
            findings.append(Finding(f"{name}: gain %, {net.name}", gain, n=net.n))
    if not findings:
        return published.absent("published predictions")
    ece_gain = Finding.mean("equal-mass ECE: mean gain %", gains["ece"], 20.0)
    nll_gain = Finding.mean("log-loss: mean gain %", gains["nll"], 1.0)
    shown = tuple(
        (net.name, f"{a:+.1f}", f"{b:+.2f}") for net, a, b in zip(nets, gains["ece"], gains["nll"])
    )
    columns = ("network", "% of equal-mass ECE", "% of log-loss")
    table = Table("gain of choosing T by the reported metric, test set", columns, shown)
    text = (
        "Choosing T by the reported metric on the calibration set buys "
        f"{ece_gain.ours:.0f} % of equal-mass ECE ({ece_gain.low:.0f} to {ece_gain.high:.0f}, the "
        f"95 % interval of the mean over {ece_gain.n} networks) and {nll_gain.ours:.1f} % of "
        f"log-loss ({nll_gain.low:.1f} to {nll_gain.high:.1f}); single networks range from "
        f"{min(gains['ece']):.0f} to {max(gains['ece']):.0f} % of ECE, so one says nothing."
    )
    return Analysis((ece_gain, nll_gain, *findings), text, tables=(table,))


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


def _listed(values: list[float]) -> str:
    return ", ".join(f"{v:.2f}" for v in values)


@EXPERIMENTS.declare(
    "fts/compensation",
    "Does T_train · T_generalisation ≈ 1 hold?",
    "focal training and the generalisation gap compensate",
    recipes=partial(loss_recipes, ("ce", "fl-1", "fl-2", "fl-3")),
    accepts=accepts_image,
    from_tables=True,
)
def _compensation(material: Material) -> Analysis:
    """ln T of a focal network less ln T of the cross-entropy one, against Ψ's own temperature."""
    table = {
        (r["dataset"], r["model"], r["loss"]): float(r["temperature"])
        for r in rows("intriguing_effects")
        if r["metric"] == "ece%" and r["stage"] == "post" and r["temperature"]
    }
    findings, middle = [], {}
    for gamma in (1, 2, 3):
        ratios = [
            t / table[data, model, "ce"]
            for (data, model, loss), t in table.items()
            if loss == f"fl-{gamma}" and (data, model, "ce") in table
        ]
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
    """The same ratio for our runs, T by NLL on the calibration set; of cross-entropy the mean T."""
    findings, parts = [], []
    own = [run for run in material.runs if run.gamma is not None]
    temperature = {
        run.label: fitted(TemperatureScaling(), run.calibration).temperature_ for run in own
    }
    by_place = grouped((run for run in own if run.loss == "ce"), lambda run: run.place)
    plain = {k: np.mean([temperature[run.label] for run in ce]) for k, ce in by_place.items()}
    for run in own:
        t, n = temperature[run.label], run.calibration.n
        findings.append(Finding(f"T, {run.label}", t, n=n))
        if run.gamma and run.place in plain:
            ratios = []
            for k in (2, 3, run.test.n_classes):
                alone = closest_temperature(run.gamma, k).temperature
                ratios.append(float(t / plain[run.place] / alone))
                what = f"T / (T of ce × T of Ψ, K = {k}), {run.label}"
                findings.append(Finding(what, ratios[-1], 1.0, n=n, tolerance=0.1))
            parts.append(f"{run.loss} {_listed(ratios)}")
    if not parts:
        return findings, ""
    text = f"Our runs, K = 2, 3 and that of the data: {'; '.join(parts)}."
    return findings, text + seeds(own, "each run by itself")
