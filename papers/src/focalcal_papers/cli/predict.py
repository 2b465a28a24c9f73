"""`focalcal predict`: a trained run's logits and labels on one split."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from focalcal.errors import MissingExtraError
from focalcal.files import check_suffix
from focalcal.formats import FORMATS


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: focalcal predict RUN -o test.npz")(predict)


def predict(
    run: Annotated[Path, typer.Argument(help="Folder written by `focalcal train`.")],
    output: Annotated[Path, typer.Option("-o", "--output", help=".npz, .parquet or .csv.")],
    split: Annotated[str, typer.Option(help="train, calibration or test.")] = "test",
    data: Annotated[
        Path | None, typer.Option(help="Folder of the data set, if it has moved.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 ...")] = "auto",
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write a trained run's predictions to a file."""
    try:
        from focalcal_papers.training import predict as predict_run
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "torch", "torch", "predicting") from error
    check_suffix(output, [ending for ending, f in FORMATS.items() if f.write])
    predictions = predict_run(run, split, data_dir=data, device=device)
    predictions.save(output)
    from focalcal.cli.terminal import out, print_json

    if json_output:
        record = {"output": str(output), "split": split, "n": predictions.n}
        print_json(record | {"n_classes": predictions.n_classes})
    else:
        text = f"{predictions.n} predictions of {predictions.n_classes} classes: {output}"
        out().print(text, soft_wrap=True, markup=False)
