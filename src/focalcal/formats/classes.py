"""The names of the classes, and which class a label means."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from focalcal._labels import BOOLEANS
from focalcal.errors import FileFormatError, InputWarning
from focalcal.formats.roles import Keys, Roles, listed

MISSING = {"", "nan", "na", "n/a", "#n/a", "<na>", "null"}
"""How pandas, R, spreadsheets and databases write a missing value, in lower case."""


class MissingLabel(FileFormatError):
    """Labels that are needed but missing; missing: a mask (N,) of their rows."""

    def __init__(self, where: str, missing: np.ndarray) -> None:
        row = int(missing.argmax())
        super().__init__(f"{where}: the label at row {row} is missing; drop such rows")
        self.missing = missing


def number(value: Any) -> float:
    """A number, or one written as text, possibly with a decimal comma."""
    if not isinstance(value, str):
        return float(value)
    if "_" in value:
        raise ValueError(f"expected a number, got {value!r}")  # Python reads 2026_05 as 202605
    return float(value.replace(",", "."))


def is_number(value: Any) -> bool:
    """Whether this is a number, or one written as text."""
    try:
        number(value)
    except (TypeError, ValueError):
        return False
    return True


def two_names(positive: str, labels: np.ndarray | None) -> tuple[str, str]:
    """The names of two classes: a column names the second, and the labels the other."""
    for pair in BOOLEANS:
        if positive in pair:
            return pair[1] if positive == pair[0] else pair[0], positive
    other = set() if labels is None or labels.dtype != object else set(labels) - {positive}
    named = len(other) == 1 and not all(map(is_number, other))
    return str(other.pop()) if named else f"not {positive}", positive


def class_names(
    found: Roles,
    own: Sequence[str] | None,
    keys: Keys,
    single: bool,
    labels: np.ndarray | None,
    where: str,
) -> tuple[tuple[str, ...] | None, list[int] | None]:
    """The class names, and the order in which to take the columns if the caller's is different.

    own: the file's class names, used if its columns do not name them; any other names are an error.
    single: whether there is one column, of class 1 of two; labels: may name the other class.
    """
    own = found.class_names or own
    if single and found.class_names and len(own) == 1:
        own = two_names(own[0], labels)
    own = None if own is None else tuple(map(str, own))
    wanted = tuple(map(str, keys.classes)) if keys.classes else None
    if wanted is None or own is None or wanted == own:
        return wanted or own, None
    same = sorted(wanted) == sorted(own) and len(set(own)) == len(own)
    if found.in_order and not same:
        return wanted, None
    if single:
        other = own[1:2] == wanted[:1] or not all(map(is_number, own[1:2]))
        if own[1:2] != wanted[1:2] and other:
            raise FileFormatError(
                f"{where}: expected the column of class {listed(wanted[1:2])!r}, "
                f"got that of {listed(own[1:2])!r}"
            )
        return wanted, None
    if not same:
        raise FileFormatError(f"{where}: expected the classes {listed(wanted)}, got {listed(own)}")
    return wanted, [own.index(name) for name in wanted]


def class_labels(
    labels: np.ndarray, names: Sequence[str] | None, by_name: bool, where: str
) -> np.ndarray:
    """Labels (N,) as class indices, or as strings to look up among the class names.

    Strings that are numbers are class names if those are numbers other than 0, 1, …, and indices
    otherwise; with `by_name`, so are numbers. Booleans, even as strings, are class names if those
    are False and True, and the indices 0 and 1 otherwise.
    """
    names, texts = names or (), labels.dtype == object
    given = set(labels) if texts else set()
    if texts and given <= set(names):
        return labels
    refuse_missing(labels, names, where)
    truth = truths(labels)
    if truth.dtype == bool and len(names) == 2:
        called = {name.lower(): name for name in names}
        if called.keys() == {"false", "true"}:
            return np.where(truth, called["true"], called["false"]).astype(object)
        return truth
    if texts and not all(map(is_number, given)):
        return labels
    values = np.array([number(text) for text in labels]) if texts else labels
    named = by_value(names) if by_name or texts else {}
    if named:
        return np.array([named.get(x, f"{x:g}") for x in values.tolist()], dtype=object)
    return whole(values)


def refuse_missing(labels: np.ndarray, names: Sequence[str], where: str) -> None:
    """Raise MissingLabel if a string denotes a missing value, unless it is a class name."""
    given = set(labels) - set(names) if labels.dtype == object else set()
    missing = [text for text in given if text.strip().lower() in MISSING]
    if missing:
        raise MissingLabel(where, np.isin(labels, missing))


def warn_of_order(names: Sequence[str], where: str) -> None:
    """Warn how numeric labels are interpreted if the columns were reordered."""
    warnings.warn(
        f"{where}: the columns of the classes were put in the order {listed(names)}; "
        f"the label 0 is taken to be {names[0]}",
        InputWarning,
        stacklevel=5,
    )


def truths(labels: np.ndarray) -> np.ndarray:
    """Labels that are the strings False and True as booleans; others unchanged."""
    texts = set(labels) if labels.dtype == object else {None}
    return next((labels == pair[1] for pair in BOOLEANS if texts <= set(pair)), labels)


def whole(values: np.ndarray) -> np.ndarray:
    """Floats as integers if all are whole; other values unchanged."""
    is_whole = values.dtype.kind == "f" and (values % 1 == 0).all()
    return values.astype(np.int64) if is_whole else values


def metadata_of(task: str, names: Sequence[str] | None, by_name: bool) -> dict[str, Any]:
    """The metadata stored about the columns; by_name: whether labels may be class names."""
    if not names:
        return {"task": task}
    meaning = {"labels": "names"} if by_name else {}
    return {"task": task, "class_names": list(names), **meaning}


def labels_by_name(metadata: dict[str, Any]) -> bool:
    """Whether numeric labels may be class names; by default, stored names make them indices."""
    return "class_names" not in metadata or metadata.get("labels") == "names"


def by_value(names: Sequence[str]) -> dict[float, str]:
    """Class names by numeric value; empty if one is not a number, or if they are 0, 1, …"""
    if not all(map(is_number, names)) or [*names] == [*map(str, range(len(names)))]:
        return {}
    return {number(name): name for name in names}
