"""Which columns of a table hold the logits or probabilities, the labels and the ids."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import Any

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
"""What pandas calls the index of a frame that it writes."""
OTHERS = "*"
"""Stands for all columns that are neither labels, ids nor an index."""
UNCALIBRATED = "uncalibrated_"
"""Goes before the name of a column that calibrated probabilities would be mistaken for."""


class MissingLabel(FileFormatError):
    """A label that is not known, which matters where labels are needed."""

    def __init__(self, where: str, row: int) -> None:
        super().__init__(f"{where}: the label at row {row} is missing; drop such rows")


@dataclasses.dataclass(frozen=True)
class Keys:
    """What the caller says about the columns; None where it is left to `find`.

    logits, probs, labels: a column, or several separated by commas, one per class; `OTHERS` for
    logits or probs. Prefixes name all columns that begin so. classes: class names in the order of
    the columns. labels_required: whether labels that are absent or missing are an error. task:
    "auto" or "multilabel".
    """

    logits: str | None = None
    probs: str | None = None
    labels: str | None = None
    ids: str | None = None
    logits_prefix: str | None = None
    probs_prefix: str | None = None
    classes: tuple[str, ...] | None = None
    labels_required: bool = True
    task: str = "auto"


@dataclasses.dataclass(frozen=True)
class Roles:
    """Columns by what they are for. Several `values` (and `labels`) are one per class.

    class_names: what the columns are called after their common prefix, None if that is a number;
    of a single column the name of class 1 of two.
    """

    values: tuple[str, ...]
    are_logits: bool
    labels: tuple[str, ...]
    ids: str | None
    class_names: tuple[str, ...] | None

    def rest(self, names: Iterable[str]) -> list[str]:
        """The columns that are only carried along."""
        used = {*self.values, *self.labels, self.ids}
        return [name for name in names if name not in used]

    def describe(self) -> str:
        """What was taken for what, in a line."""
        kind = "logits" if self.are_logits else "probabilities"
        text = f"{kind} from {_listed(self.values)}"
        text += f", labels from {_listed(self.labels)}" if self.labels else ""
        return text + (f", ids from {self.ids}" if self.ids else "")


def find(names: Sequence[str], keys: Keys, where: str) -> Roles:
    """The roles of a table's columns; FileFormatError says what is there and how to name it."""
    ways = ("logits", "probs", "logits_prefix", "probs_prefix")
    given = {way: getattr(keys, way) for way in ways if getattr(keys, way)}
    if len(given) > 1:
        options = " and ".join(f"--{name.replace('_', '-')}" for name in given)
        raise FileFormatError(f"{where}: expected one way to name the columns, got {options}")
    if given:
        option, text = next(iter(given.items()))
        if "prefix" in option:
            found = _prefixed(names, text, where)
        elif text == OTHERS and OTHERS not in names:
            found = _prefixed(_others(names, keys, where), "", where)
        else:
            found = _named(names, text, where)
        are_logits = option.startswith("logits")
    else:
        found, are_logits = _recognised(names, where)
    others = [name for name in names if name not in found[0]]
    labels = _labels(others, keys, where, len(found[0]))
    if keys.ids is not None and keys.ids not in names:
        raise FileFormatError(f"{where}: expected the ids {keys.ids!r}, got {_listed(names)}")
    return Roles(found[0], are_logits, labels, _ids(names, keys), found[1])


def not_overwritten(name: str) -> str:
    """The name of a carried column beside a new column `probs`."""
    clash = name == "probs" or name.startswith(tuple(f"probs{s}" for s in SEPARATORS))
    return UNCALIBRATED + name if clash else name


def two_names(positive: str, labels: np.ndarray | None) -> tuple[str, str]:
    """The names of two classes, of which a column names the second; the labels have the other."""
    other = set() if labels is None or labels.dtype != object else set(labels) - {positive}
    named = not all(map(is_number, other))
    return (str(other.pop()) if len(other) == 1 and named else f"not {positive}"), positive


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
    wanted, own = keys.classes, found.class_names or own
    own = None if own is None else tuple(map(str, own))
    if found.class_names and len(own) == 1:
        own = two_names(own[0], labels)
    if wanted is None or own is None or wanted == own:
        return wanted or own, None
    same = sorted(wanted) == sorted(own) and len(set(own)) == len(own)
    listed = found.class_names and "," in (keys.logits or keys.probs or "")
    if listed and not same:  # other names for columns that the caller has put in order
        return wanted, None
    if single:
        if own[1:2] != wanted[1:2] and not all(map(is_number, own[1:2])):
            raise FileFormatError(
                f"{where}: expected the column of class {_listed(wanted[1:2])!r}, "
                f"got that of {_listed(own[1:2])!r}"
            )
        return wanted, None
    if not same:
        raise FileFormatError(
            f"{where}: expected the classes {_listed(wanted)}, got {_listed(own)}"
        )
    return wanted, [own.index(name) for name in wanted]


def class_labels(
    labels: np.ndarray, names: Sequence[str] | None, by_name: bool, where: str
) -> np.ndarray:
    """Class indices (N,), or texts (N,) to look up among the class names.

    Texts that are numbers are class names if those are numbers other than 0, 1, …, and indices
    otherwise; so are numbers where `by_name`. Labels of several dimensions stay as they are.
    """
    if labels.ndim != 1:
        return labels
    texts = labels.dtype == object
    if texts and (set(labels) <= set(names or ()) or not all(map(is_number, labels))):
        return labels
    values = labels.astype(np.float64) if texts else labels
    if values.dtype.kind == "f" and np.isnan(values).any():
        raise MissingLabel(where, int(np.isnan(values).argmax()))
    if by_name or texts:
        named = _by_value(names or ())
        if named:
            given = [named.get(value, f"{value:g}") for value in values.tolist()]
            return np.array(given, dtype=object)
    whole = values.dtype.kind == "f" and (values % 1 == 0).all()
    return values.astype(np.int64) if whole else values


