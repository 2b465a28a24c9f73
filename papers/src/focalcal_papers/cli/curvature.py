"""`focalcal curvature`: trace, eigenvalues and spectrum of a loss' Hessian at a trained network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from focalcal.cli import terminal
from focalcal.errors import InputError
from focalcal.files import check_suffix
from focalcal_papers.cli import Data, Device, Json, Split

if TYPE_CHECKING:
    from torch import nn

    from focalcal.curvature import CurvatureSummary


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: focalcal curvature RUN --trace --top 5")(curvature)


def curvature(
    run: Annotated[Path | None, typer.Argument(help="Folder written by `focalcal train`.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Instead of a run: a network by name, e.g. resnet20.")
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(help="Weights of that network (.pt, .th, .safetensors).")
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="Data set for that network, e.g. cifar10.")
    ] = None,
    data: Data = None,
    normalise: Annotated[
        str, typer.Option(help="Images of --dataset: 'own' or 'imagenet' mean and std.")
    ] = "own",
    loss: Annotated[str, typer.Option(help="Loss of the Hessian: ce, fl-3, ...")] = "ce",
    trace: Annotated[bool, typer.Option("--trace", help="Trace with its interval.")] = False,
    top: Annotated[
        int | None, typer.Option(help="This many largest eigenvalues, and the smallest.")
    ] = None,
    density: Annotated[bool, typer.Option("--density", help="Spectral density.")] = False,
    split: Split = "test",
    samples: Annotated[int, typer.Option(help="Number of samples; 0: all.")] = 1000,
    batch: Annotated[int, typer.Option(help="Batch size.")] = 250,
    rtol: Annotated[float, typer.Option(help="Relative standard error of the trace.")] = 0.05,
    max_probes: Annotated[int, typer.Option(help="Most products for the trace.")] = 300,
    figure: Annotated[
        Path | None, typer.Option(help="Draw the spectrum here (.png, .svg, .pdf).")
    ] = None,
    device: Device = "auto",
    json_output: Json = False,
) -> None:
    """Measure the curvature of a loss at a trained network.

    Without --trace, --top or --density: the trace and the largest eigenvalue.
    """
    if figure is not None:
        from focalcal_papers.figures.drawing import FORMATS

        check_suffix(figure, FORMATS)
    if run is not None and (model or weights or dataset):
        raise InputError("expected a run folder or --model, got both; give one")
    if batch < 1 or samples < 0:
        got = f"{batch} and {samples}"
        raise InputError(f"expected --batch >= 1 and --samples >= 0, got {got}")
    if split not in ("train", "calibration", "test"):
        raise InputError(f"expected --split train, calibration or test, got {split!r}")
    part = {"split": split, "data": data, "samples": samples, "device": device}
    wanted: Any = loss
    if run is not None:
        network, found, wanted = _from_run(run, loss, **part)
    elif model and dataset:
        network, found = _from_files(model, weights, dataset, normalise, **part)
    else:
        raise InputError("expected a run folder, or --model with --dataset; got neither")
    asked = {"trace": trace, "top": top or 0, "density": density or figure is not None}
    if not (trace or top or density):
        asked["trace"] = True
        asked["top"] = 1 if top is None else 0
    batches = [pair for x, y in found for pair in _cut(x, y, batch)]
    summary = _measured(network, wanted, batches, rtol=rtol, max_probes=max_probes, **asked)
    if figure is not None:
        _draw(summary, loss, figure)
    if json_output:
        terminal.print_json({"loss": loss, "split": split} | summary.record())
    else:
        _print(summary, loss, split, figure)


def _measured(network: nn.Module, loss: Any, batches: list, **options: Any) -> CurvatureSummary:
    from focalcal.curvature import HessianOperator, summarise_curvature

    with terminal.progress("curvature") as progress:
        operator = HessianOperator(network, loss, batches)
        resolved: Any = operator.loss
        if isinstance(loss, str) and resolved.state_dict():
            raise InputError(
                f"expected a loss with a fixed γ, or that of the run, got {loss!r}, whose γ is "
                "learnt or scheduled; give the folder of a run trained with it"
            )
        return summarise_curvature(operator, progress=progress, **options)


def _from_run(
    run: Path, loss: str, split: str, data: Path | None, samples: int, device: str
) -> tuple[nn.Module, list, Any]:
    """The run's network, samples and loss, with its settings and final γ if it is the named one."""
    from focalcal_papers.training import open_run

    session = open_run(run, data, device)
    found = [(b.inputs, b.targets) for b in session.source.evaluation(split, samples)]
    own, config = session.loss, session.config
    changed = own.state_dict() or config.loss_settings
    if loss != config.loss or not changed or "none" not in own.reductions:
        return session.model, found, loss
    own.reduction = "none"
    return session.model, found, own


