"""Time calibrators: temperature scaling against scikit-learn, the focal grid against a plain loop.

    python benchmarks/calibrators.py                   # CPU: both goals in one run
    python benchmarks/calibrators.py --device cuda     # the focal grid at 25,000 × 1,000 on a GPU
    python benchmarks/calibrators.py --logits FILE.npz # how grid, line and gradient search differ

Every time is the best of interleaved rounds, so a busy machine slows all programs alike.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from focalcal.calibrators import FocalTemperatureScaling, TemperatureScaling
from focalcal.calibrators.focal import GAMMAS, TEMPERATURES
from focalcal.errors import FitWarning
from focalcal.metrics import adaptive_ece, ece
from focalcal.predictions import Predictions
from focalcal.provenance import provenance


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--logits", metavar="FILE", help="compare the searches on these instead")
    parser.add_argument("--logits-key")
    parser.add_argument("--probs-key")
    parser.add_argument("--labels-key")
    parser.add_argument("--json", metavar="FILE", help="also write the numbers as JSON")
    args = parser.parse_args()
    warnings.simplefilter("ignore", FitWarning)
    if args.logits:
        results: Any = searches(args)
    elif args.device == "cpu":
        results = {"temperature": temperature(args.rounds), "grid": grid(5_000, 100, args)}
    else:
        results = {"grid": grid(25_000, 1_000, args)}
    if args.json:
        from focalcal.files import write_text

        write_text(args.json, json.dumps({"provenance": provenance(), **results}, indent=2))


def data(n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Float32 logits of an over-confident classifier: labels come from the same logits at T = 2."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(n, k)).astype(np.float32)
    z[np.arange(n), rng.integers(0, k, n)] += rng.gamma(2.0, 3.0, n).astype(np.float32)
    y = np.argmax(z + rng.gumbel(size=z.shape), axis=1)
    return 2 * z, y


def best_of(
    programs: dict[str, Callable[[], Any]], rounds: int
) -> tuple[dict[str, float], dict[str, Any]]:
    """Seconds of each program, best of interleaved rounds, and what each returned."""
    best, results = dict.fromkeys(programs, float("inf")), {}
    for _ in range(rounds):
        for name, program in programs.items():
            start = time.perf_counter()
            results[name] = program()
            best[name] = min(best[name], time.perf_counter() - start)
    return best, results


def temperature(rounds: int) -> dict[str, Any]:
    """Temperature scaling by NLL at 25,000 × 1,000 float32 against scikit-learn."""
    from sklearn.calibration import _TemperatureScaling

    z, y = data(25_000, 1_000)
    seconds, found = best_of(
        {
            "focalcal": lambda: TemperatureScaling().fit(z, y).temperature_,
            "scikit-learn": lambda: 1 / float(_TemperatureScaling().fit(z, y).beta_),
        },
        rounds,
    )
    ratio = seconds["scikit-learn"] / seconds["focalcal"]
    print("temperature scaling by NLL, 25,000 × 1,000 float32")
    for name in seconds:
        print(f"  {name:14s} {seconds[name]:8.3f} s   T = {found[name]:.6f}")
    print(f"  {ratio:.1f} times as fast as scikit-learn (goal 12)")
    return {"seconds": seconds, "temperature": found, "ratio": ratio}


def grid(n: int, k: int, args: argparse.Namespace) -> dict[str, Any]:
    """The paper's 4,500-point grid by equal-mass ECE against the same search as a plain loop."""
    z, y = data(n, k)
    logits = torch.as_tensor(z, device=args.device)
    labels = torch.as_tensor(y, device=args.device)

    def ours() -> tuple[float, float]:
        c = FocalTemperatureScaling("adaptive_ece", "grid").fit(logits, labels)
        return c.gamma_, c.temperature_

    ours()  # starts CUDA and the BLAS
    seconds, found = best_of({"focalcal": ours}, args.rounds)
    loop, values = best_of({"plain loop": lambda: plain_loop(logits, labels)}, 1)
    seconds |= loop
    gamma, t, _ = values["plain loop"]
    ratio = seconds["plain loop"] / seconds["focalcal"]
    print(f"focal grid, 9 γ × 500 T by equal-mass ECE, {n:,} × {k:,} on {args.device}")
    print(f"  focalcal       {seconds['focalcal']:8.3f} s   γ, T = {found['focalcal']}")
    print(f"  plain loop     {seconds['plain loop']:8.3f} s   γ, T = {(gamma, t)}")
    print(f"  {ratio:.1f} times as fast" + (" (goal 10)" if args.device == "cpu" else ""))
    return {"seconds": seconds, "found": {**found, "plain loop": (gamma, t)}, "ratio": ratio}


