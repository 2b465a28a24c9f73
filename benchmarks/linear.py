"""Time, memory and error of the focal loss behind a large output layer, in one run.

    python benchmarks/linear.py                  # CUDA: the two shapes of large language models
    python benchmarks/linear.py --device cpu     # a small shape, plain PyTorch
    python benchmarks/linear.py --json out.json  # also as JSON with provenance

A step is the forward and backward pass of linear layer and loss in bfloat16. The yardstick is the
three matrix products alone, whose logits are not even looked at. Each case runs alone for half a
second and then for another half that counts, because matrix products heat the chip, which then
clocks lower; two such rounds, and the median step of both. Memory is the peak above the inputs,
gradients included, in 10⁹ bytes. Errors are ‖got − exact‖ / ‖exact‖ against the same step in
float64 of the same bfloat16 inputs, whose tokens are certain, likely and unlikely; those of one
eager step stand beside them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from focalcal.losses import focal_loss, linear_focal_loss
from focalcal.losses.focal import STEPS_53
from focalcal.provenance import provenance

SHAPES = {"cuda": [(8_192, 2_304, 256_000), (8_192, 4_096, 128_256)], "cpu": [(512, 64, 4_000)]}
GAMMA = 3.0
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def inputs(n: int, d: int, v: int, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states that point at their label's row of the weight with strengths from 0 to 40."""
    torch.manual_seed(0)
    kind = torch.bfloat16 if device == "cuda" else torch.float32
    weight = torch.randn(v, d, device=device) / d**0.5
    target = torch.randint(v, (n,), device=device)
    strength = torch.linspace(0, 40, n, device=device)[:, None]
    x = torch.randn(n, d, device=device) + strength * weight[target]
    return x.to(kind).requires_grad_(), weight.to(kind).requires_grad_(), target


def eager(function: Callable[[Tensor, Tensor], Tensor]) -> Loss:
    return lambda x, weight, target: function(F.linear(x, weight).float(), target)


