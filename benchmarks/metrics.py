"""Time the metrics against torchmetrics and netcal, the bootstrap against a loop, streaming memory.

    python benchmarks/metrics.py                 # everything, a few minutes
    python benchmarks/metrics.py --quick         # smaller streaming run
    python benchmarks/metrics.py --json out.json
    python benchmarks/metrics.py --fallback      # only compiled loops beside their NumPy references

Rivals run where they can be imported. Every time is the best of several rounds; the rounds of all
programs are interleaved, so a busy machine slows all of them alike.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from focalcal import kernels, metrics
from focalcal.provenance import provenance


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="stream 1e7 samples, not 1e8")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--json", metavar="FILE", help="also write the numbers as JSON")
    parser.add_argument("--fallback", action="store_true", help="time what runs without numba")
    args = parser.parse_args()
    if args.fallback:
        fallback(args.rounds)
        return
    # Streaming goes first: peak memory is a property of the process, and only grows.
    results: dict[str, Any] = {"streaming": streaming(10**7 if args.quick else 10**8)}
    for dtype in (np.float32, np.float64):
        results[f"ece_{np.dtype(dtype).name}"] = ece(dtype, args.rounds)
    results["bootstrap"] = bootstrap(args.rounds)
    results["evaluate_seconds"] = evaluate()
    if args.json:
        from focalcal.files import write_text

        write_text(args.json, json.dumps({"provenance": provenance(), **results}, indent=2))


def predictions(n: int, dtype: Any, k: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Over-confident predictions whose labels come from a flatter softmax of the same logits."""
    rng = np.random.default_rng(0)
    z = 2 * rng.normal(size=(n, k))
    y = np.argmax(z + rng.gumbel(size=z.shape), axis=1)
    p = np.exp(1.5 * z)
    p /= p.sum(axis=1, keepdims=True)
    return y, p.astype(dtype)


