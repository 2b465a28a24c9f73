"""NLL, Brier score and calibration errors of every calibrator on real networks.

    python benchmarks/quality.py --data LOGITS_FOLDER               # 10 seeds, all methods
    python benchmarks/quality.py --data LOGITS_FOLDER --seeds 2 --methods temperature
    python benchmarks/quality.py --data LOGITS_FOLDER --cache FOLDER  # go on where it was stopped

Each test set is cut in halves at random: one fits, the other scores. Design networks are those on
which defaults were chosen; held-out networks were looked at for these tables only. Differences are
paired with the reference method (same network, same halves), averaged over seeds, and their 95 %
intervals are Student's t over networks, because halves of one network are not independent.
Rivals (probmetrics, scikit-learn) run where they can be imported.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.stats

from focalcal import metrics
from focalcal._arrays import log_softmax, softmax
from focalcal._files import write_text
from focalcal.calibrators import METHODS, make
from focalcal.errors import FitWarning
from focalcal.provenance import provenance

SCORES = ("NLL", "Brier", "ECE %", "equal-mass ECE %")
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "temperature by ECE": ("temperature", {"objective": "ece"}),
    "focal-temperature by ECE": ("focal-temperature", {"objective": "adaptive_ece"}),
    "spline top-label": ("spline", {"mode": "top-label"}),
    "isotonic top-label": ("isotonic", {"mode": "top-label"}),
}
"""Settings worth a row of their own, beside every method's defaults."""
NOT_RUN = ("auto", "focal")  # one of the others by construction; needs the training γ

Predict = Callable[[np.ndarray], np.ndarray]
"""Log-probabilities (N, K) of logits (N, K)."""
Fit = Callable[[np.ndarray, np.ndarray], Predict]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data/logits"))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--methods", nargs="+", help="rows to run; default all")
    parser.add_argument("--networks", nargs="+", help="only networks whose name contains one")
    parser.add_argument("--reference", default="focal-structured")
    parser.add_argument("--cache", type=Path, help="folder of what is done; delete a file to redo")
    parser.add_argument("--json", type=Path, default=Path("quality.json"))
    parser.add_argument("--markdown", type=Path, default=Path("quality.md"))
    args = parser.parse_args()
    rows = {**own_methods(), **rivals()}
    rows = {name: rows[name] for name in (args.methods or rows)}
    results: dict[str, Any] = {}
    networks = [("design", *n) for n in design(args.data)]
    networks += [("held-out", *n) for n in held_out(args.data)]
    for seed in range(args.seeds):
        for group, network, logits, labels in networks:
            if args.networks and not any(part in network for part in args.networks):
                continue
            found = run(rows, logits, labels, seed, cache_file(args.cache, network, seed))
            own = results.setdefault(group, {}).setdefault(network, {})
            for name, values in found.items():
                own.setdefault(name, []).append(values)
            print(seed, network, {k: np.round(v, 4).tolist() for k, v in found.items()}, flush=True)
    text = "\n".join(table(group, results[group], args.reference) for group in results)
    write_text(args.markdown, text)
    document = {"provenance": provenance(), "seeds": args.seeds, "results": results}
    write_text(args.json, json.dumps(document))
    print(text)


def cache_file(folder: Path | None, network: str, seed: int) -> Path | None:
    if folder is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{network.replace(' ', '_')}_{seed}.json"


def design(folder: Path) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    for dataset in ("cifar100", "cifar10"):
        file = np.load(folder / f"{dataset}_test_probs_netcal.npz")
        for name in file.files:
            if name != "labels":
                # a few probabilities underflow to zero in float32
                log_p = np.log(np.maximum(file[name].astype(np.float64), 1e-30))
                yield f"{dataset} {name}", log_p, file["labels"].astype(np.int64)


def held_out(folder: Path) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    file = np.load(folder / "cifar10_test_logits_4resnets_akamaster.npz")
    labels = file["labels"].astype(np.int64).ravel()
    for name in file.files:
        if file[name].ndim == 2:
            yield f"cifar10 {name} akamaster", file[name].astype(np.float64), labels
    file = np.load(folder / "cifar10_resnet50_flsd53.npz")
    logits, labels = file["test_logits"].astype(np.float64), file["test_labels"]
    yield "cifar10 resnet50 flsd53", logits, labels.astype(np.int64)