def metadata_of(task: str, names: Sequence[str] | None, by_name: bool) -> dict[str, Any]:
    """What a file says about its columns; by_name: whether its labels may be class names."""
    if not names:
        return {"task": task}
    meaning = {"labels": "names"} if by_name else {}
    return {"task": task, "class_names": list(names), **meaning}


def labels_by_name(metadata: dict[str, Any]) -> bool:
    """Whether labels that are numbers may be class names; beside stored names they are indices."""
    return "class_names" not in metadata or metadata.get("labels") == "names"


def _by_value(names: Sequence[str]) -> dict[float, str]:
    """Class names by the numbers they are; none if one is no number, or they are 0, 1, …"""
    if not all(map(is_number, names)) or [*names] == [*map(str, range(len(names)))]:
        return {}
    return {float(name): name for name in names}


def is_number(value: Any) -> bool:
    """Whether this is a number or the text of one."""
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")
Found = tuple[tuple[str, ...], tuple[str, ...] | None]


def _recognised(names: Sequence[str], where: str) -> tuple[Found, bool]:
    for known, are_logits in ((LOGITS, True), (PROBS, False)):
        for word in known:
            if word in names:
                return ((word,), None), are_logits
            for separator in SEPARATORS:
                if _starting(names, word + separator):
                    return _prefixed(names, word + separator, where), are_logits
    raise FileFormatError(
        f"{where}: expected a column 'logits' or 'probs', or one per class such as logits_0, "
        f"logits_1, …; got {_listed(names) or 'nothing'}; {_advice(names)}"
    )


def _advice(names: Sequence[str]) -> str:
    """What to pass, with a prefix that several columns share as the example."""
    prefixes = [name[: m.end()] for name in names if (m := re.match(r"[_.]*[^_.]*[_.]", name))]
    shared = next((p for p in prefixes if prefixes.count(p) > 1), None)
    if shared:
        return f"if {shared}… are probabilities, pass --probs-prefix {shared} (or --logits-prefix)"
    return (
        "name them with --probs a,b,c or --logits a,b,c; "
        f"--probs '{OTHERS}' takes all columns but labels and ids"
    )


def _others(names: Sequence[str], keys: Keys, where: str) -> list[str]:
    taken = {*_label_columns(names, keys, where), _ids(names, keys)}
    others = [name for name in names if name not in taken and not INDEX.fullmatch(name)]
    if not others:
        raise FileFormatError(f"{where}: expected columns besides labels and ids, got none")
    return others


def _starting(names: Sequence[str], prefix: str) -> list[str]:
    return [name for name in names if name.startswith(prefix) and name != prefix]


def _prefixed(names: Sequence[str], prefix: str, where: str) -> Found:
    """The numbered columns that begin with a prefix, by number; if there are none, all of them."""
    columns = _starting(names, prefix)
    if not columns:
        raise FileFormatError(
            f"{where}: expected columns that begin with {prefix!r}, got {_listed(names)}"
        )
    ends = [name.removeprefix(prefix) for name in columns]
    if ends == ["0"]:
        raise FileFormatError(
            f"{where}: expected {prefix}1 or a column per class, got only {columns[0]}; "
            f"if it is about class 1 all the same, pass --probs or --logits {columns[0]}"
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


def _named(names: Sequence[str], text: str, where: str) -> Found:
    """One column, or several separated by commas; a name that is absent may be a prefix."""
    columns = tuple(part.strip() for part in text.split(",") if part.strip())
    if text in names:
        return (text,), None
    if len(columns) == 1:
        for separator in SEPARATORS:
            if _starting(names, text + separator):
                return _prefixed(names, text + separator, where)
    for name in columns:
        if name not in names:
            raise FileFormatError(f"{where}: expected {name!r}, got {_listed(names)}")
    if len(columns) == 1:
        return columns, None
    shared = re.match(rf".*?[{SEPARATORS}]|", columns[0])[0]
    if not all(name.startswith(shared) and name != shared for name in columns):
        shared = ""
    return columns, tuple(name.removeprefix(shared) for name in columns)


def _labels(names: Sequence[str], keys: Keys, where: str, width: int) -> tuple[str, ...]:
    """The column of labels; for multi-label problems one per column of values will do."""
    named = _label_columns(names, keys, where)
    if named:
        return named
    for word in LABELS:
        for separator in SEPARATORS:
            if width > 1 and len(_starting(names, word + separator)) == width:
                return _prefixed(names, word + separator, where)[0]
    if keys.labels_required:
        raise FileFormatError(
            f"{where}: expected 'labels', got {_listed(names) or 'no other column'}; "
            "name the column with --labels"
        )
    return ()


def _label_columns(names: Sequence[str], keys: Keys, where: str) -> tuple[str, ...]:
    """The columns of labels that the caller names, or the one of a known name, if any."""
    if keys.labels:
        return _named(names, keys.labels, where)[0]
    return next(((word,) for word in LABELS if word in names), ())


def _ids(names: Sequence[str], keys: Keys) -> str | None:
    return keys.ids or next((name for name in IDS if name in names), None)


def _listed(names: Sequence[str]) -> str:
    names = list(names)
    if len(names) > 8:
        names = [*names[:4], "…", *names[-2:]]
    return ", ".join(names)
