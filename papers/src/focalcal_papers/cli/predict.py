"""`focalcal predict`: a trained run's logits and labels on one split."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from focalcal.cli.terminal import note, out, print_json
from focalcal.files import check_suffix
from focalcal.formats import SUFFIXES
from focalcal_papers.cli import Data, Device, Json, Split


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: focalcal predict RUN -o test.npz")(predict)


def predict(
    run: Annotated[Path, typer.Argument(help="Folder written by `focalcal train`.")],
    output: Annotated[Path, typer.Option("-o", "--output", help=".npz, .parquet or .csv.")],
    split: Split = "test",
    data: Data = None,
    device: Device = "auto",
    json_output: Json = False,
) -> None:
    """Write a trained run's predictions to a file."""
    from focalcal_papers.training import RunFolder
    from focalcal_papers.training import predict as predict_run

    check_suffix(output, SUFFIXES)
    predictions = predict_run(run, split, data_dir=data, device=device)
    predictions.save(output)
    run_folder, epoch = RunFolder.open(run), predictions.provenance["epoch"]
    if (state := run_folder.status["state"]) != "finished":
        done = f"{epoch} of {run_folder.config.epochs} epochs"
        note(f"the run is {state}: these are its weights after {done}")
    if json_output:
        record = {"output": str(output), "split": split, "n": predictions.n}
        print_json(record | {"n_classes": predictions.n_classes})
    else:
        text = f"{predictions.n} predictions of {predictions.n_classes} classes: {output}"
        out().print(text, soft_wrap=True, markup=False)
