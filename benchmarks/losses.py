"""Forward + backward time of the focal loss against cross_entropy, in one run.

    python benchmarks/losses.py                 # whatever device there is
    python benchmarks/losses.py --sweep         # CUDA: also every tile of the fused kernels
    python benchmarks/losses.py --json out.json # also as JSON with provenance

A plain call is `loss(logits, target).backward()` in a loop of such calls that is waited for once,
at its end: wall time per call, whichever of the device and the host is the slower. CUDA graphs show
what the device alone needs, and the host's share is timed where the device has nothing to do. The
cases take turns, loop by loop; on CUDA the median loop counts, on the CPU, which has other users,
the fastest loop of one thread in processor time. The memory floor is the time the measured copy
bandwidth needs for the three passes that cannot be avoided (read, read, write).
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import platform
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from focalcal.losses import FocalLoss, focal_loss
from focalcal.provenance import provenance

SHAPES = {
    "cuda": [(65_536, 1_000), (16_384, 32_000)],
    "cpu": [(128, 10), (4_096, 10), (65_536, 10), (4_096, 100), (4_096, 1_000), (65_536, 1_000)],
}
GAMMA = 3.0


def eager_focal(logits: Tensor, target: Tensor, gamma: float = GAMMA) -> Tensor:
    """What most repositories write: softmax and log-softmax by hand."""
    log_p = F.log_softmax(logits, 1).gather(1, target[:, None])[:, 0]
    return ((1 - log_p.exp()) ** gamma * -log_p).mean()


def milliseconds(steps: dict[str, Callable[[], object]], device: str, repeats: int) -> dict:
    """Time per call of each step, from loops of calls that take turns."""
    if device == "cuda":
        wait, clock, typical = torch.cuda.synchronize, time.perf_counter, statistics.median
        loop_ms = 100  # what a training loop sees; the first calls, which nothing overlaps, fade
    else:
        wait, clock, typical, loop_ms = (lambda: None), time.process_time, min, 10
    calls = {}
    for name, step in steps.items():
        _loop(step, 3, wait, clock)
        once = _loop(step, 3, wait, clock)
        calls[name] = max(3, min(400, int(loop_ms / once)))
    times = {name: [] for name in steps}
    for _ in range(repeats):
        for name, step in steps.items():
            times[name].append(_loop(step, calls[name], wait, clock))
    return {name: typical(values) for name, values in times.items()}


def _loop(
    step: Callable[[], object], calls: int, wait: Callable[[], None], clock: Callable[[], float]
) -> float:
    """Milliseconds per call."""
    wait()
    start = clock()
    for _ in range(calls):
        step()
    wait()
    return (clock() - start) * 1e3 / calls


def training_step(loss: Callable[[Tensor, Tensor], Tensor], logits: Tensor, target: Tensor):
    def step() -> None:
        logits.grad = None
        loss(logits, target).backward()

    return step


def captured(step: Callable[[], object]) -> Callable[[], object]:
    """The step as a CUDA graph: what the device does, without Python's share of the time."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def keep_freed_memory() -> None:
    """Have glibc reuse what is freed, for every case alike.

    It may otherwise give it back and fetch it again page by page, which can double the time of a
    step: of which case depends on what was allocated before.
    """
    if platform.libc_ver()[0] == "glibc":
        m_trim_threshold, m_mmap_threshold = -1, -3
        libc = ctypes.CDLL(None)
        libc.mallopt(m_mmap_threshold, 2**30)
        libc.mallopt(m_trim_threshold, 2**31 - 1)


def copy_bandwidth(device: str) -> float:
    """Bytes per second of a device-to-device copy of 1 GiB, counting read and write."""
    source = torch.empty(2**28 if device == "cuda" else 2**25, device=device)
    target = torch.empty_like(source)
    seconds = milliseconds({"copy": lambda: target.copy_(source)}, device, 20)["copy"] / 1e3
    return 2 * source.numel() * source.element_size() / seconds


def host_costs(device: str, repeats: int) -> dict:
    """Microseconds of host time per call, on a batch so small that the device keeps up."""
    torch.manual_seed(0)
    logits = torch.randn(32, 8, device=device, requires_grad=True)
    target = torch.randint(8, (32,), device=device)
    fixed = logits.detach()

    def focal(z: Tensor, y: Tensor) -> Tensor:
        return focal_loss(z, y, GAMMA)

    steps = {
        "logits.sum(), forward + backward": training_step(lambda z, y: z.sum(), logits, target),
        "cross_entropy, forward": partial(F.cross_entropy, logits, target),
        "cross_entropy, forward + backward": training_step(F.cross_entropy, logits, target),
        "focal_loss, forward without gradient": partial(focal, fixed, target),
        "focal_loss, forward": partial(focal, logits, target),
        "focal_loss, forward + backward": training_step(focal, logits, target),
        "FocalLoss, forward + backward": training_step(FocalLoss(GAMMA), logits, target),
    }
    if device == "cuda":
        from focalcal.losses import _triton

        grad = torch.ones((), device=device)
        settings = (fixed, target, _triton.Settings(GAMMA, reduction="mean"))
        _, scratch = _triton.launch_forward(*settings)
        steps |= {
            "allocate and launch, forward": partial(_triton.launch_forward, *settings),
            "allocate and launch, backward": partial(
                _triton.launch_backward, fixed, target, scratch, grad, settings[2]
            ),
            "an empty allocation": partial(torch.empty_like, fixed),
        }
    costs = {name: 1e3 * value for name, value in milliseconds(steps, device, repeats).items()}
    print("\nhost time per call at 32 × 8")
    for name, value in costs.items():
        print(f"  {name:<40}{value:8.1f} µs")
    return costs


