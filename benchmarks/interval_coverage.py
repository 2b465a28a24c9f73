"""How often the 95 % intervals of `evaluate` hold the value of infinitely many samples.

Labels are drawn from a softmax; the predictions are that softmax (calibrated), a sharper one
(over-confident), or the softmax with the logits of one class in ten moved (a few bad classes). The
true value of a class-wise error comes from the label probabilities themselves, without label noise.

    python benchmarks/interval_coverage.py --runs 400 --json coverage.json
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path

import numpy as np

from focalcal import bins as _bins
from focalcal import metrics
from focalcal.metrics import METRICS, Sample
from focalcal.metrics.summary import evaluate_sample

KINDS = ("calibrated", "over-confident", "a few bad classes")
SIZES = ((2, 500), (10, 2000), (100, 2000))
NEEDS = ("sums", "top", "order", "classes", "even")


@dataclasses.dataclass(frozen=True)
class Setting:
    kind: str
    n_classes: int
    n: int

    def logits(self, rng: np.random.Generator, n: int) -> np.ndarray:
        return 2.0 * rng.normal(size=(n, self.n_classes))

    def predicted(self, z: np.ndarray) -> np.ndarray:
        if self.kind == "over-confident":
            return softmax(1.5 * z)
        shift = np.zeros(self.n_classes)
        if self.kind == "a few bad classes":
            shift[: max(1, self.n_classes // 10)] = 1.0
        return softmax(z + shift)


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def draw(q: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.minimum((q.cumsum(axis=1) < rng.random((len(q), 1))).sum(axis=1), q.shape[1] - 1)


def truth(setting: Setting, rng: np.random.Generator) -> dict[str, float]:
    """Values of a large sample, with the label's probability in place of the label."""
    n = 400_000 if setting.n_classes <= 10 else 60_000
    z = setting.logits(rng, n)
    q, p = softmax(z), setting.predicted(z)
    found = metrics.evaluate(draw(q, rng), p, resamples=2)
    values = {name: e.value for name, e in found.metrics.items()}
    even, wide, squares = [], [], 0.0
    for k in range(setting.n_classes):
        for edges, gaps in ((_bins.equal_mass_edges(p[:, k], 15), even), (EDGES, wide)):
            at = _bins.bin_index(p[:, k], edges)
            gap = np.bincount(at, weights=p[:, k] - q[:, k], minlength=len(edges) - 1) / n
            share = np.bincount(at, minlength=len(edges) - 1) / n
            gaps.append(np.abs(gap).sum())
            if edges is EDGES:
                squares += _bins.ratio_or_zero(gap**2, share).sum()
    brier = float(((p - q) ** 2 + q * (1 - q)).sum(axis=1).mean())
    values |= {"classwise_ece": np.mean(wide), "ace": np.mean(even), "brier": brier}
    values |= {"brier_calibration": squares, "brier_refinement": brier - squares}
    top = p.argmax(axis=1)
    own, c = q[np.arange(n), top], p.max(axis=1)
    b = _bins.bin_index(c, EDGES)
    gap, share = np.bincount(b, c - own, 15) / n, np.bincount(b, minlength=15) / n
    values |= {"ece": np.abs(gap).sum(), "accuracy": own.mean(), "error": 1 - own.mean()}
    values["rms_calibration_error"] = float(np.sqrt(_bins.ratio_or_zero(gap**2, share).sum()))
    m = _bins.bin_index(c, _bins.equal_mass_edges(c, 15))
    gap, share = np.bincount(m, c - own, 15) / n, np.bincount(m, minlength=15) / n
    values["adaptive_ece"] = np.abs(gap).sum()
    values["debiased_ece"] = float(np.sqrt(_bins.ratio_or_zero(gap**2, share).sum()))
    order = np.argsort(c)
    values["ks_error"] = np.abs(np.cumsum((c - own)[order])).max() / n
    values["confidence_gap"] = float((c - own).mean())
    if setting.kind == "calibrated":
        values["smooth_ece"] = 0.0
    return values


EDGES = _bins.equal_width_edges(15)


def coverage(setting: Setting, runs: int, resamples: int, seed: int = 0) -> dict[str, float]:
    """Share of runs whose interval holds the true value, for every metric that prints one."""
    rng = np.random.default_rng([seed, setting.n_classes, KINDS.index(setting.kind)])
    true = truth(setting, rng)
    held = {name: [] for name, m in METRICS.items() if m.interval is not None}
    for run in range(runs):
        z = setting.logits(rng, setting.n)
        y = draw(softmax(z), rng)
        sample = Sample.read(y, setting.predicted(z), NEEDS)
        found = evaluate_sample(sample, resamples, 0.95, seed=run)
        for name in held:
            e = found[name]
            if np.isfinite(e.low):
                # the true value itself is known to about 1e-4 of itself only
                slack = 1e-3 * abs(true[name]) + 1e-9
                held[name].append(e.low - slack <= true[name] <= e.high + slack)
    return {name: float(np.mean(h)) for name, h in held.items() if h}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--resamples", type=int, default=200)
    parser.add_argument("--json")
    options = parser.parse_args()
    table = {}
    for k, n in SIZES:
        for kind in KINDS:
            title = f"{kind}, K = {k}, N = {n}"
            table[title] = coverage(Setting(kind, k, n), options.runs, options.resamples)
            worst = sorted(table[title].items(), key=lambda pair: pair[1])
            print(title, "; ".join(f"{name} {value:.3f}" for name, value in worst), flush=True)
    if options.json:
        record = {"runs": options.runs, "resamples": options.resamples, "coverage": table}
        Path(options.json).write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