def best_of(programs: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Seconds of each program: best of interleaved rounds.

    Every timed call follows one of the same program, so that none is met by the threads that
    another left spinning, or by its data in the cache.
    """
    best = dict.fromkeys(programs, float("inf"))
    for _ in range(rounds):
        for name, program in programs.items():
            program()
            start = time.perf_counter()
            program()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def ece(dtype: Any, rounds: int) -> dict[str, float]:
    y, p = predictions(1_000_000, dtype)
    programs: dict[str, Callable[[], Any]] = {"focalcal": lambda: metrics.ece(y, p)}
    programs |= torchmetrics_ece(y, p) | netcal_ece(y, p)
    seconds = best_of(programs, rounds)
    print(f"\nECE, 1,000,000 × 10 {np.dtype(dtype).name}, 15 bins, input checked by focalcal:")
    for name, t in seconds.items():
        value = float(programs[name]())
        ratio = f"   {t / seconds['focalcal']:5.1f} ×" if name != "focalcal" else ""
        print(f"  {name:<14}{1e3 * t:9.1f} ms   ece {value:.7f}{ratio}")
    rivals = [t for name, t in seconds.items() if name != "focalcal"]
    if rivals:
        ratio = min(rivals) / seconds["focalcal"]
        print(f"  {ratio:.1f} × as fast as the fastest of the others (goal 5 ×)")
    return seconds


def fallback(rounds: int) -> None:
    """Compiled loops and their NumPy references in turn, 1,000,000 × 10."""
    least = kernels.LEAST
    for dtype in (np.float32, np.float64):
        y, p = predictions(1_000_000, dtype)
        z = np.log(p)
        programs: dict[str, Callable[[], Any]] = {
            "ECE": lambda y=y, p=p: metrics.ece(y, p),
            "class-wise ECE": lambda y=y, p=p: metrics.classwise_ece(y, p),
            "statistics of logits": lambda y=y, z=z: metrics.CalibrationStats(10).update(
                y, logits=z
            ),
        }
        for name, program in programs.items():

            def way(start: int, program: Callable[[], Any] = program) -> Callable[[], Any]:
                def run() -> None:
                    kernels.LEAST = start
                    program()

                return run

            seconds = best_of({"compiled": way(least), "NumPy": way(1 << 60)}, rounds)
            times = ", ".join(f"{key} {1e3 * t:.1f} ms" for key, t in seconds.items())
            ratio = seconds["NumPy"] / seconds["compiled"]
            print(f"{np.dtype(dtype).name} {name}: {times}, {ratio:.1f} × (goal at most 4)")
    kernels.LEAST = least


def torchmetrics_ece(y: np.ndarray, p: np.ndarray) -> dict[str, Callable[[], Any]]:
    try:
        import torch
        from torchmetrics.functional.classification import multiclass_calibration_error
    except ImportError as e:
        print(f"torchmetrics left out: {e}")
        return {}
    preds, target = torch.from_numpy(p), torch.from_numpy(y)
    return {
        "torchmetrics": lambda: multiclass_calibration_error(
            preds, target, num_classes=p.shape[1], n_bins=15, validate_args=False
        )
    }


def netcal_ece(y: np.ndarray, p: np.ndarray) -> dict[str, Callable[[], Any]]:
    try:
        from netcal.metrics import ECE
    except ImportError as e:
        print(f"netcal left out: {e}")
        return {}
    return {"netcal": lambda: ECE(15).measure(p, y)}


def bootstrap(rounds: int) -> dict[str, float]:
    y, p = predictions(10_000, np.float64)
    resamples = 1000

    def loop() -> None:
        rng = np.random.default_rng(0)
        for _ in range(resamples):
            i = rng.integers(len(y), size=len(y))
            metrics.ece(y[i], p[i])

    seconds = best_of(
        {"focalcal": lambda: metrics.bootstrap(y, p, ["ece"], resamples=resamples), "loop": loop},
        min(rounds, 3),
    )
    ratio = seconds["loop"] / seconds["focalcal"]
    print("\n1,000 bootstrap resamples of ECE, N = 10,000:")
    print(f"  focalcal.metrics.bootstrap {1e3 * seconds['focalcal']:9.1f} ms")
    print(f"  loop calling the metric    {1e3 * seconds['loop']:9.1f} ms")
    print(f"  {ratio:.1f} × as fast (goal 5 ×)")
    return seconds


def evaluate() -> float:
    y, p = predictions(10_000, np.float64)
    start = time.perf_counter()
    e = metrics.evaluate(y, p)
    seconds = time.perf_counter() - start
    print(f"\nevaluate, 10,000 × 10: {len(e.metrics)} metrics with intervals from {e.resamples} ")
    print(f"  resamples and the test of calibration: {seconds:.2f} s")
    return seconds


def streaming(n: int) -> dict[str, float]:
    """`n` predictions of 10 classes through CalibrationStats in batches of 250,000."""
    batch = 250_000
    y, p = predictions(2 * batch, np.float32)
    stats = metrics.CalibrationStats(10)
    stats.update(y[:batch], p[:batch])
    before = _peak_mib()
    start = time.perf_counter()
    for i in range(n // batch - 1):
        rows = slice(batch, None) if i % 2 else slice(0, batch)
        stats.update(y[rows], p[rows])
    seconds = time.perf_counter() - start
    after = _peak_mib()
    result = stats.compute()
    state = sum(
        getattr(b, part).nbytes
        for b in stats.tables().values()
        for part in ("counts", "confidence_sums", "correct_sums")
    )
    print(f"Streaming {result.n:,} predictions of 10 classes, batches of {batch:,}:")
    print(f"  {seconds:.1f} s, {1e9 * seconds / n:.0f} ns per prediction")
    print(f"  peak memory of the process {after:.0f} MiB; after the first batch {before:.0f} MiB")
    print(f"  state {state / 1024:.0f} KiB, as JSON {len(stats.to_json()) / 1024:.0f} KiB")
    for name in ("ece", "adaptive_ece", "ks_error", "auroc_of_confidence", "smooth_ece"):
        m = result[name]
        print(f"  {name:<20}{m.value:.7f}  within ±{m.error_bound:.1e}")
    return {
        "n": result.n,
        "seconds": seconds,
        "peak_mib": after,
        "peak_after_first_batch_mib": before,
        "state_bytes": state,
    }


def _peak_mib() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20) if os.uname().sysname == "Darwin" else peak / 1024


if __name__ == "__main__":
    main()
