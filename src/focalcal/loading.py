"""Files and frames as `Predictions`; all other columns are kept."""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from focalcal._arrays import to_numpy
from focalcal._labels import categorical, looks_like_probabilities
from focalcal.errors import FileFormatError, InputError, InputWarning, NoRowsError
from focalcal.formats import (
    TEXT,
    Table,
    classes,
    columns,
    ending,
    read_table,
    roles,
    write_table,
)
from focalcal.formats.binary import load_npy
from focalcal.formats.roles import Keys, Roles
from focalcal.formats.text import objects, table_of
from focalcal.predictions import Predictions, like_given


@dataclasses.dataclass(frozen=True)
class Loaded:
    """Predictions, the table they were read from, and the roles of its columns."""

    predictions: Predictions
    table: Table
    metadata: dict[str, Any]
    roles: Roles

    def describe(self) -> str:
        """Which columns were used for what, and which are only carried along."""
        found, names = self.roles, self.predictions.class_names
        kind = "logits" if found.are_logits else "probabilities"
        text = f"{kind} from {roles.listed(found.values)}"
        text += f", labels from {roles.listed(found.labels)}" if found.labels else ""
        text += f", ids from {found.ids}" if found.ids else ""
        called = "labels" if self.predictions.task == "multilabel" else "classes"
        text += f"; {called} {', '.join(names)}" if names and len(names) <= 8 else ""
        rest = [name or "''" for name in found.rest(self.table)]
        return f"{text}; carried along: {', '.join(rest)}" if rest else text

    @property
    def is_plain(self) -> bool:
        """Whether the column names need no explanation."""
        names = {*self.roles.values, *self.roles.labels}
        return names <= {"logits", "probs", "labels"} and not self.roles.rest(self.table)

    def save_calibrated(self, path: str | Path, probs: Any, provenance: dict[str, Any]) -> None:
        """Write the table with `probs` in place of its logits or probabilities."""
        given, table = self.predictions, {}
        kept = [name for name in self.table if name not in self.roles.values]
        roles.distinct([roles.not_overwritten(name) for name in kept], str(path))
        for name, column in self.table.items():
            if name == self.roles.values[0]:
                table["probs"] = like_given(np.asarray(probs), given)
            if name not in self.roles.values:
                table[roles.not_overwritten(name)] = column
        by_name = classes.labels_by_name(self.metadata)
        named = not (by_name or given.one_column) and ending(Path(path)) in TEXT
        if named and classes.by_value(given.class_names or ()) and len(self.roles.labels) == 1:
            # Text files lack the stored names, without which numbers beside numbers are classes.
            names = np.array(given.class_names, dtype=object)
            table[roles.not_overwritten(self.roles.labels[0])] = names[to_numpy(given.labels)]
        metadata = classes.metadata_of(given.task, given.class_names, by_name)
        write_table(path, table, metadata | {"provenance": given.provenance | provenance})


_CODE = re.compile(r"[-+]?0[0-9]|\s*\[|.*_")
_THOUSANDS = re.compile(r"[-+]?[1-9][0-9]{0,2}(,[0-9]{3})+")
_WHOLE = re.compile(r"-?[0-9]+", re.ASCII)


def load(path: str | Path, keys: Keys | None = None, layout: str | None = None) -> Loaded:
    """Read a file (see docs/files.md for the layouts) or a Hugging Face dataset on disk."""
    keys = keys or Keys()
    table, metadata = read_table(path, layout)
    if isinstance(keys.labels, str) and keys.labels.endswith(".npy"):
        labels = Path(keys.labels)
        beside = [p for p in (labels, Path(path).parent / labels) if p.is_file()]
        if not beside:
            raise FileFormatError(f"no file at {labels}; check the path of the labels")
        table["labels"] = load_npy(beside[0])
        keys = dataclasses.replace(keys, labels="labels")
    return from_table(table, metadata, keys, str(path))


