"""What the classes are called, and which of them a label means."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from focalcal._labels import BOOLEANS
from focalcal.errors import FileFormatError, InputWarning
from focalcal.formats.roles import Keys, Roles, listed

MISSING = {"", "nan", "na", "n/a", "#n/a", "<na>", "null"}
"""How pandas, R, spreadsheets and databases write a missing text, in lower case."""


class MissingLabel(FileFormatError):
    """Labels that are not known, where they are needed; missing: in which rows, a mask (N,)."""

    def __init__(self, where: str, missing: np.ndarray) -> None:
        row = int(missing.argmax())
        super().__init__(f"{where}: the label at row {row} is missing; drop such rows")
        self.missing = missing


def number(value: Any) -> float:
    """A number or the text of one, of which some countries write the point as a comma."""
    return float(value.replace(",", ".") if isinstance(value, str) else value)


def is_number(value: Any) -> bool:
    """Whether this is a number or the text of one."""
    try:
        number(value)
    except (TypeError, ValueError):
        return False
    return True


def two_names(positive: str, labels: np.ndarray | None) -> tuple[str, str]:
    """The names of two classes, of which a column names the second; the labels have the other."""
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
    """The class names, and the order in which to take the columns if the caller's is another.

    own: what the file calls its classes if its columns do not say; other names than these are an
    error. single: whether there is one column, of class 1 of two; labels: what may name the other.
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
    """Labels (N,) as class indices, or as texts to look up among the class names.

    Texts that are numbers are class names if those are numbers other than 0, 1, …, and indices
    otherwise; so are numbers where `by_name`. Booleans, also as texts, are class names if those are
    False and True, and the indices 0 and 1 otherwise.
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
    """MissingLabel for the first text that stands for none, unless a class is called so."""
    given = set(labels) - set(names) if labels.dtype == object else set()
    missing = [text for text in given if text.strip().lower() in MISSING]
    if missing:
        raise MissingLabel(where, np.isin(labels, missing))


def warn_of_order(names: Sequence[str], where: str) -> None:
    """Say what numbers as labels mean beside columns that were put in another order."""
    warnings.warn(
        f"{where}: the columns of the classes were put in the order {listed(names)}; "
        f"the label 0 is taken to be {names[0]}",
        InputWarning,
        stacklevel=5,
    )


def truths(labels: np.ndarray) -> np.ndarray:
    """Texts that are False and True as booleans; other labels as they are."""
    texts = set(labels) if labels.dtype == object else {None}
    return next((labels == pair[1] for pair in BOOLEANS if texts <= set(pair)), labels)


def whole(values: np.ndarray) -> np.ndarray:
    """Integers for floats that all are whole."""
    is_whole = values.dtype.kind == "f" and (values % 1 == 0).all()
    return values.astype(np.int64) if is_whole else values


def metadata_of(task: str, names: Sequence[str] | None, by_name: bool) -> dict[str, Any]:
    """What a file says about its columns; by_name: whether its labels may be class names."""
    if not names:
        return {"task": task}
    meaning = {"labels": "names"} if by_name else {}
    return {"task": task, "class_names": list(names), **meaning}


def labels_by_name(metadata: dict[str, Any]) -> bool:
    """Whether labels that are numbers may be class names; beside stored names they are indices."""
    return "class_names" not in metadata or metadata.get("labels") == "names"


def by_value(names: Sequence[str]) -> dict[float, str]:
    """Class names by the numbers they are; none if one is no number, or they are 0, 1, …"""
    if not all(map(is_number, names)) or [*names] == [*map(str, range(len(names)))]:
        return {}
    return {number(name): name for name in names}
