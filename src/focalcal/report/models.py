"""The models of a report: from files, from folders, and one per label of a multi-label task."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from focalcal.errors import InputError
from focalcal.formats import SUFFIXES
from focalcal.predictions import Predictions

MOST_LABELS = 20
"""The most labels of a multi-label task on one page."""


@dataclasses.dataclass(frozen=True)
class Model:
    """A model to report on: its validation and test predictions and the files they came from."""

    name: str
    val: Predictions
    test: Predictions
    files: tuple[Path, Path] | None = None


def binary_models(model: Model) -> list[Model]:
    """The model itself, or one binary model per label of a multi-label task."""
    if model.val.task != model.test.task:
        raise InputError(
            f"{model.name}: expected one task, got {model.val.task} in the validation "
            f"and {model.test.task} in the test set"
        )
    if model.val.n_classes != model.test.n_classes:
        raise InputError(
            f"{model.name}: expected validation and test predictions over the same classes, got "
            f"{model.val.n_classes} and {model.test.n_classes}; give two files of one model"
        )
    if model.val.task != "multilabel":
        return [model]
    width = model.val.n_classes
    if width > MOST_LABELS:
        raise InputError(
            f"{model.name}: expected at most {MOST_LABELS} labels on one page, got {width}; "
            "choose some, as in --logits a,b,c --labels a,b,c"
        )
    names = model.val.class_names or tuple(map(str, range(width)))
    return [
        Model(f"{model.name}: {names[j]}", _label(model.val, j), _label(model.test, j), model.files)
        for j in range(width)
    ]


def _label(part: Predictions, j: int) -> Predictions:
    """Label j of multi-label predictions as a binary problem."""
    given = {name: getattr(part, name) for name in ("logits", "probs", "labels")}
    values = {name: None if x is None else x[:, j] for name, x in given.items()}
    return dataclasses.replace(part, **values, task="auto", class_names=("no", "yes"))


def digest(file: Path) -> str | None:
    """SHA-256 of a file; None for a folder or a pattern."""
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else None


def load_model(
    name: str,
    val: str | Path,
    test: str | Path,
    keys: Mapping[str, Any] | None = None,
    read: Callable[..., Predictions] = Predictions.load,
) -> Model:
    """A model from its two prediction files; `keys` go to `read`."""
    keys = keys or {}
    first = read(val, **keys)
    second = read(test, **{**keys, "classes": first.class_names})
    return Model(name, first, second, (Path(val), Path(test)))


def load_folder(name: str, folder: str | Path, keys: Mapping[str, Any] | None = None) -> Model:
    """A model from a folder with val.npz (or calibration.npz) and test.npz."""
    return load_model(name, *files_in(name, folder), keys)


def files_in(name: str, folder: str | Path) -> tuple[Path, Path]:
    """The validation and test predictions of a folder: val.* or calibration.*, and test.*.

    In a run folder of `focalcal train` they are in its subfolder predictions/.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{name}: expected a folder with val.npz and test.npz, got {folder}")
    for place in (folder, folder / "predictions"):
        found = {
            role: next((p for end in SUFFIXES if (p := place / f"{role}{end}").is_file()), None)
            for role in ("val", "calibration", "test")
        }
        val = found["val"] or found["calibration"]
        if val and found["test"]:
            return val, found["test"]
    listed = ", ".join(sorted(p.name for p in folder.iterdir())[:8]) or "nothing"
    raise InputError(
        f"{name}: expected val.npz (or calibration.npz) and test.npz in {folder}, got {listed}"
    )