def from_frame(frame: Any, keys: Keys) -> Predictions:
    """The predictions in a pandas or polars frame with named columns."""
    if not (hasattr(frame, "to_numpy") and hasattr(frame, "columns")):
        raise InputError(
            f"expected a pandas or polars frame, got {type(frame).__name__}; convert it, as with "
            "to_pandas() or collect(), or give its arrays to Predictions"
        )
    where = type(frame).__module__.split(".")[0] + " frame"
    roles.distinct(list(map(str, frame.columns)), where)
    table: Table = {}
    categories: dict[str, list[str]] = {}
    for key in frame.columns:
        column, name = frame[key], str(key)
        _, names = categorical(column)
        if names is not None:
            categories[name] = list(names)
        values = column.to_numpy()
        if values.dtype.kind in "biufM" and values.ndim == 1:
            table[name] = values
        else:  # pandas' NA has no truth value
            given = [None if type(x).__name__ == "NAType" else x for x in column.to_list()]
            inner = any(isinstance(x, dict) for x in given)
            table |= table_of([{name: x} for x in given]) if inner else {name: objects(given)}
    return from_table(table, {"categories": categories}, keys, where).predictions


def from_table(table: Table, metadata: dict[str, Any], keys: Keys, where: str) -> Loaded:
    """Choose the columns of a table and check their values."""
    table, metadata = _without_class_names(dict(table), dict(metadata))
    if keys.rows is not None:
        table = {
            k: c[keys.rows] if isinstance(c, np.ndarray) else c.filter(keys.rows)
            for k, c in table.items()
            if _rows(c) == len(keys.rows)
        }
    found = roles.find(list(table), keys, where, metadata.get("class_names"))
    first = table[found.values[0]]
    if getattr(first, "ndim", 1) and not len(first):
        raise NoRowsError(f"{where} has no rows; write predictions to it first")
    table |= named_labels(table, metadata, found, keys, where)
    return read(matrix(table, found.values, where), table, metadata, found, keys, where)


def read(
    values: np.ndarray,
    table: Table,
    metadata: dict[str, Any],
    found: Roles,
    keys: Keys,
    where: str,
    *,
    quiet: bool = False,
) -> Loaded:
    """Predictions of `values`, the logits or probabilities, and the other columns of a table.

    If labels are not required, a missing one means that none are used; `quiet` omits the warnings
    of that and of classes in another order.
    """
    # Arrays of another length belong to other samples: an npz often holds several sets.
    used = {*found.values, *found.labels, found.ids}
    table = {k: column for k, column in table.items() if k in used or _rows(column) == len(values)}
    try:
        given = _with_labels(values, table, metadata, found, keys, where, quiet)
    except classes.MissingLabel as error:
        if keys.labels_required:
            raise
        if keys.rows is None and not quiet:
            warnings.warn(f"labels are not used: {error}", InputWarning, stacklevel=3)
        unlabelled = dataclasses.replace(found, labels=())
        return read(values, table, metadata, unlabelled, keys, where)
    try:
        predictions = Predictions(
            **given,
            provenance=metadata.get("provenance", {}),
            ids=None if found.ids is None else columns.plain(table[found.ids]),
            extra={name: carried(table[name]) for name in found.rest(table)},
        )
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    z = predictions.logits
    if z is not None and z.ndim == 2 and z.shape[1] > 1 and looks_like_probabilities(z):
        warnings.warn(
            f"{where}: the logits lie in [0, 1] and their rows sum to 1; if they are "
            "probabilities, name them with --probs",
            InputWarning,
            stacklevel=3,
        )
    return Loaded(predictions, table, metadata, found)


