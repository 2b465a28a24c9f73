"""
Curvature of a published ResNet-20
==================================

Curvature of cross-entropy and focal losses at a published ResNet-20, on real CIFAR-10 images.

The network is fixed (trained with cross-entropy); only the loss whose Hessian is taken changes.

::

    python papers/examples/curvature_resnet20.py --weights resnet20-12fca82f.th --data CIFAR10
    On a GPU add: --device cuda --images 10000 --batch 1000 --max-probes 300 --density-probes 8
    --density-steps 50 --max-products 100
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

from focalcal.curvature import HessianOperator, figures, summarise_curvature
from focalcal.files import atomic_path, write_text
from focalcal.provenance import provenance
from focalcal_papers.data import IMAGENET_MEAN, IMAGENET_STD, load
from focalcal_papers.models import load_weights, make_model

GAMMAS = (0, 1, 2, 3, 4, 5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", required=True, type=Path)
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--max-probes", type=int, default=120)
    parser.add_argument("--max-products", type=int, default=60)
    parser.add_argument("--density-probes", type=int, default=2)
    parser.add_argument("--density-steps", type=int, default=25)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("papers/results/curvature"))
    options = parser.parse_args()

    model = load_weights(make_model("resnet20", 10), options.weights).to(options.device)
    test = load("cifar10", options.data, complete=False).test  # the training files may be short
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (IMAGENET_MEAN, IMAGENET_STD))
    x = ((test.inputs[: options.images].float() / 255 - mean) / std).to(options.device)
    y = test.labels[: options.images].to(options.device)
    # TF32 keeps ten bits: too few for the many eigenvalues near zero.
    torch.backends.cudnn.allow_tf32 = False
    batches = list(zip(x.split(options.batch), y.split(options.batch)))

    found, rows = {}, []
    for gamma in GAMMAS:
        started = time.perf_counter()
        operator = HessianOperator(model, f"fl-{gamma}" if gamma else "ce", batches)
        summary = summarise_curvature(
            operator,
            density=True,
            rtol=0.05,
            max_probes=options.max_probes,
            max_products=options.max_products,
            density_probes=options.density_probes,
            density_steps=options.density_steps,
        )
        found[gamma] = summary
        seconds = round(time.perf_counter() - started, 1)
        gradient_norm = float(operator.gradient().norm())
        row = {"gamma": gamma, "seconds": seconds, "gradient_norm": gradient_norm}
        rows.append(row | summary.record())
        print(
            f"γ={gamma}: trace {summary.trace.value:.4g} ± {summary.trace.standard_error:.2g}, "
            f"λ_max {summary.top.values[0]:.4g}, λ_min {summary.bottom.values[0]:.4g}, {seconds} s",
            flush=True,
        )
        save(found, rows, options)


def save(found: dict, rows: list[dict], options: argparse.Namespace) -> None:
    record = {
        "title": "Hessian of CE and focal losses at a published CIFAR-10 ResNet-20",
        "network": f"{options.weights.name}, trained with cross-entropy; eval mode, all parameters",
        "data": f"first {options.images} CIFAR-10 test images, ImageNet normalisation",
        "trace": "Hutch++; low and high are the 95 % interval",
        "losses": rows,
        "provenance": provenance(),
    }
    write_text(options.out / "resnet20_cifar10.json", json.dumps(record, ensure_ascii=False) + "\n")
    draw(found, options.out / "resnet20_cifar10.png")


def draw(found: dict, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.6), layout="constrained", dpi=90)
    left, middle, right = figure.subplots(1, 3)
    name = {gamma: f"γ = {gamma}" if gamma else "CE" for gamma in found}
    figures.plot_traces({gamma: s.trace for gamma, s in found.items()}, left)
    ends = {
        "largest": [s.top for s in found.values()],
        "smallest": [s.bottom for s in found.values()],
    }
    for label, eigenvalues in ends.items():
        middle.plot(list(found), [float(e.values[0]) for e in eigenvalues], "o-", label=label)
    middle.set(xlabel="γ of the measured loss", ylabel="eigenvalue")
    middle.legend(frameon=False)
    figures.plot_density({name[gamma]: s.density for gamma, s in found.items()}, right)
    figure.suptitle("ResNet-20 trained with cross-entropy, CIFAR-10 test images")
    with atomic_path(path) as temporary:
        figure.savefig(temporary)


if __name__ == "__main__":
    main()
