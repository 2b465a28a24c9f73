"""Predictions of published networks, read from the folder given with --data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from focalcal.calibrators import FocalTemperatureScaling, TemperatureScaling
from focalcal.errors import FileFormatError
from focalcal.formats import read_table
from focalcal.maps import focal_log_map
from focalcal.predictions import Predictions
from focalcal_papers.experiments.base import Analysis, Material
from focalcal_papers.experiments.runs import Run, fitted

GOLDEN = "cifar10_resnet50_flsd53.npz"
HUMAN = "cifar10h-counts.npy"
HALVED = (
    "cifar10_test_logits_4resnets_akamaster.npz",
    "cifar10_test_probs_netcal.npz",
    "cifar100_test_probs_netcal.npz",
)
"""Files with test predictions only: a seeded half calibrates, the other half tests."""


@dataclass(frozen=True)
class Network:
    """Predictions of a published or trained network, and the γ it was trained with, if one."""

    name: str
    calibration: Predictions
    test: Predictions
    gamma: float | None = None

    @property
    def n(self) -> int:
        return self.test.n


def networks(
    data: Path | None, n_classes: int | None = None, calibration: bool = False
) -> list[Network]:
    """The published networks in `data` or its folder `logits`.

    n_classes: only those. calibration: only networks with calibration data of their own, so that
    the test set is whole.
    """
    found = []
    if (path := _find(data, GOLDEN)) is not None:
        table, _ = read_table(path)
        val, test = (
            Predictions(logits=table[f"{p}_logits"], labels=table[f"{p}_labels"].astype(np.int64))
            for p in ("val", "test")
        )
        found.append(Network("ResNet-50 FLSD-53 C10", val, test))
    for file in () if calibration else HALVED:
        path = _find(data, file)
        if path is None:
            continue
        table, _ = read_table(path)
        labels = table.pop("labels").astype(np.int64)
        for name, values in table.items():
            # Log-probabilities are logits to every softmax method.
            z = values if "logits" in file else np.log(values)
            whole = Predictions(logits=z, labels=labels)
            order = np.random.default_rng(0).permutation(whole.n)
            first, second = np.sort(order[: whole.n // 2]), np.sort(order[whole.n // 2 :])
            found.append(Network(name, whole.take(first), whole.take(second)))
    return [n for n in found if n_classes in (None, n.test.n_classes)]


def trained_networks(runs: Sequence[Run]) -> list[Network]:
    """Trained runs in the same form."""
    return [Network(run.label, run.calibration, run.test, run.gamma) for run in runs]


def all_networks(material: Material) -> list[Network]:
    """The trained runs, then the published networks."""
    return trained_networks(material.runs) + networks(material.data)


def golden_run(data: Path | None) -> list[Run]:
    """IE's own ResNet-50 with FLSD-53 on CIFAR-10 as a run of its tables; none without the file."""
    settings = {"dataset": "cifar10", "model": "resnet50", "loss": "fla-53", "epochs": 350}
    settings |= {"seed": 0, "reduction": "sum", "clip_norm": 2.0, "origin": "published weights"}
    return [
        Run("published", settings, net.calibration, net.test)
        for net in networks(data, calibration=True)
    ]


def human_counts(data: Path | None) -> np.ndarray | None:
    """Human label counts (10000, 10) of the CIFAR-10 test images, None without the file."""
    path = _find(data, HUMAN)
    if path is None:
        return None
    counts = np.load(path, allow_pickle=False)
    if counts.ndim != 2 or counts.shape[1] != 10:
        raise FileFormatError(f"expected counts (N, 10) in {path}, got {counts.shape}")
    return counts


def best_temperature(calibration: Predictions, gamma: float, around: float) -> float:
    """T of lowest calibration NLL of Ψ^γ(softmax(z/T)), for one γ; `around`: the T for γ = 0."""
    z = np.asarray(calibration.as_logits(), dtype=float)
    rows, labels = np.arange(len(z)), np.asarray(calibration.labels)

    def loss(t: float) -> float:
        return -float(focal_log_map(z / t, gamma)[rows, labels].mean())

    start = np.log(around * max(1 + 0.8 * gamma, 0.3))
    return lowest_temperature(loss, start - 1.1, start + 1.1)


def lowest_temperature(loss: Callable[[float], float], low: float, high: float) -> float:
    """The T of lowest loss with ln T between two ends."""
    found = minimize_scalar(lambda log_t: loss(np.exp(log_t)), bounds=(low, high), method="bounded")
    return float(np.exp(found.x))


def calibrated(net: Network, gammas: tuple[float, ...] = ()) -> dict[str, np.ndarray]:
    """Log-probabilities (n, K) of the test set by way of calibration.

    As they are, with T, through Ψ alone, through Ψ with the T that goes with its γ, and with both
    γ and T fitted.
    """
    z = net.test.as_logits()
    t = fitted(TemperatureScaling(), net.calibration).temperature_
    both = fitted(FocalTemperatureScaling(), net.calibration)
    with_t = {g: best_temperature(net.calibration, g, t) for g in gammas}
    return {
        "as they are": log_softmax(z, axis=1),
        "temperature": log_softmax(z / t, axis=1),
        **{f"Ψ, γ = {g:g}": focal_log_map(z, g) for g in gammas},
        **{f"T and Ψ, γ = {g:g}": focal_log_map(z / with_t[g], g) for g in gammas},
        "focal temperature": focal_log_map(z / both.temperature_, both.gamma_),
    }


def absent(what: str) -> Analysis:
    """The analysis of an experiment whose files are missing."""
    return Analysis.not_run(what, f"{what} are not in the folder given with --data")


def _find(data: Path | None, name: str) -> Path | None:
    if data is None:
        return None
    return next((p for p in (data / name, data / "logits" / name) if p.is_file()), None)


def available(data: Path | None, files: tuple[str, ...]) -> bool:
    """Whether there are files to read and all of them are there."""
    return bool(files) and all(_find(data, name) for name in files)