def compare(n: int, n_classes: int, device: str, repeats: int, bandwidth: float) -> dict:
    torch.manual_seed(0)
    logits = torch.randn(n, n_classes, device=device, requires_grad=True)
    target = torch.randint(n_classes, (n,), device=device)
    gammas = torch.rand(n, device=device) * 5
    weight = torch.rand(n_classes, device=device)
    cases = {
        "cross_entropy": F.cross_entropy,
        "eager focal": eager_focal,
        "focal_loss": lambda z, y: focal_loss(z, y, GAMMA),
        "focal_loss, γ per sample": lambda z, y: focal_loss(z, y, gammas),
        "focal_loss, class weights": lambda z, y: focal_loss(z, y, GAMMA, weight=weight),
    }
    floor = 3 * logits.numel() * logits.element_size() / bandwidth * 1e3
    steps = {name: training_step(loss, logits, target) for name, loss in cases.items()}
    times = milliseconds(steps, device, repeats)
    result = {"shape": [n, n_classes], "floor_ms": floor, "ms": times}
    device_times = {}
    if device == "cuda":
        graphs = {name: captured(step) for name, step in steps.items()}
        device_times = result["device_ms"] = milliseconds(graphs, device, repeats)
    print(f"\n{n:,} × {n_classes:,} float32, forward + backward; memory floor {floor:.3f} ms")
    for name, value in times.items():
        ratio = value / times["cross_entropy"]
        graph = f"   as a CUDA graph {device_times[name]:.3f} ms" if device_times else ""
        print(f"  {name:<28}{value:9.3f} ms   {ratio:5.2f} × cross_entropy{graph}")
    if device == "cuda":
        with torch.no_grad():
            ours = focal_loss(logits, target, GAMMA).item()
            theirs = eager_focal(logits.detach(), target).item()
        print(f"  value {ours:.7f}, eager {theirs:.7f}")
        logits.grad = None
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        focal_loss(logits, target, GAMMA)
        kept = torch.cuda.max_memory_allocated() - before
        print(f"  forward's own memory {kept / n:.0f} bytes per row")
        result["forward_bytes_per_row"] = kept / n
    return result


def sweep(n: int, n_classes: int, repeats: int) -> None:
    """Time each kernel alone over tiles; the best ten of each."""
    from focalcal.losses import _triton
    from focalcal.losses._kernels import Tile

    logits = torch.randn(n, n_classes, device="cuda")
    target = torch.randint(n_classes, (n,), device="cuda")
    settings = (logits, target, _triton.Settings(GAMMA))
    _, saved = _triton.launch_forward(*settings)
    grad = torch.ones((), device="cuda")
    whole = 1 << (n_classes - 1).bit_length()
    blocks = [whole] if whole <= 4096 else [2048, 4096, 8192, 16384, whole]
    kernels = {
        "forward": lambda tile: _triton.launch_forward(*settings, tile),
        "backward": lambda tile: _triton.launch_backward(
            logits, target, saved, grad, settings[2], tile
        ),
    }
    print(f"\ntiles at {n:,} × {n_classes:,}")
    for name, launch in kernels.items():
        launches = {}
        for rows, block, warps in itertools.product((1, 2, 4), blocks, (1, 2, 4, 8, 16, 32)):
            per_thread = rows * block / (32 * warps)
            if not 4 <= per_thread <= 128:
                continue
            tile = Tile(rows, block, warps)
            launches[tile] = partial(launch, tile)
        times = milliseconds(launches, "cuda", repeats)
        default = getattr(_triton, f"{name}_tile")(n_classes, 4)
        for tile in sorted(times, key=times.get)[:10]:
            mark = "  <- default" if tile == default else ""
            print(f"  {name:<9}{tile}  {times[tile]:.4f} ms{mark}")
        if default in times:
            print(f"  {name:<9}default {default}  {times[default]:.4f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--sweep", action="store_true", help="time every tile of the kernels")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.device == "cpu":
        torch.set_num_threads(1)  # more threads measure the other users of the machine
        keep_freed_memory()

    bandwidth = copy_bandwidth(options.device)
    print(f"{options.device}, torch {torch.__version__}, copy {bandwidth / 1e12:.3f} TB/s")
    host = host_costs(options.device, options.repeats)
    results = []
    for n, n_classes in SHAPES[options.device]:
        results.append(compare(n, n_classes, options.device, options.repeats, bandwidth))
        if options.sweep and options.device == "cuda":
            sweep(n, n_classes, max(10, options.repeats // 3))
    if options.json:
        report = {
            "provenance": provenance(),
            "copy_bytes_per_s": bandwidth,
            "host_us": host,
            "results": results,
        }
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