def plain_loop(logits: torch.Tensor, labels: torch.Tensor) -> tuple[float, float, float]:
    """The search as one would write it in PyTorch: softmax, Ψ, sort, 15 bins, at every point."""
    n = len(labels)
    edges = [round(n * i / 15) for i in range(16)]
    best = (0.0, 1.0, float("inf"))
    for gamma in GAMMAS:
        for t in TEMPERATURES:
            log_q = torch.log_softmax(logits / t, dim=1)
            q = log_q.exp()
            rest = (1 - q).clamp_min(1e-12)
            h = q / (rest**gamma * (1 - gamma * q * log_q / rest))
            p = h / h.sum(dim=1, keepdim=True)
            confidence, prediction = p.max(dim=1)
            confidence, order = confidence.sort()
            gap = confidence - (prediction == labels)[order].to(confidence.dtype)
            total = torch.cat([gap.new_zeros(1), gap.cumsum(0)])[edges]
            error = float(total.diff().abs().sum()) / n
            if error < best[2]:
                best = (gamma, t, error)
    return best


def searches(args: argparse.Namespace) -> dict[str, Any]:
    """Fit on one half of a file by each search and objective, measure on the other half."""
    predictions = Predictions.load(
        args.logits,
        logits_key=args.logits_key,
        probs_key=args.probs_key,
        labels_key=args.labels_key,
    )
    fit, test = predictions.split(0.5, seed=0)
    z, held_out = fit.as_logits(1e-12), test.as_logits(1e-12)
    rows = {}
    print(f"{args.logits}: {fit.n} fitted, {test.n} held out")
    print(f"{'objective':14s}{'search':10s}{'points':>8s}{'gamma':>9s}{'T':>9s}{'fitted':>10s}"
          f"{'NLL':>9s}{'ECE %':>8s}{'eq-mass':>9s}{'seconds':>9s}")  # fmt: skip
    for objective in ("nll", "adaptive_ece", "ece"):
        for search in ("grid", "line", "gradient")[: 3 if objective == "nll" else 2]:
            calibrator = FocalTemperatureScaling(objective, search)
            start = time.perf_counter()
            calibrator.fit(z, fit.labels)
            seconds = time.perf_counter() - start
            p = calibrator.predict_proba(held_out)
            nll = -float(np.mean(np.log(p[np.arange(test.n), test.labels])))
            row = {
                "points": calibrator.diagnostics_.iterations,
                "gamma": calibrator.gamma_,
                "temperature": calibrator.temperature_,
                "fitted": calibrator.diagnostics_.after,
                "nll": nll,
                "ece": 100 * ece(test.labels, p),
                "adaptive_ece": 100 * adaptive_ece(test.labels, p),
                "seconds": seconds,
            }
            rows[f"{objective}/{search}"] = row
            print(f"{objective:14s}{search:10s}{row['points']:8d}{row['gamma']:9.3f}"
                  f"{row['temperature']:9.3f}{row['fitted']:10.5f}{row['nll']:9.4f}"
                  f"{row['ece']:8.2f}{row['adaptive_ece']:9.2f}{seconds:9.2f}")  # fmt: skip
    return rows


if __name__ == "__main__":
    main()