def plain_focal(logits: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """The loss as most repositories write it."""
    ce = F.cross_entropy(logits, target, reduction="none")
    values = (1 - torch.exp(-ce)) ** GAMMA * ce
    return values.mean() if reduction == "mean" else values.sum()


def checkpointed(x: Tensor, weight: Tensor, target: Tensor, chunks: int = 16) -> Tensor:
    """A sum over chunks of rows whose logits are computed again in the backward pass."""

    def part(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
        return plain_focal(F.linear(x, weight).float(), target, "sum")

    parts = zip(x.chunk(chunks), target.chunk(chunks))
    return sum(checkpoint(part, a, weight, b, use_reentrant=False) for a, b in parts) / len(x)


def cases(n: int, device: str, compiled: bool) -> dict[str, Loss]:
    gammas = torch.rand(n, device=device) * 5
    ours = partial(partial, linear_focal_loss)
    result: dict[str, Loss] = {
        "eager cross-entropy": eager(F.cross_entropy),
        "eager focal": eager(plain_focal),
        "checkpointed focal": checkpointed,
    }
    if compiled:
        result["compiled focal"] = torch.compile(eager(plain_focal))
    if hasattr(F, "linear_cross_entropy"):  # torch 2.13
        result["torch's linear_cross_entropy"] = F.linear_cross_entropy
    return result | {
        "linear_focal_loss": ours(gamma=GAMMA),
        "  cross-entropy (γ = 0)": ours(gamma=0.0),
        "  γ per token": ours(gamma=gammas),
        "  FLA-53": ours(gamma=STEPS_53),
        "  label smoothing": ours(gamma=GAMMA, label_smoothing=0.1),
        "  sum in float32": ours(gamma=GAMMA, accumulate=torch.float32),
        "  reduction none": lambda *a: linear_focal_loss(*a, GAMMA, reduction="none").mean(),
    }


def products(x: Tensor, weight: Tensor) -> Callable[[], None]:
    """The three products that any such step needs, of random numbers."""
    x, weight = x.detach(), weight.detach()

    def step() -> None:
        logits = x @ weight.T
        logits @ weight
        logits.T @ x

    return step


def training_step(loss: Loss, x: Tensor, weight: Tensor, target: Tensor) -> Callable[[], None]:
    def step() -> None:
        x.grad = weight.grad = None
        loss(x, weight, target).backward()

    return step


def milliseconds(steps: dict[str, Callable[[], None]], device: str, seconds: float) -> dict:
    """Median time of each step at the clock rate that it settles at."""
    wait = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(2):
        for name, step in steps.items():
            wait()
            begin = start = time.perf_counter()
            counted: list[float] = []
            while start < begin + seconds or not counted:
                step()
                wait()
                end = time.perf_counter()
                if start >= begin + seconds / 2:
                    counted.append(1e3 * (end - start))
                start = end
            times[name] += counted
    return {name: statistics.median(values) for name, values in times.items()}


def peak(step: Callable[[], None], x: Tensor, weight: Tensor) -> float:
    """10⁹ bytes above the inputs."""
    x.grad = weight.grad = None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 1e9


def exact(x: Tensor, weight: Tensor, target: Tensor, gamma: float) -> list[Tensor]:
    """Value and gradients in float64, by chunks."""
    x, weight = x.detach(), weight.detach().double()
    value, dx, dw = 0.0, torch.empty_like(x, dtype=torch.float64), torch.zeros_like(weight)
    for part in torch.arange(len(x)).split(512):
        rows = x[part[0] : part[-1] + 1].double()
        logits = (rows @ weight.T).requires_grad_()
        labels = target[part[0] : part[-1] + 1]
        loss = focal_loss(logits, labels, gamma, reduction="sum") / len(x)
        (gradient,) = torch.autograd.grad(loss, logits)
        value += loss.detach()
        dx[part[0] : part[-1] + 1] = gradient @ weight
        dw.addmm_(gradient.T, rows)
    return [value, dx, dw]


def errors(x: Tensor, weight: Tensor, target: Tensor) -> dict[str, list[float]]:
    """Relative errors of value, x's gradient and weight's gradient."""
    result = {}
    for gamma in (GAMMA, 0.5):
        wanted = exact(x, weight, target, gamma)
        ours = partial(linear_focal_loss, gamma=gamma)
        for name, loss in {
            "linear_focal_loss": ours,
            "  sum in float32": partial(ours, accumulate=torch.float32),
            "eager": lambda x, w, y, gamma=gamma: focal_loss(F.linear(x, w), y, gamma),
        }.items():
            x.grad = weight.grad = None
            value = loss(x, weight, target)
            value.backward()
            pairs = zip([value.detach(), x.grad, weight.grad], wanted)
            result[f"{name}, γ = {gamma:g}"] = [
                float(torch.linalg.norm(a.double() - b) / torch.linalg.norm(b)) for a, b in pairs
            ]
            del value, pairs
    return result


def compare(shape: tuple[int, int, int], options: argparse.Namespace) -> dict:
    n, d, v = shape
    device = options.device
    x, weight, target = inputs(n, d, v, device)
    steps = {"three products": products(x, weight)}
    for name, loss in cases(n, device, not options.no_compile).items():
        steps[name] = training_step(loss, x, weight, target)
    memory = {}
    for name, step in steps.items():
        step()  # compiles, and takes the workspaces of the matrix library
        memory[name] = peak(step, x, weight) if device == "cuda" else float("nan")
        torch.cuda.empty_cache()
    times = milliseconds(steps, device, options.seconds)
    floor = times["three products"]
    print(f"\n{n:,} × {d:,} × {v:,}, {x.dtype}, forward + backward", flush=True)
    for name, value in times.items():
        print(f"  {name:<30}{value:9.2f} ms  {value / floor:6.3f} ×  {memory[name]:7.3f} GB")
    x.grad = weight.grad = None
    found = errors(x, weight, target)
    print("  relative errors: value, gradient of x, gradient of the weight")
    for name, values in found.items():
        print(f"    {name:<34}" + "".join(f"{value:10.2e}" for value in values), flush=True)
    return {"shape": shape, "ms": times, "gigabytes": memory, "errors": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=1.0, help="per case and round")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(f"{options.device}, torch {torch.__version__}")
    results = [compare(shape, options) for shape in SHAPES[options.device]]
    if options.json:
        report = {"provenance": provenance(), "results": results}
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
