"""How often the 95 % intervals of `evaluate` hold the value of infinitely many samples.

Labels are drawn from the softmax of random logits; the predictions are that softmax (calibrated), a
sharper one (over-confident), the softmax with the logits of one class in ten moved (a few bad
classes), or the sharper softmax of an accurate classifier. True values are those of a large sample
in which the probability of a label takes the place of the label, so that they have no label noise.

    python benchmarks/interval_coverage.py --runs 250 --json coverage.json
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path

import numpy as np

from focalcal import bins as _bins
from focalcal.bins import Bins
from focalcal.metrics import METRICS, CalibrationStats, Sample
from focalcal.metrics.summary import evaluate_sample
from focalcal.ordered import in_order

KINDS = ("calibrated", "over-confident", "a few bad classes", "accurate, over-confident")
SIZES = ((2, 200), (2, 2000), (10, 200), (10, 2000), (100, 500), (100, 2000))
NEEDS = ("sums", "top", "order", "classes", "even")
EDGES = _bins.equal_width_edges(15)
FEWEST = 30
"""Data sets with an interval below which its coverage is not reported."""


@dataclasses.dataclass(frozen=True)
class Population:
    kind: str
    n_classes: int

    def draw(self, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Probabilities of the labels and predicted ones, (n, K) each."""
        z = (8.0 if "accurate" in self.kind else 2.0) * rng.normal(size=(n, self.n_classes))
        shift = np.zeros(self.n_classes)
        if self.kind == "a few bad classes":
            shift[: max(1, self.n_classes // 10)] = 1.0
        return softmax(z), softmax((1.5 if "over" in self.kind else 1.0) * z + shift)


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def labels(q: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.minimum((q.cumsum(axis=1) < rng.random((len(q), 1))).sum(axis=1), q.shape[1] - 1)


def truth(population: Population, rng: np.random.Generator, n: int = 300_000) -> dict[str, float]:
    """Every metric of a large sample, with the label's probability in place of the label."""
    q, p = population.draw(n, rng)
    rows, top = np.arange(n), p.argmax(axis=1)
    c, own = p[rows, top], q[rows, top]
    log_p = np.log(np.maximum(p, 1e-300))
    # The mean of a value over the labels: its part where the top class is the label, and the rest.
    parts = {"weight": np.ones_like(p), "nll": -log_p, "true_class_probability": p}
    sums = {}
    for name, value in parts.items():
        right = own * value[rows, top]
        sums[name] = np.array([((q * value).sum(axis=1) - right).sum(), right.sum()])
    sums["zero"] = np.zeros(2)
    groups = np.stack([1 - own, own])
    sums["entropy"] = groups @ -(p * log_p).sum(axis=1)
    sums["high"] = groups @ (c >= 0.99)
    sums["brier"] = np.array([((p - q) ** 2 + q * (1 - q)).sum(), 0.0])
    columns = list(zip(p.T, q.T))
    wide = [_column(a, b, EDGES) for a, b in columns]
    even = [_column(a, b, _bins.equal_mass_edges(a, 15)) for a, b in columns]
    stats = CalibrationStats(
        q.shape[1],
        n=n,
        sums=sums,
        top=Bins(EDGES, *_column(c, own, EDGES)),
        classes=Bins(EDGES, *np.stack(wide, axis=1)),
        even=Bins(EDGES, *np.stack(even, axis=1)),
        exact=lambda: in_order(c, own),
    )
    values = {name: float(m.of(stats)) for name, m in METRICS.items()}
    values["debiased_ece"] = float(np.sqrt(_bins.squared_gap(stats.equal_mass)))
    return values


def _column(p: np.ndarray, q: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Sums of a bin's weight, probability and hits, (3, M)."""
    at, m = _bins.bin_index(p, edges), len(edges) - 1
    return np.stack([np.bincount(at, weights=w, minlength=m) for w in (np.ones_like(p), p, q)])


def coverage(
    population: Population, n: int, true: dict[str, float], runs: int, resamples: int
) -> dict[str, float]:
    """Share of data sets whose interval holds the true value, for every metric with one."""
    rng = np.random.default_rng([n, population.n_classes, KINDS.index(population.kind)])
    held = {name: [] for name, m in METRICS.items() if m.interval is not None}
    for run in range(runs):
        q, p = population.draw(n, rng)
        sample = Sample.read(labels(q, rng), p, NEEDS)
        found = evaluate_sample(sample, resamples, 0.95, seed=run)
        for name, inside in held.items():
            e = found[name]
            if np.isfinite(e.low):
                inside.append(e.low - 1e-9 <= true[name] <= e.high + 1e-9)
    return {name: float(np.mean(h)) for name, h in held.items() if len(h) >= FEWEST}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=250)
    parser.add_argument("--resamples", type=int, default=200)
    parser.add_argument("--classes", type=int, nargs="*", default=[2, 10, 100])
    parser.add_argument("--kinds", nargs="*", default=KINDS)
    parser.add_argument("--json")
    options = parser.parse_args()
    table = {}
    for kind in options.kinds:
        for k in options.classes:
            population = Population(kind, k)
            true = truth(population, np.random.default_rng([k, KINDS.index(kind)]))
            for n in (n for size, n in SIZES if size == k):
                title = f"{kind}, K = {k}, N = {n}"
                found = coverage(population, n, true, options.runs, options.resamples)
                table[title] = found
                worst = sorted(found.items(), key=lambda pair: pair[1])
                print(title, "; ".join(f"{name} {value:.3f}" for name, value in worst), flush=True)
    if options.json:
        record = {"runs": options.runs, "resamples": options.resamples, "coverage": table}
        Path(options.json).write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