def run(
    rows: dict[str, Fit], logits: np.ndarray, labels: np.ndarray, seed: int, cache: Path | None
) -> dict[str, list[float]]:
    """Scores and seconds of every row on one seed's halves."""
    done: dict[str, list[float]] = {}
    if cache is not None and cache.exists():
        done = json.loads(cache.read_text())
    order = np.random.default_rng(seed).permutation(len(labels))
    own, other = np.split(order, [len(order) // 2])
    for name, fit in rows.items():
        if name in done:
            continue
        start = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            predict = fit(logits[own], labels[own])
            seconds = time.process_time() - start
            log_p = predict(logits[other])
        done[name] = [round(value, 6) for value in (*score(log_p, labels[other]), seconds)]
        if cache is not None:
            write_text(cache, json.dumps(done))
    return {name: done[name] for name in rows}


def score(log_p: np.ndarray, labels: np.ndarray) -> list[float]:
    p = np.exp(log_p)
    p /= p.sum(axis=1, keepdims=True)
    return [
        -float(np.mean(log_p[np.arange(len(labels)), labels])),
        float(metrics.brier(labels, p)),
        100 * float(metrics.ece(labels, p)),
        100 * float(metrics.adaptive_ece(labels, p)),
    ]


def own_methods() -> dict[str, Fit]:
    def row(name: str, params: dict[str, Any]) -> Fit:
        def fit(logits: np.ndarray, labels: np.ndarray) -> Predict:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FitWarning)
                return make(name, **params).fit(logits, labels).predict_log_proba

        return fit

    settings = {name: (name, {}) for name in METHODS if name not in NOT_RUN} | VARIANTS
    return {label: row(*setting) for label, setting in settings.items()}


def rivals() -> dict[str, Fit]:
    rows = {f"scikit-learn {m}": sklearn_row(m) for m in ("temperature", "isotonic", "sigmoid")}
    if all(importlib.util.find_spec(name) for name in ("probmetrics", "numba")):
        rows |= {f"probmetrics {m}": probmetrics_row(m) for m in ("temp-scaling", "svs", "sms")}
    else:
        print("probmetrics is not installed (pip install probmetrics numba): left out")
    return rows


def sklearn_row(method: str) -> Fit:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.frozen import FrozenEstimator

    class Logits(ClassifierMixin, BaseEstimator):
        """A fitted classifier whose inputs are its own logits."""

        def fit(self, x: np.ndarray, y: np.ndarray) -> Logits:
            self.classes_ = np.arange(x.shape[1])
            return self

        def decision_function(self, x: np.ndarray) -> np.ndarray:
            return x

        def predict(self, x: np.ndarray) -> np.ndarray:
            return np.argmax(x, axis=1)

    def fit(logits: np.ndarray, labels: np.ndarray) -> Predict:
        frozen = FrozenEstimator(Logits().fit(logits, labels))
        fitted = CalibratedClassifierCV(frozen, method=method).fit(logits, labels)
        return lambda z: floored_log(fitted.predict_proba(z))

    return fit


def probmetrics_row(method: str) -> Fit:
    def fit(logits: np.ndarray, labels: np.ndarray) -> Predict:
        from probmetrics.calibrators import get_calibrator

        calibrator = get_calibrator(method)
        # its floor for probabilities: an exact zero has no logarithm
        calibrator.fit(np.maximum(softmax(logits), 1e-30), labels)
        return lambda z: floored_log(calibrator.predict_proba(np.maximum(softmax(z), 1e-30)))

    return fit


def floored_log(p: np.ndarray) -> np.ndarray:
    """log p where a rival may return zero; without a floor its NLL would be infinite."""
    return log_softmax(np.log(np.maximum(np.asarray(p, dtype=np.float64), 1e-12)))


def table(group: str, networks: dict[str, Any], reference: str) -> str:
    """Means over networks, and paired differences to the reference, as markdown."""
    names = list(next(iter(networks.values())))
    means = {n: np.array([np.mean(v[n], axis=0) for v in networks.values()]) for n in names}
    paired = reference in names
    lines = [
        f"**{group} networks** ({len(networks)}: {', '.join(networks)})",
        "",
        "| method | " + " | ".join(SCORES) + " | fit CPU s | Δ NLL | Δ equal-mass ECE % |",
        "|---|" + "---|" * (len(SCORES) + 3),
    ]
    for name in sorted(names, key=lambda n: means[n][:, 0].mean()):
        value = means[name].mean(axis=0)
        cells = [f"{value[0]:.4f}", f"{value[1]:.4f}", *(f"{v:.2f}" for v in value[2:5])]
        for column in (0, 3):
            gap = means[name][:, column] - means[reference][:, column] if paired else None
            cells.append(interval(gap) if paired and name != reference else "")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", f"Δ: minus {reference}, mean and 95 % interval.", ""])


def interval(gaps: np.ndarray) -> str:
    mean = float(gaps.mean())
    if len(gaps) < 2:
        return f"{mean:+.4f}"
    half = float(scipy.stats.t.ppf(0.975, len(gaps) - 1) * scipy.stats.sem(gaps))
    return f"{mean:+.4f} ({mean - half:+.4f}, {mean + half:+.4f})"


if __name__ == "__main__":
    main()
