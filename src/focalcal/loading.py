"""From people's own files and frames to `Predictions`, with every other column kept."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from focalcal._labels import categorical
from focalcal.errors import FileFormatError, InputError, InputWarning
from focalcal.formats import Table, columns, read_table, roles, write_table
from focalcal.formats.binary import load_npy
from focalcal.formats.roles import Keys, Roles
from focalcal.formats.text import objects
from focalcal.predictions import Predictions, like_given


@dataclasses.dataclass(frozen=True)
class Loaded:
    """Predictions, the table they were read from, and which of its columns are what."""

    predictions: Predictions
    table: Table
    metadata: dict[str, Any]
    roles: Roles

    def describe(self) -> str:
        """What was taken for what, and what is only carried along."""
        text = self.roles.describe()
        names = self.predictions.class_names
        if names and len(names) <= 8:
            text += f"; classes {', '.join(names)}"
        rest = self.roles.rest(list(self.table))
        return f"{text}; carried along: {', '.join(rest)}" if rest else text

    @property
    def is_plain(self) -> bool:
        """Whether the columns have the names that need no explanation."""
        names = [*self.roles.values, *self.roles.labels]
        plain = all(name in ("logits", "probs", "labels") for name in names)
        return plain and not self.roles.rest(list(self.table))

    def save_calibrated(self, path: str | Path, probs: Any, provenance: dict[str, Any]) -> None:
        """Write the table with `probs` in the place of its logits or probabilities."""
        table: Table = {}
        probs = like_given(np.asarray(probs), self.predictions)
        for name, column in self.table.items():
            if name == self.roles.values[0]:
                table["probs"] = probs
            if name in self.roles.values:
                continue
            table[roles.not_overwritten(name)] = column
        given = self.predictions
        names = {"class_names": list(given.class_names)} if given.class_names else {}
        if names and roles.labels_by_name(self.metadata):
            names["labels"] = "names"
        metadata = {"task": given.task, **names, "provenance": given.provenance | provenance}
        write_table(path, table, metadata)


def load(
    path: str | Path,
    keys: Keys | None = None,
    *,
    labels_required: bool = True,
    task: str = "auto",
    layout: str | None = None,
) -> Loaded:
    """Read a file (see docs/files.md for the layouts) or a Hugging Face dataset on disk."""
    keys = keys or Keys()
    table, metadata = read_table(path, layout)
    if keys.labels and keys.labels.endswith(".npy"):
        table, keys = _with_labels_of(Path(keys.labels), Path(path), table, keys)
    return from_table(table, metadata, keys, str(path), labels_required=labels_required, task=task)


def from_table(
    table: Table,
    metadata: dict[str, Any],
    keys: Keys,
    where: str,
    *,
    labels_required: bool = True,
    task: str = "auto",
) -> Loaded:
    """Choose the columns of a table and check their values."""
    table, metadata = _without_class_names(dict(table), dict(metadata))
    required = labels_required or keys.labels is not None
    found = roles.find(list(table), keys, where, required)
    values = _matrix(table, found.values, where)
    # Arrays of another length are of other samples: an npz often holds several sets.
    used = {*found.values, *found.labels, found.ids}
    table = {k: column for k, column in table.items() if k in used or _rows(column) == len(values)}
    task = metadata.get("task", task) if task == "auto" else task
    labels, categories = None, None

    def unused(error: roles.MissingLabel) -> None:
        if labels_required:
            raise error
        warnings.warn(f"labels are not used: {error}", InputWarning, stacklevel=3)

    if found.labels:
        try:
            labels, categories = _labels(table, metadata, found.labels, where)
            task, labels = _task_of(task, labels)
        except roles.MissingLabel as error:
            unused(error)
    if metadata.get("labels") == "either":
        metadata["labels"] = _meaning(labels, metadata["class_names"])
    if task == "multilabel" and values.ndim == 1:  # one label, read from one column
        values = values[:, None]
        if labels is not None and labels.ndim == 1:
            labels = _matrix(table, found.labels, where)[:, None].astype(np.int64)
    try:
        if found.class_names and len(found.class_names) == 1:
            both = roles.two_names(found.class_names[0], labels)
            found = dataclasses.replace(found, class_names=both)
        names, order = _class_names(found, metadata, categories, keys, values, where)
        if order is not None:
            values = values[:, order]
            if labels is not None and task == "multilabel":
                labels = labels[:, order]
        if labels is not None:
            of = f"{where}: column {found.labels[0]!r}"
            try:
                labels = roles.class_labels(labels, names, roles.labels_by_name(metadata), of)
            except roles.MissingLabel as error:
                unused(error)
                labels = None
        predictions = Predictions(
            **{"logits" if found.are_logits else "probs": values},
            labels=labels,
            task=task,
            class_names=names,
            provenance=metadata.get("provenance", {}),
            ids=None if found.ids is None else columns.plain(table[found.ids]),
            extra={name: _extra(table[name]) for name in found.rest(list(table))},
        )
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    return Loaded(predictions, table, metadata, found)


def from_frame(frame: Any, keys: Keys, *, labels_required: bool = True, task: str = "auto") -> Any:
    """`Predictions` of a pandas or polars frame with named columns."""
    table: Table = {}
    categories: dict[str, list[str]] = {}
    for key in frame.columns:
        column, name = frame[key], str(key)
        _, names = categorical(column)
        if names is not None:
            categories[name] = list(names)
        values = column.to_numpy()
        table[name] = values if values.dtype.kind in "biufM" else objects(column.to_list())
    where = type(frame).__module__.split(".")[0] + " frame"
    metadata = {"categories": categories}
    found = from_table(table, metadata, keys, where, labels_required=labels_required, task=task)
    return found.predictions


def _with_labels_of(labels: Path, file: Path, table: Table, keys: Keys) -> tuple[Table, Keys]:
    """The table with the labels of a `.npy` file of their own."""
    path = next((p for p in (labels, file.parent / labels) if p.is_file()), None)
    if path is None:
        raise FileFormatError(f"no file at {labels}; check the path of the labels")
    return table | {"labels": load_npy(path)}, dataclasses.replace(keys, labels="labels")


def _without_class_names(table: Table, metadata: dict[str, Any]) -> tuple[Table, dict[str, Any]]:
    """Class names that were saved beside the arrays of an npz go to the metadata."""
    for name in ("class_names", "classes"):
        lengths = {_rows(column) for key, column in table.items() if key != name}
        if name in table and _rows(table[name]) not in lengths | {0}:
            texts = columns.plain(table.pop(name)).tolist()
            if "class_names" not in metadata:  # labels beside such an array may be values of it
                metadata |= {"class_names": [str(text) for text in texts], "labels": "either"}
    return table, metadata


def _meaning(labels: np.ndarray | None, names: Sequence[str]) -> str:
    """ "names" if the labels are all among the class names, otherwise "indices"."""
    numbers = {float(name) for name in names if roles.is_number(name)}
    if labels is None or labels.dtype == object or set(labels.ravel().tolist()) <= numbers:
        return "names"
    return "indices"


def _rows(column: Any) -> int:
    return len(column) if np.ndim(column) or not isinstance(column, np.ndarray) else 0


def _matrix(table: Table, names: Sequence[str], where: str) -> np.ndarray:
    """One column as it is, several side by side."""
    arrays = [columns.numbers(table[name], f"{where}: column {name!r}") for name in names]
    if len(arrays) == 1:
        return arrays[0]
    for name, array in zip(names, arrays):
        if array.ndim != 1:
            raise FileFormatError(f"{where}: expected numbers in {name}, got lists")
    return np.stack(arrays, axis=1)


def _labels(
    table: Table, metadata: dict[str, Any], names: Sequence[str], where: str
) -> tuple[np.ndarray, list[str] | None]:
    if len(names) > 1:
        matrix = _matrix(table, names, where)
        whole = (matrix % 1 == 0).all()
        return (matrix.astype(np.int64) if whole else matrix), None
    found, categories = columns.labels(table[names[0]], f"{where}: column {names[0]!r}")
    return found, metadata.get("categories", {}).get(names[0], categories)


def _task_of(task: str, labels: np.ndarray) -> tuple[str, np.ndarray]:
    """Labels (N, M) are one-hot if every row has one, otherwise several labels per sample."""
    if task != "auto" or labels.ndim != 2 or 0 in labels.shape or labels.dtype.kind not in "biuf":
        return task, labels
    if labels.shape[1] == 1:
        return task, labels[:, 0]
    if ((labels == 0) | (labels == 1)).all() and (labels.sum(axis=1) == 1).all():
        return task, labels.argmax(axis=1)
    return "multilabel", labels


def _class_names(
    found: Roles,
    metadata: dict[str, Any],
    categories: list[str] | None,
    keys: Keys,
    values: np.ndarray,
    where: str,
) -> tuple[tuple[str, ...] | None, list[int] | None]:
    """The class names, and the order in which to take the columns if the caller's is another."""
    own = found.class_names or metadata.get("class_names")
    width = max(values.shape[1], 2) if values.ndim == 2 else 2
    if own is None and categories and len(categories) == width:
        own = categories
    if own == found.class_names and (keys.logits or keys.probs):
        return keys.classes or own, None  # a list of columns is in the caller's order already
    if values.ndim == 1:
        if own and keys.classes and not roles.is_number(own[1]) and own[1] != keys.classes[1]:
            raise FileFormatError(
                f"{where}: expected the column of class {keys.classes[1]!r}, got that of {own[1]!r}"
            )
        return keys.classes or own, None
    return roles.class_order(tuple(map(str, own)) if own else None, keys.classes, where)


def _extra(column: Any) -> np.ndarray:
    """A carried column: numbers where all of its texts are, otherwise as it is."""
    values = columns.plain(column)
    if values.dtype != object or not all(isinstance(v, str) for v in values):
        return values
    try:
        return columns.numbers(values, "")
    except FileFormatError:
        return values
