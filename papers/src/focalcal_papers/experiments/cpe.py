"""CPE (Charoenphakdee et al., CVPR 2021): minimisers, many classes, Ψ on a trained network."""

from __future__ import annotations

import numpy as np
from scipy.special import log_softmax

from focalcal.calibrators import TemperatureScaling
from focalcal.errors import InputError
from focalcal.figures import reliability_panel
from focalcal.maps import focal_map, inverse_focal_map
from focalcal_papers.experiments import published
from focalcal_papers.experiments.base import Analysis, Experiments, Finding, Material
from focalcal_papers.experiments.published import Network, trained_networks
from focalcal_papers.experiments.runs import evaluated, fitted
from focalcal_papers.experiments.settings import SMOKE, Settings, accepts_cifar10
from focalcal_papers.figures import Table
from focalcal_papers.figures import cpe as figures

EXPERIMENTS = Experiments()


def optimal_prediction(gamma: float) -> float:
    """The prediction for class 1 that minimises the focal risk at p = (.9, .1)."""
    return float(inverse_focal_map([0.9, 0.1], float(gamma))[0])


@EXPERIMENTS.declare(
    "cpe/minimizers",
    "Focal-risk minimiser for p = (.9, .1)",
    "q₁ = .78, .65, .60 for γ = 1, 3, 5, not .9: focal loss is not proper",
)
def _minimizers(material: Material) -> Analysis:
    printed = {1: 0.78, 3: 0.65, 5: 0.60}
    findings = [
        Finding(f"q* for p = (.9, .1), γ = {g}", optimal_prediction(g), v, tolerance=0.005)
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


@EXPERIMENTS.declare(
    "cpe/k1000",
    "Under- and over-confidence with 2 and 1000 classes",
    "under-confident for two classes; over-confident is possible for many",
)
def _many_classes(material: Material) -> Analysis:
    def top(p: float, k: int, gamma: float) -> float:
        return float(inverse_focal_map(figures.uniform_rest(np.array([p]), k), gamma)[0, 0])

    mapped = float(focal_map(figures.uniform_rest(np.array([0.1451]), 1000), 3.0)[0, 0])
    checked = {
        "q_max, K = 1000, γ = 3, p_max = .05": (top(0.05, 1000, 3.0), 0.0622),
        "q, K = 2, γ = 2, p = .8": (top(0.8, 2, 2.0), 0.6266),
        "Ψ of q_max = .1451, K = 1000, γ = 3": (mapped, 0.1221),
    }
    findings = tuple(Finding(what, *values, tolerance=5e-5) for what, values in checked.items())
    text = (
        "With two classes focal loss is under-confident everywhere; with many it is over-confident "
        "where the largest probability is small."
    )
    return Analysis(findings, text, tuple(figures.confidence_of_minimiser()))


def _psi_recipes(scale: str) -> dict[str, Settings]:
    """Enough made-up data that the network reaches the risk minimiser: there Ψ must be right."""
    data = {"n_train": 21000, "n_test": 10000, "calibration": 1000, "features": 2, "n_classes": 3}
    settings = SMOKE | {"loss": "fl-3", "data_settings": data, "epochs": 4, "batch_size": 256}
    return {"blobs-mlp-fl-3": settings | {"trace_every": 0}}


@EXPERIMENTS.declare(
    "cpe/psi-trained",
    "Ψ on a network trained with focal loss",
    "Ψ turns the focal network's output into class-posterior probabilities",
    recipes=_psi_recipes,
    accepts=lambda s: accepts_cifar10(s) and s["loss"].startswith("fl-"),
    made_up=True,
)
def _psi_trained(material: Material) -> Analysis:
    findings, rows, panels, gaps = [], [], [], []
    lower = 0
    for net in trained_networks(material.runs):
        if not (gamma := net.gamma):
            continue
        stages = published.calibrated(net, gammas=(gamma,))
        found = {k: evaluated(net.test.labels, np.exp(log_q)) for k, log_q in stages.items()}
        for k, e in found.items():
            findings += [
                Finding.percent(f"ECE %, {net.name}, {k}", e["ece"]),
                Finding.of(f"NLL, {net.name}, {k}", e["nll"]),
            ]
            panels.append(reliability_panel(e.reliability, f"γ = {gamma:g}, {k}"))
        cells = [f"{100 * e['ece'].value:.2f} / {e['nll'].value:.4f}" for e in found.values()]
        rows.append((net.name, *cells))
        before, psi = found["as they are"], found[f"Ψ, γ = {gamma:g}"]
        lower += psi["ece"].value < before["ece"].value
        ends = (100 * e["confidence_gap"].value for e in (before, psi))
        gaps.append(f"γ = {gamma:g}: " + " → ".join(f"{gap:+.1f}" for gap in ends))
    if not findings:
        return Analysis.not_run("Ψ", "no run trained with focal loss of one γ")
    text = (
        f"Without fitting anything, Ψ of the training γ lowers the ECE of {lower} of {len(rows)} "
        f"networks. Confidence − accuracy, points, as trained → through Ψ: {', '.join(gaps)}. The "
        "accuracy is untouched."
    )
    columns = (
        *("network", "as they are", "temperature", "Ψ of the training γ"),
        *("T and that Ψ", "focal temperature"),
    )
    table = Table("ECE % / NLL on the test set", columns, tuple(rows))
    return Analysis(tuple(findings), text, tuple(panels), (table,))


@EXPERIMENTS.declare(
    "cpe/human",
    "Does Ψ recover the human label distribution?",
    "an open question: p(y|x) is known here from about 51 people per image",
    accepts=accepts_cifar10,
    files=(published.HUMAN, published.GOLDEN),
)
def _human(material: Material) -> Analysis:
    """−Σ_k h_k ln q_k against the human label distribution h, for each way to calibrate q."""
    counts = published.human_counts(material.data)
    if counts is None:
        return published.absent("the human label counts of CIFAR-10")
    share = counts / counts.sum(axis=1, keepdims=True)
    floor = float(-(share * np.log(np.where(share > 0, share, 1))).sum(axis=1).mean())
    nets: list[tuple[Network, tuple[float, ...]]] = [
        (net, (net.gamma,) if net.gamma else ()) for net in trained_networks(material.runs)
    ]
    for net in published.networks(material.data, n_classes=10, calibration=True):
        nets.append((net, (1.0, 3.0)))
    findings, rows, softer = [], [], 0
    gaps: dict[str, list[Finding]] = {}
    for net, gammas in nets:
        _check_order(net, counts)
        each = {
            name: -(share * log_q).sum(axis=1)
            for name, log_q in published.calibrated(net, gammas).items()
        }
        findings += [Finding.mean(f"human log-loss, {net.name}, {k}", v) for k, v in each.items()]
        for name in (k for k in each if "Ψ" in k or k == "as they are"):
            what = f"{name} less temperature, {net.name}"
            findings.append(Finding.mean(what, each[name] - each["temperature"]))
            gaps.setdefault(name.split(",")[0], []).append(findings[-1])
        label_t = fitted(TemperatureScaling(), net.calibration).temperature_
        human_t = _human_temperature(np.asarray(net.test.as_logits(), dtype=float), share)
        what = f"T of lowest human log-loss, on the test set itself, {net.name}"
        findings.append(Finding(what, human_t, n=net.n))
        softer += human_t > label_t
        starts = ("as they are", "temperature", "Ψ", "T and Ψ", "focal temperature")
        scales = (f"{label_t:.2f}", f"{human_t:.2f}")
        rows.append((net.name, *(_listed(each, start) for start in starts), *scales))
    findings.append(Finding("entropy of the human labels", floor, n=len(share)))
    text = (
        "Log-loss against the distribution of about 51 human labels per test image, the lower the "
        f"better; its floor is their entropy, {floor:.4f}. Paired difference to temperature "
        f"scaling, worse in: {_worse(gaps)}. The T that would suit people, found on "
        f"the test set itself, is above that of the labels for {softer} of {len(nets)} networks"
    )
    if softer == len(nets):
        text += (
            ": people are less sure, and what raises confidence, as Ψ does, leads away from them"
        )
    text += "."
    columns = (
        *("network", "as they are", "temperature", "Ψ alone", "T and Ψ", "focal temperature"),
        *("T by labels", "T by people"),
    )
    return Analysis(tuple(findings), text, tables=(Table("human log-loss", columns, tuple(rows)),))


def _worse(gaps: dict[str, list[Finding]]) -> str:
    """In how many networks the whole interval of the difference is positive, and its range."""
    return "; ".join(
        f"{kind}, {sum(g.low > 0 for g in own)} of {len(own)} ({min(g.ours for g in own):+.3f} to "
        f"{max(g.ours for g in own):+.3f})"
        for kind, own in gaps.items()
    )


def _human_temperature(z: np.ndarray, share: np.ndarray) -> float:
    def loss(t: float) -> float:
        return -float((share * log_softmax(z / t, axis=1)).sum(axis=1).mean())

    return published.lowest_temperature(loss, np.log(0.1), np.log(20))


def _listed(each: dict[str, np.ndarray], start: str) -> str:
    return ", ".join(f"{v.mean():.4f}" for k, v in each.items() if k.startswith(start)) or "—"


def _check_order(net: Network, counts: np.ndarray) -> None:
    """People agree with 99 % of the labels; in another order of the images they would with 10 %."""
    if net.n != len(counts) or np.mean(counts.argmax(axis=1) == net.test.labels) < 0.9:
        raise InputError(
            f"expected the predictions of {net.name} for the {len(counts)} CIFAR-10 test images in "
            "the official order, got another; predict the whole test set"
        )
