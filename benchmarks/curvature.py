"""What a Hutchinson probe costs, in gradients: ResNet-18 on 32×32 images.

Every way of computing a Hessian-vector product is timed next to the gradient of the same batch:
  plain      double backward through torch's own formulas, one probe
  forward    forward-over-reverse, torch.func.jvp of torch.func.grad, one probe
  fast       focalcal's second-order convolution and batch norm, one probe
  fast xM    the same, M probes sharing the recorded gradient, per probe
  operator   HessianOperator @ (n, M) with float64 sums, per probe: what the library does
  pyhessian  its dataloader-free product, where the package is importable
On the CPU times are process times, which other programs on the machine hardly change, and the peak
is that of the whole process so far.

usage: python benchmarks/curvature.py --device cuda            # H200: batch 512
       python benchmarks/curvature.py --device cpu --batch 16  # a few minutes on 2 cores
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.func import functional_call, grad, jvp

from focalcal.curvature import HessianOperator
from focalcal.curvature._second_order import cheap_second_order
from focalcal.provenance import provenance
from focalcal_papers.models import make_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, default=None, help="512 on a GPU, 16 on a CPU")
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--probes", type=int, default=8, help="probes that share one gradient")
    parser.add_argument("--repeat", type=int, default=None, help="10 on a GPU, 3 on a CPU")
    parser.add_argument("--only", nargs="*", help="ways to time (all by default)")
    parser.add_argument("--out", type=Path, help="write the numbers as JSON")
    options = parser.parse_args()
    cuda = torch.device(options.device).type == "cuda"
    options.batch = options.batch or (512 if cuda else 16)
    options.repeat = options.repeat or (10 if cuda else 3)

    rows = []
    settings = [(False, True), (True, True), (False, False)] if cuda else [(False, False)]
    for channels_last, tf32 in settings:
        torch.backends.cudnn.allow_tf32 = tf32
        torch.backends.cudnn.benchmark = True
        label = f"{'NHWC' if channels_last else 'NCHW'}, {'TF32' if tf32 else 'float32'}"
        rows += time_all(options, cuda, channels_last, label)
    for row in rows:
        print(
            f"{row['setting']:14}  {row['way']:10}  {row['ms']:9.2f} ms"
            f"  {row['gradients']:6.2f} gradients  error {row['error']:.1e}"
            f"  peak {row['peak_gb']:6.2f} GB"
        )
    if options.out:
        shown = {k: str(v) for k, v in vars(options).items()}
        record = {"options": shown, "rows": rows, "provenance": provenance()}
        options.out.write_text(json.dumps(record, indent=2) + "\n")


def time_all(
    options: argparse.Namespace, cuda: bool, channels_last: bool, label: str
) -> list[dict]:
    torch.manual_seed(0)
    model = make_model(options.model, 10).to(options.device).eval()
    x = torch.randn(options.batch, 3, 32, 32, device=options.device)
    y = torch.randint(0, 10, (options.batch,), device=options.device)
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
        x = x.to(memory_format=torch.channels_last)
    thetas = list(model.parameters())
    m = options.probes
    probes = [[torch.randint_like(p, 2) * 2 - 1 for p in thetas] for _ in range(m)]
    flat = torch.stack([torch.cat([v.reshape(-1) for v in probe]) for probe in probes], 1)
    frozen = {name: p.detach() for name, p in model.named_parameters()}
    operator = HessianOperator(model, F.cross_entropy, [(x, y)], check=False)

    def loss() -> torch.Tensor:
        return F.cross_entropy(model(x), y)

    def products(value: torch.Tensor, count: int) -> list[torch.Tensor]:
        gradients = torch.autograd.grad(value, thetas, create_graph=True)
        for i in range(count):
            out = torch.autograd.grad(gradients, thetas, probes[i], retain_graph=i + 1 < count)
        return list(out)

    def fast(count: int) -> list[torch.Tensor]:
        with cheap_second_order():
            value = loss()
        return products(value, count)

    def forward() -> list[torch.Tensor]:
        def value(values: dict) -> torch.Tensor:
            return F.cross_entropy(functional_call(model, values, (x,)), y)

        return list(jvp(grad(value), (frozen,), (dict(zip(frozen, probes[0])),))[1].values())

    ways: dict[str, tuple[Callable, int]] = {
        "gradient": (lambda: list(torch.autograd.grad(loss(), thetas)), 1),
        "fast": (lambda: fast(1), 1),
        f"fast x{m}": (lambda: fast(m), m),
        "operator": (lambda: operator @ flat, m),
        "plain": (lambda: products(loss(), 1), 1),
        "forward": (forward, 1),
    }
    try:
        from pyhessian import hessian
        from pyhessian.utils import hessian_vector_product

        def rival() -> list[torch.Tensor]:
            # The package records a gradient once per object and reuses it for every probe.
            computer = hessian(model, F.cross_entropy, data=(x, y), cuda=cuda)
            out = hessian_vector_product(computer.gradsH, computer.params, probes[0])
            model.zero_grad(set_to_none=True)
            return list(out)

        ways["pyhessian"] = (rival, 1)
    except ImportError:
        print("pyhessian is not installed here: no numbers of it")

    rows, exact = [], None
    for name, (function, count) in ways.items():
        if options.only and name != "gradient" and name not in options.only:
            continue
        seconds, result, peak = measure(function, options.repeat, cuda)
        if name == "gradient":
            base = seconds
        elif name == "fast":
            exact = torch.cat([r.reshape(-1) for r in result])
        rows.append(
            {
                "setting": label,
                "way": name,
                "ms": 1e3 * seconds / count,
                "gradients": seconds / count / base,
                "error": difference(result, exact) if count == 1 else float("nan"),
                "peak_gb": peak,
                "batch": len(y),
            }
        )
    return rows


def difference(result: list[torch.Tensor], exact: torch.Tensor | None) -> float:
    """Relative distance to the fast product; of the gradient there is none."""
    if exact is None:
        return float("nan")
    return float((torch.cat([r.reshape(-1) for r in result]) - exact).norm() / exact.norm())


def measure(function: Callable, repeat: int, cuda: bool) -> tuple[float, object, float]:
    """Median seconds of a call after a warm-up, its result, and the peak memory in GB."""
    function()
    if not cuda:
        times = []
        for _ in range(repeat):
            started = time.process_time()
            result = function()
            times.append(time.process_time() - started)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        return statistics.median(times), result, peak
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(repeat):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        result = function()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(times), result, torch.cuda.max_memory_allocated() / 2**30


if __name__ == "__main__":
    main()