def _from_files(
    model: str,
    weights: Path | None,
    dataset: str,
    normalisation: str,
    *,
    split: str,
    data: Path | None,
    samples: int,
    device: str,
) -> tuple[nn.Module, list]:
    import torch

    from focalcal_papers.data import IMAGENET_MEAN, IMAGENET_STD, load, normalise
    from focalcal_papers.models import load_weights, make_model, model_settings
    from focalcal_papers.training.distributed import choose_device

    if weights is None:
        raise InputError("expected --weights with --model, got none; give a trained network's")
    if normalisation not in ("own", "imagenet"):
        raise InputError(f"expected --normalise 'own' or 'imagenet', got {normalisation!r}")
    splits = load(dataset, data)
    shape = {"input_shape": splits.input_shape} if "input_shape" in model_settings(model) else {}
    place = choose_device(device)
    network = load_weights(make_model(model, splits.n_classes, **shape), weights).to(place)
    found = splits.parts()[split]
    if not isinstance(found.inputs, torch.Tensor):
        raise InputError(f"expected a data set of tensors, got {dataset!r}; pass a run folder")
    count = samples or len(found)
    x, y = found.inputs[:count], found.labels[:count]
    if x.dtype == torch.uint8:
        imagenet = (torch.tensor(IMAGENET_MEAN), torch.tensor(IMAGENET_STD))
        x = normalise(x, *((splits.mean, splits.std) if normalisation == "own" else imagenet))
    return network, [(x.to(place), y.to(place))]


def _cut(x: Any, y: Any, batch: int) -> list:
    """Batches of at most `batch` samples; collated trees are left unchanged."""
    return list(zip(x.split(batch), y.split(batch))) if hasattr(x, "split") else [(x, y)]


def _draw(summary: CurvatureSummary, loss: str, path: Path) -> None:
    from matplotlib.figure import Figure

    from focalcal.curvature.figures import plot_density
    from focalcal_papers.figures import save

    figure = Figure(figsize=(5, 3.5), layout="constrained")
    plot_density({loss: summary.density}, figure.subplots())
    save(figure, path)


def _note(products: int, converged: bool) -> str:
    return f"{products} products" + ("" if converged else "; not converged")


def _print(summary: CurvatureSummary, loss: str, split: str, figure: Path | None) -> None:
    from rich.table import Table

    table = Table(
        title=f"Hessian of {loss}: {summary.n_parameters:,} parameters, "
        f"{summary.n:g} {split} samples",
        title_justify="left",
    )
    for heading in ("quantity", "value", "uncertainty", "note"):
        table.add_column(heading, justify="right" if heading == "value" else "left")
    if summary.trace is not None:
        low, high = summary.trace.interval()
        note = _note(summary.trace.probes, summary.trace.converged)
        table.add_row("trace", f"{summary.trace.value:.5g}", f"95 % {low:.5g} to {high:.5g}", note)
    for name, found in (("λ", summary.top), ("smallest λ", summary.bottom)):
        if found is None:
            continue
        note = _note(found.products, found.converged)
        for i, (value, residual) in enumerate(zip(found.values, found.residuals), 1):
            label = f"{name}{i}" if name == "λ" else name
            table.add_row(label, f"{value:.5g}", f"within {residual:.1g}", note if i == 1 else "")
    if summary.density is not None:
        mean, error = summary.density.moment(1)
        table.add_row("mean eigenvalue", f"{mean:.5g}", f"± {error:.2g}", "from the density")
        nodes = summary.density.nodes
        table.add_row("spectrum", f"{nodes.min():.5g}", f"to {nodes.max():.5g}", "")
    terminal.out().print(table)
    if figure is not None:
        terminal.out().print(f"figure: {figure}")
