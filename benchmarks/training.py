"""Milliseconds per training step on a GPU: eager, CUDA graph, CUDA graph of compiled kernels.

    python benchmarks/training.py                     # ResNet-18 and ResNet-50, all variants
    python benchmarks/training.py --models resnet18 --variants graph
    python benchmarks/training.py --side-by-side 3    # so many processes on one GPU (use MPS)

Batch 128, 32×32 images, bf16 autocast, summed loss clipped at 2, augmentation included. Data are
synthetic: a step's time does not depend on the images. Without a GPU it times a tiny model, to
show that the script runs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from focalcal.provenance import provenance
from focalcal_papers.data import load
from focalcal_papers.models import make_model
from focalcal_papers.training import TrainConfig, train
from focalcal_papers.training.batches import make_batches
from focalcal_papers.training.distributed import Processes, choose_device
from focalcal_papers.training.session import build_loss
from focalcal_papers.training.step import GraphedStep, Step

VARIANTS = ("eager", "graph", "graph+compile")
GOALS = {"resnet18": 3.2, "resnet50": 9.0}
LOSS = "flsd-53"


def make_step(config, splits, device):
    torch.manual_seed(config.seed)
    source = make_batches(splits, config, device)
    model = make_model(config.model, splits.n_classes).to(device)
    model = model.to(memory_format=torch.channels_last)
    step = Step(config, model, build_loss(config, model).to(device), source, device, Processes())
    source.start_epoch(0)
    step.start_epoch()
    return step


def synchronize(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def time_variant(config, splits, device, variant, steps):
    config = config.replace(compile="compile" in variant)
    step = make_step(config, splits, device)
    run = GraphedStep(step) if variant != "eager" else step
    begin = time.perf_counter()
    for _ in range(10):
        run(config.batch_size)
    synchronize(device)
    start_up = time.perf_counter() - begin
    per_epoch = splits.train.labels.shape[0] // config.batch_size
    blocks = []
    for _ in range(3):
        synchronize(device)
        begin = time.perf_counter()
        for i in range(steps):
            if i % per_epoch == 0:
                step.start_epoch()
            run(config.batch_size)
        synchronize(device)
        blocks.append(1000 * (time.perf_counter() - begin) / steps)
    memory = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else None
    return {
        "model": config.model,
        "variant": variant,
        "ms_per_step": round(min(blocks), 3),
        "ms_blocks": [round(b, 3) for b in blocks],
        "start_up_s": round(start_up, 1),
        "memory_gib": memory and round(memory, 2),
        "goal_ms": GOALS.get(config.model),
    }


def graph_equals_eager(config, splits, device, steps=6):
    """The loss after each step of both ways, in float32, from the same start."""
    config = config.replace(precision="float32", lr=0.01, compile=False)
    curves = []
    for graphed in (False, True):
        step = make_step(config, splits, device)
        run = GraphedStep(step) if graphed else step
        totals = []
        for _ in range(steps):
            run(config.batch_size)
            totals.append(float(step.loss_sum))
        curves.append(totals)
    eager, graph = torch.tensor(curves)
    difference = float(((eager - graph) / eager).abs().max())
    return {"steps": steps, "eager": curves[0], "graph": curves[1], "relative": difference}


def end_to_end(config, splits):
    """Seconds per epoch through `train` itself: data order, steps, traces and checkpoints."""
    with tempfile.TemporaryDirectory() as folder:
        config = config.replace(epochs=4, trace_every=0, checkpoint_every=4)
        result = train(config, None, Path(folder) / "run", splits=splits)
        rows = [
            json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()
        ]
    seconds = rows[-1]["seconds"] - rows[0]["seconds"]
    per_epoch = seconds / (len(rows) - 1)
    return {
        "model": config.model,
        "images": len(splits.train),
        "s_per_epoch": round(per_epoch, 3),
        "ms_per_step": round(1000 * per_epoch / (rows[0]["step"]), 3),
        "minutes_for_350_epochs": round(350 * per_epoch / 60, 2),
    }


def side_by_side(count, arguments):
    command = [sys.executable, __file__, "--variants", "graph", "--steps", "400", "--worker"]
    command += ["--models", *arguments.models[:1]]
    workers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    outputs = [worker.communicate()[0] for worker in workers]
    times = [json.loads(out.splitlines()[-1])["ms_per_step"] for out in outputs]
    together = 1 / sum(1 / t for t in times)
    return {"processes": count, "ms_per_step": times, "ms_per_step_together": round(together, 3)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["resnet18", "resnet50"])
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=VARIANTS)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--side-by-side", type=int, default=0)
    parser.add_argument("--worker", action="store_true", help="print one measurement only")
    parser.add_argument("--out", type=Path, help="write the results as JSON")
    arguments = parser.parse_args()

    device = choose_device()
    cuda = device.type == "cuda"
    if not cuda:
        arguments.models, arguments.variants, arguments.steps = ["resnet20"], ["eager"], 2
    n = 45_000 if cuda else 256
    torch.backends.cudnn.benchmark = True
    splits = load("synthetic_images", n_train=n + 1000, calibration=1000, n_test=1000)
    base = TrainConfig(
        dataset="synthetic_images",
        model=arguments.models[0],
        loss=LOSS,
        batch_size=128 if cuda else 16,
        precision="bf16" if cuda else "float32",
        eval_batch_size=1000 if cuda else 100,
    )
    if arguments.worker:
        variant = arguments.variants[0]
        print(json.dumps(time_variant(base, splits, device, variant, arguments.steps)))
        return
    record = {"provenance": provenance(), "steps": []}
    if arguments.side_by_side:
        record["side_by_side"] = side_by_side(arguments.side_by_side, arguments)
        print(record["side_by_side"], flush=True)
        arguments.models = []
    for model in arguments.models:
        config = base.replace(model=model)
        for variant in arguments.variants:
            record["steps"].append(time_variant(config, splits, device, variant, arguments.steps))
            print(record["steps"][-1], flush=True)
            if cuda:
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
    if arguments.models and cuda:
        record["graph_equals_eager"] = graph_equals_eager(base, splits, device)
        print(record["graph_equals_eager"], flush=True)
        record["end_to_end"] = end_to_end(base, splits)
        print(record["end_to_end"], flush=True)
    if arguments.out:
        arguments.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