def _with_labels(
    values: np.ndarray,
    table: Table,
    metadata: dict[str, Any],
    found: Roles,
    keys: Keys,
    where: str,
    quiet: bool,
) -> dict[str, Any]:
    """The values, labels, task and class names of `Predictions`."""
    width = values.shape[1] if values.ndim == 2 else 1
    task = metadata.get("task", keys.task) if keys.task == "auto" else keys.task
    labels = _labels(table, found.labels, where)
    if metadata.get("labels") == "either":
        metadata["labels"] = _meaning(labels, metadata["class_names"])
    own = metadata.get("class_names")
    categories = metadata.get("categories", {}).get(found.labels[0]) if found.labels else None
    # The caller's names are those of the columns; a ClassLabel defines what the codes 0, 1, … mean.
    named = bool(keys.classes) and "are_codes" not in metadata
    if own is None and not named and categories and len(categories) == max(width, 2):
        own = categories
    single = width == 1 and task != "multilabel"
    names, order = classes.class_names(found, own, keys, single, labels, where)
    if order is not None and len(order) == width:
        values = values[:, order]
        if labels is not None and labels.shape[1:] == (width,):
            labels = labels[:, order]
            if len(found.labels) == 1:  # in case the table is written
                table[found.labels[0]] = labels
    if labels is not None and labels.ndim == 1:
        of = f"{where}: column {found.labels[0]!r}"
        labels = classes.class_labels(labels, names, classes.labels_by_name(metadata), of)
        if order is not None and labels.dtype != object and not quiet:
            classes.warn_of_order(names, of)
    elif labels is not None:
        task, labels = _task_of(task, classes.whole(labels))
    if task == "multilabel" and values.ndim == 1:  # one label, read from one column
        values = values[:, None]
    if task == "multilabel" and labels is not None and labels.ndim == 1:
        labels = labels[:, None]
    kind = "logits" if found.are_logits else "probs"
    return {kind: values, "labels": labels, "task": task, "class_names": names}


def _without_class_names(table: Table, metadata: dict[str, Any]) -> tuple[Table, dict[str, Any]]:
    """Move class names that were saved beside the arrays of an npz to the metadata."""
    for name in ("class_names", "classes"):
        lengths = {_rows(column) for key, column in table.items() if key != name}
        if name in table and _rows(table[name]) not in lengths | {0}:
            texts = columns.plain(table.pop(name)).tolist()
            if "class_names" not in metadata:  # labels beside such an array may be values of it
                metadata |= {"class_names": [str(text) for text in texts], "labels": "either"}
    return table, metadata


def named_labels(
    table: Table, metadata: dict[str, Any], found: Roles, keys: Keys, where: str
) -> Table:
    """The column of labels as names, if it holds positions in stored names of another order.

    Stored names are the class names in a file's metadata and those of a ClassLabel, whose numbers
    are always positions, even if the names are numbers.
    """
    if len(found.labels) != 1:
        return {}
    label, are_codes = found.labels[0], "are_codes" in metadata
    stored = metadata["categories"].get(label) if are_codes else metadata.get("class_names")
    names, orders = list(map(str, stored or ())), (keys.classes, found.class_names)
    wanted = [list(map(str, order)) for order in orders if order]
    # Without a ClassLabel, the label 1 beside a single column is that of its class.
    wanted = [w for w in wanted if set(w) <= set(names) and (are_codes or len(w) == len(names))]
    same = all(order == names for order in wanted)
    if same and not (are_codes and classes.by_value(names)):
        return {}
    meaning = "codes" if are_codes else metadata.get("labels", "indices")
    named = _names_at(columns.plain(table[label]), names, meaning, f"{where}: column {label!r}")
    return {} if named is None else {label: named}


def _names_at(column: np.ndarray, names: list[str], meaning: str, where: str) -> np.ndarray | None:
    """The names at the positions in a column, with None if missing; None if it has no positions."""
    if not len(column):
        return column
    try:
        labels = columns.labels(column, where)
        meaning = _meaning(labels, names) if meaning == "either" else meaning
        places = classes.class_labels(labels, names, meaning == "names", where)
    except classes.MissingLabel as error:
        known, found = ~error.missing, objects([None] * len(column))
        found[known] = rest = _names_at(column[known], names, meaning, where)
        return None if rest is None else found
    first = -1 if meaning == "codes" else 0  # −1 is a missing label of a ClassLabel
    if places.ndim > 1 or places.dtype.kind not in "iub" or places.min() < first:
        return None
    return None if places.max() >= len(names) else objects([*names, None])[places.astype(int)]


