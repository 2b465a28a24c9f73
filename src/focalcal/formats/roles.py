"""Which columns of a table hold the logits or probabilities, the labels and the ids."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import Self, TypedDict

import numpy as np

from focalcal.errors import FileFormatError

LOGITS = ("logits", "logit")
PROBS = (
    "probs",
    "prob",
    "probabilities",
    "probability",
    "proba",
    "scores",
    "score",
    "y_prob",
    "y_proba",
    "y_score",
)
LABELS = ("labels", "label", "y", "y_true", "targets", "target")
IDS = ("id", "ids", "sample_id", "uid", "uuid")
SEPARATORS = "_."
INDEX = re.compile(r"|Unnamed: \d+|__index_level_\d+__|index")
"""Names that pandas gives to a stored index."""
OTHERS = "*"
"""Stands for all columns that are neither labels, ids nor an index."""
UNCALIBRATED = "uncalibrated_"
"""Prefix for a column that could be mistaken for the calibrated probabilities."""


@dataclasses.dataclass(frozen=True)
class Keys:
    """How to read a table: the arguments of `Predictions.from_frame`.

    rows: a mask (N,) of those to read.
    """

    logits: str | Sequence[str] | None = None
    probs: str | Sequence[str] | None = None
    labels: str | Sequence[str] | None = None
    ids: str | None = None
    logits_prefix: str | None = None
    probs_prefix: str | None = None
    classes: Sequence[str] | None = None
    labels_required: bool = True
    task: str = "auto"
    rows: np.ndarray | None = None

    @classmethod
    def of(cls, options: KeyOptions) -> Self:
        """From keyword arguments, where `logits_key` is another spelling of `logits`."""
        unknown = [name for name in options if name not in KeyOptions.__annotations__]
        if unknown:
            known = ", ".join(name for name in KeyOptions.__annotations__ if "_key" not in name)
            raise TypeError(f"unexpected keyword argument {unknown[0]!r}; expected some of {known}")
        return cls(**{name.removesuffix("_key"): value for name, value in options.items()})


class KeyOptions(TypedDict, total=False):
    """The fields of `Keys` as keyword arguments, in either spelling."""

    logits: str | Sequence[str] | None
    probs: str | Sequence[str] | None
    labels: str | Sequence[str] | None
    ids: str | None
    logits_key: str | Sequence[str] | None
    probs_key: str | Sequence[str] | None
    labels_key: str | Sequence[str] | None
    ids_key: str | None
    logits_prefix: str | None
    probs_prefix: str | None
    classes: Sequence[str] | None
    labels_required: bool
    task: str


@dataclasses.dataclass(frozen=True)
class Roles:
    """Columns by role. Several `values` (or `labels`) mean one per class.

    class_names: the rest of the column names after their common prefix, None if numbers; for a
    single column the name of class 1 of two. in_order: whether the caller listed the columns.
    """

    values: tuple[str, ...]
    are_logits: bool
    labels: tuple[str, ...]
    ids: str | None
    class_names: tuple[str, ...] | None
    in_order: bool = False

    def rest(self, names: Iterable[str]) -> list[str]:
        """The columns without a role, which are only carried along."""
        used = {*self.values, *self.labels, self.ids}
        return [name for name in names if name not in used]


def find(
    names: Sequence[str], keys: Keys, where: str, stored: Sequence[str] | None = None
) -> Roles:
    """The roles of a table's columns; FileFormatError lists the columns and how to name them.

    stored: the class names of the columns of a matrix.
    """
    ways = ("logits", "probs", "logits_prefix", "probs_prefix")
    given = {way: getattr(keys, way) for way in ways if getattr(keys, way)}
    if len(given) > 1:
        options = " and ".join(f"--{name.replace('_', '-')}" for name in given)
        raise FileFormatError(f"{where}: expected one way to name the columns, got {options}")
    if keys.ids is not None and keys.ids not in names:
        raise FileFormatError(f"{where}: expected the ids {keys.ids!r}, got {listed(names)}")
    ids = keys.ids or next((name for name in IDS if name in names), None)
    way, wanted = next(iter(given.items()), ("", None))
    in_order = False
    if not wanted:
        way, (values, classes) = _recognised(names, where)
    elif "prefix" in way:
        values, classes = _prefixed(names, wanted, where)
    elif wanted == OTHERS and OTHERS not in names:
        taken = {ids, *_label_columns(names, keys, where)[0]}
        others = [name for name in names if name not in taken and not INDEX.fullmatch(name)]
        if not others:
            raise FileFormatError(f"{where}: expected columns besides labels and ids, got none")
        values, classes = _prefixed(others, "", where)
    else:
        values, classes = _named(names, wanted, where)
        in_order = len(_parts(names, wanted)) > 1
    others = [name for name in names if name not in values]
    own = classes or stored or keys.classes
    width = len(own) if own and len(values) == 1 else len(values)
    labels = _labels(others, keys, where, own, width)
    return Roles(values, way.startswith("logit"), labels, ids, classes, in_order)


def not_overwritten(name: str) -> str:
    """The name of a carried column beside a new column `probs`."""
    words = *LOGITS, "probs"  # logits would be read first
    clash = name in words or name.startswith(tuple(w + s for w in words for s in SEPARATORS))
    return UNCALIBRATED + name if clash else name


def listed(names: Iterable[str]) -> str:
    """Names for a message, shortened if they are many."""
    names = list(names)
    if len(names) > 8:
        names = [*names[:4], "…", *names[-2:]]
    return ", ".join(names)


def distinct(names: Sequence[str], where: str) -> None:
    """Refuse a table in which two columns have the same name."""
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise FileFormatError(
            f"{where}: expected distinct column names, got {twice!r} twice; rename or drop one"
        )


_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")
_Found = tuple[tuple[str, ...], tuple[str, ...] | None]
"""Columns, and the class names in their names."""


def _recognised(names: Sequence[str], where: str) -> tuple[str, _Found]:
    """The first usual name that occurs, and the columns with it."""
    for word in LOGITS + PROBS:
        found = _called(names, word, where)
        if found:
            return word, found
    raise FileFormatError(
        f"{where}: expected a column 'logits' or 'probs', or one per class such as logits_0, "
        f"logits_1, …; got {listed(names) or 'nothing'}; {_advice(names)}"
    )


def _advice(names: Sequence[str]) -> str:
    """Which option to pass, with a prefix shared by several columns as the example."""
    numbers = [name for name in names if re.fullmatch(r"[-+.\deE]*\d[-+.\deE]*", name)]
    if len(numbers) == len(names) and any("." in name for name in names):  # written by np.savetxt
        return "the first line must name the columns, as in prob_0,prob_1,label"
    prefixes = [name[: m.end()] for name in names if (m := re.match(r"[_.]*[^_.]*[_.]", name))]
    shared = next((p for p in prefixes if prefixes.count(p) > 1), None)
    if shared:
        return f"if {shared}… are probabilities, pass --probs-prefix {shared} (or --logits-prefix)"
    return (
        "name them with --probs a,b,c or --logits a,b,c; "
        f"--probs '{OTHERS}' takes all columns but labels and ids"
    )


def _called(names: Sequence[str], word: str, where: str) -> _Found | None:
    """The column of this name, or those of which it is the prefix."""
    if word in names:
        return (word,), None
    prefix = _prefix(names, word)
    return _prefixed(names, prefix, where) if prefix else None


def _prefix(names: Sequence[str], word: str) -> str | None:
    """The word with the separator that follows it in some names."""
    return next((word + s for s in SEPARATORS if _starting(names, word + s)), None)


def _starting(names: Sequence[str], prefix: str) -> list[str]:
    return [name for name in names if name.startswith(prefix) and name != prefix]


def _prefixed(names: Sequence[str], prefix: str, where: str) -> _Found:
    """The numbered columns that begin with a prefix, by number; if there are none, all of them."""
    columns = _starting(names, prefix)
    if not columns:
        raise FileFormatError(
            f"{where}: expected columns that begin with {prefix!r}, got {listed(names)}"
        )
    ends = [name.removeprefix(prefix) for name in columns]
    if ends == ["0"]:
        raise FileFormatError(
            f"{where}: expected {prefix}1 or a column per class, got only {columns[0]}; "
            f"if it holds class 1 nevertheless, pass --probs or --logits {columns[0]}"
        )
    numbered = sorted((end for end in ends if _NUMBER.fullmatch(end)), key=float)
    if len(numbered) < min(2, len(columns)):
        return tuple(columns), tuple(ends)
    found = tuple(prefix + end for end in numbered)
    order = [float(end) for end in numbered]
    if order == list(range(len(order))) or order == [1]:
        return found, None
    if order[0] == 0 and all(end.isdigit() for end in numbered):
        missing = next(i for i in range(len(order)) if i not in order)
        raise FileFormatError(
            f"{where}: expected columns {prefix}0 … {found[-1]}, got no {prefix}{missing}"
        )
    # 1 … K or other numbers are the names of the classes, as in stars from one to five.
    return found, tuple(numbered)


def _parts(names: Sequence[str], wanted: str | Sequence[str]) -> list[str]:
    """The columns in a list, or in a comma-separated string that is not itself a column."""
    if not isinstance(wanted, str):
        return list(map(str, wanted))
    if wanted in names:
        return [wanted]
    return [part.strip() for part in wanted.split(",") if part.strip()]


def _named(names: Sequence[str], wanted: str | Sequence[str], where: str) -> _Found:
    """The columns that the caller names; a single name may be a prefix."""
    columns = _parts(names, wanted)
    if len(columns) == 1 and (found := _called(names, columns[0], where)):
        return found
    for name in columns or [wanted]:
        if name not in names:
            raise FileFormatError(f"{where}: expected {name!r}, got {listed(names)}")
    shared = re.match(rf".*?[{SEPARATORS}]|", columns[0])[0]
    if not all(name.startswith(shared) and name != shared for name in columns):
        shared = ""
    return tuple(columns), tuple(name.removeprefix(shared) for name in columns)


def _labels(
    names: Sequence[str], keys: Keys, where: str, classes: Sequence[str] | None, width: int
) -> tuple[str, ...]:
    """The column of labels, or one per class, in the order of the classes."""
    columns, own = _label_columns(names, keys, where)
    if not columns and width > 1:
        columns, own = _one_per_class(names, where, classes, width)
    if not columns and keys.labels_required:
        raise FileFormatError(
            f"{where}: expected 'labels', got {listed(names) or 'no other column'}; "
            "name the column with --labels"
        )
    if own and classes and set(own) == set(classes):
        return tuple(columns[own.index(name)] for name in classes)
    return columns


def _label_columns(names: Sequence[str], keys: Keys, where: str) -> _Found:
    """The label columns named by the caller, or the one with a usual name, if any."""
    if keys.labels:
        return _named(names, keys.labels, where)
    return next(((word,) for word in LABELS if word in names), ()), None


def _one_per_class(
    names: Sequence[str], where: str, classes: Sequence[str] | None, width: int
) -> _Found:
    """Columns of labels such as `labels_cat`, `labels_dog`, for the same classes as the values."""
    for word in LABELS:
        prefix = _prefix(names, word)
        if prefix and len(_starting(names, prefix)) == width:
            columns, own = _prefixed(names, prefix, where)
            if not own or not classes or set(own) == set(classes):
                return columns, own
    return (), None