def _meaning(labels: np.ndarray | None, names: Sequence[str]) -> str:
    """ "names" if the labels are all among the class names, otherwise "indices"."""
    numbers = {classes.number(name) for name in names if classes.is_number(name)}
    if labels is None or labels.dtype == object or set(labels.ravel().tolist()) <= numbers:
        return "names"
    return "indices"


def _rows(column: Any) -> int:
    return 0 if isinstance(column, np.ndarray) and column.ndim == 0 else len(column)


def matrix(table: Table, names: Sequence[str], where: str, *, by_class: bool = False) -> np.ndarray:
    """One column unchanged, or several side by side; by_class: stored by class, not by row."""
    arrays = [columns.numbers(table[name], f"{where}: column {name!r}") for name in names]
    if len(arrays) == 1:
        return arrays[0]
    for name, array in zip(names, arrays):
        if array.ndim != 1:
            raise FileFormatError(f"{where}: expected numbers in {name}, got lists")
        if len(array) != len(arrays[0]):
            raise FileFormatError(
                f"{where}: expected {len(arrays[0])} numbers in {name}, as in {names[0]}, "
                f"got {len(array)}"
            )
    return np.stack(arrays).T if by_class else np.stack(arrays, axis=1)


def _labels(table: Table, names: Sequence[str], where: str) -> np.ndarray | None:
    """Numbers (N,) or (N, M), or strings (N,); None if there are no labels."""
    if not names:
        return None
    read: Table = {}
    missing: list[classes.MissingLabel] = []
    for name in names:
        of = f"{where}: column {name!r}"
        try:
            read[name] = columns.labels(table[name], of)
            if len(names) > 1:
                classes.refuse_missing(read[name], (), of)
        except classes.MissingLabel as error:
            missing.append(error)
    if missing:  # the first error names the place, with the rows of all
        missing[0].missing = np.logical_or.reduce([error.missing for error in missing])
        raise missing[0]
    if len(names) > 1:
        return matrix({name: classes.truths(x) for name, x in read.items()}, names, where)
    labels = read[names[0]]
    return labels[:, 0] if labels.shape[1:] == (1,) else labels


def _task_of(task: str, labels: np.ndarray) -> tuple[str, np.ndarray]:
    """Labels (N, M) are one-hot if every row has one, otherwise several labels per sample."""
    if task != "auto" or 0 in labels.shape:
        return task, labels
    if ((labels == 0) | (labels == 1)).all() and (labels.sum(axis=1) == 1).all():
        return task, labels.argmax(axis=1)
    return "multilabel", labels


def carried(column: Any) -> np.ndarray:
    """A carried column: as numbers if all strings are numbers or missing, otherwise unchanged.

    Numbers with leading zeros, or too long for an integer, are codes and stay strings. So do
    lists, and numbers such as 1,234 if all commas may separate thousands.
    """
    values = columns.plain(column)
    if values.dtype != object or not all(isinstance(v, str) for v in values):
        return values
    known = np.array([v.strip().lower() not in classes.MISSING for v in values], dtype=bool)
    texts = set(values[known].tolist())
    commas = [text for text in texts if "," in text]
    thousands = bool(commas) and all(map(_THOUSANDS.fullmatch, commas))
    if thousands or any(map(_CODE.match, texts)):
        return values
    try:
        if texts and all(_WHOLE.fullmatch(text) for text in texts):
            whole = values[known].astype(np.int64)
            if known.all():
                return whole
            found = np.full(len(values), None, dtype=object)
            found[known] = whole
            return found
        return columns.numbers(np.where(known, values, "nan" if texts else values), "")
    except (FileFormatError, OverflowError):
        return values
