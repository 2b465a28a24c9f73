"""`Predictions`: the interface between training, in torch, and everything after, on any array."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self, Unpack

import numpy as np

from focalcal._arrays import (
    Array,
    both_columns,
    is_torch,
    log_softmax,
    namespace,
    softmax,
    to_numpy,
    two_columns,
)
from focalcal._checks import check_labels, check_logits, check_probs
from focalcal._labels import encode
from focalcal.errors import InputError
from focalcal.formats import TEXT, ending, write_table
from focalcal.formats.classes import by_value, metadata_of
from focalcal.formats.roles import IDS, LABELS, KeyOptions, listed

TASKS = ("auto", "multilabel")


@dataclasses.dataclass(frozen=True)
class Predictions:
    """A classifier's predictions for N samples, and the labels.

    Exactly one of `logits` and `probs` is given: (N, K), or (N,) / (N, 1) for class 1 of a binary
    problem. Which of the two an array holds is never guessed from its values. `labels` are class
    indices (N,), strings or a categorical (N,), 0/1 of shape (N, K) for `task="multilabel"`, or
    None if unknown; strings are looked up among `class_names`.

    `ids` (N,) and `extra`, a dict of other columns (N, …), are carried along by `take`, `split`,
    `save` and `load`. `column(name)` returns any of them.

    >>> import numpy as np
    >>> p = Predictions(logits=np.array([[2.0, 0.0], [0.0, 1.0]]), labels=np.array([0, 1]))
    >>> p.n, p.n_classes
    (2, 2)
    >>> p.probabilities().round(3).tolist()
    [[0.881, 0.119], [0.269, 0.731]]
    """

    logits: Array | None = None
    probs: Array | None = None
    labels: Array | None = None
    task: str = "auto"
    class_names: tuple[str, ...] | None = None
    provenance: dict[str, Any] = dataclasses.field(default_factory=dict)
    ids: Array | None = None
    extra: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.logits is None) == (self.probs is None):
            raise InputError("expected exactly one of logits and probs; give the one you have")
        if self.task not in TASKS:
            raise InputError(f"expected task in {TASKS}, got {self.task!r}")
        if self.logits is not None:
            self._set("logits", check_logits(self.logits))
        else:
            self._set("probs", check_probs(self.probs, "probs", sums=self.task == "auto"))
        if self.class_names is not None:
            names = tuple(map(str, self.class_names))
            if len(names) != self.n_classes:
                raise InputError(
                    f"expected {self.n_classes} class names, got {len(names)}; give one per class"
                )
            if len(set(names)) < len(names):
                twice = next(name for name in names if names.count(name) > 1)
                raise InputError(f"expected distinct class names, got {twice!r} twice")
            self._set("class_names", names)
        if self.labels is not None:
            self._set("labels", self._checked_labels())
        if self.ids is not None:
            self._set("ids", self._checked_column(self.ids, "ids"))
        extra = {str(k): self._checked_column(x, f"column {k!r}") for k, x in self.extra.items()}
        self._set("extra", extra)

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)  # only during construction

    def _checked_column(self, values: Any, name: str) -> np.ndarray:
        values = to_numpy(values)
        if values.ndim == 0 or len(values) != self.n:
            raise InputError(f"expected {name} of {self.n} samples, got shape {values.shape}")
        return values

    def _checked_labels(self) -> Array:
        if self.task == "auto":
            labels, names = encode(self.labels, self.n_classes, self.class_names)
            self._set("class_names", names)
            return check_labels(labels, self.n, self.n_classes, name="labels")
        labels = self.labels if is_torch(self.labels) else np.asarray(self.labels)
        shape, wanted = tuple(labels.shape), tuple(self._values.shape)
        if shape != wanted:
            raise InputError(f"expected multi-label labels of shape {wanted}, got {shape}")
        return check_labels(labels.reshape(-1), math.prod(shape), 2, "labels").reshape(shape)

    @property
    def n(self) -> int:
        """Number of samples."""
        return int(self._values.shape[0])

    @property
    def n_classes(self) -> int:
        """Number of classes (2 for binary), or of labels for a multi-label task."""
        values = self._values
        width = int(values.shape[1]) if values.ndim == 2 else 1
        return max(width, 2) if self.task == "auto" else width

    @property
    def one_column(self) -> bool:
        """Whether there is one number per sample, for class 1 of two."""
        values = self._values
        return self.task == "auto" and (values.ndim == 1 or values.shape[1] == 1)

    @property
    def _values(self) -> Array:
        return self.logits if self.logits is not None else self.probs

    def probabilities(self) -> Array:
        """Probabilities (N, K): (N, 2) for binary, per label for multi-label."""
        if self.logits is None:
            return both_columns(self.probs) if self.task == "auto" else self.probs
        if self.task == "multilabel":
            flat = namespace(self.logits).reshape(self.logits, (-1,))
            return softmax(two_columns(flat))[:, 1].reshape(self.logits.shape)
        with np.errstate(over="ignore"):  # a difference of −∞ has a probability of 0
            return softmax(two_columns(self.logits))

    def log_probs(self, floor: float | None = None) -> Array:
        """Log-probabilities (N, K) of a binary or multiclass problem.

        A probability of exactly zero has no logarithm: it is an error unless `floor` is given,
        in which case smaller probabilities are raised to it and rows are normalised again.
        """
        if self.task == "multilabel":
            raise InputError("expected a single-label task, got multilabel; use as_logits()")
        if self.logits is None:
            return _log_of_probs(both_columns(self.probs), floor)
        with np.errstate(over="ignore"):  # a difference of −∞ has a probability of 0
            return log_softmax(two_columns(self.logits))

    def as_logits(self, floor: float | None = None) -> Array:
        """The input of calibrators: the logits, or log-probabilities (log-odds if multi-label).

        A probability of zero becomes −∞, for which calibrators learn a floor, unless one is given.
        With several labels, zeros require a given floor.
        """
        if self.logits is not None:
            return self.logits
        if self.task == "auto":
            return _log_of_probs(both_columns(self.probs), floor, zeros=True)
        flat = namespace(self.probs).reshape(self.probs, (-1,))
        logs = _log_of_probs(both_columns(flat), floor)
        return (logs[:, 1] - logs[:, 0]).reshape(self.probs.shape)

    def take(self, rows: Any) -> Self:
        """The predictions of the given rows, in that order."""
        rows = np.arange(self.n)[np.asarray(rows)]  # NumPy's indexing, for tensors too
        own = {name: getattr(self, name) for name in ("logits", "probs", "labels", "ids")}
        picked = {name: values[rows] for name, values in own.items() if values is not None}
        extra = {name: values[rows] for name, values in self.extra.items()}
        return dataclasses.replace(self, **picked, extra=extra)

    def column(self, name: str) -> np.ndarray:
        """A carried column (N, …), the ids or the labels by one of their usual names.

        >>> Predictions(probs=[0.2, 0.9], extra={"country": ["FI", "SE"]}).column("country")
        array(['FI', 'SE'], dtype='<U2')
        """
        own = {"ids": self.ids, "labels": self.labels}
        given = {k: to_numpy(x) for k, x in own.items() if x is not None and k not in self.extra}
        known = self.extra | given
        usual = {**dict.fromkeys(IDS, "ids"), **dict.fromkeys(LABELS, "labels")}
        name = name if name in known else usual.get(name, name)
        if name not in known:
            names = ", ".join(known) or "none"
            raise InputError(f"expected one of these columns: {names}; got {name!r}")
        return known[name]

    def split(self, fraction: float = 0.5, seed: int = 0) -> tuple[Self, Self]:
        """Two disjoint parts of the rows, (calibration, test); `fraction` goes to the first."""
        first = round(self.n * fraction)
        if not 0 < first < self.n:
            raise InputError(
                f"expected a fraction that leaves rows on both sides of {self.n}, got {fraction}"
            )
        order = np.random.default_rng(seed).permutation(self.n)
        return self.take(np.sort(order[:first])), self.take(np.sort(order[first:]))

    @classmethod
    def load(
        cls, path: str | Path, *, layout: str | None = None, **keys: Unpack[KeyOptions]
    ) -> Predictions:
        """Read a file with `logits` (or `probs`) and `labels`; docs/files.md has the layouts.

        npz, npy, parquet, arrow, csv, tsv, jsonl (also .gz), pt, Hugging Face datasets on disk.
        Pickles are refused, never executed. Columns with other names, class names, … are given as
        in `from_frame`, or as `logits_key`, `probs_key`, `labels_key`, `ids_key`. Other columns are
        carried along. `layout` reads answers of language models: "lm-eval", "lm-eval-norm" or
        "inspect".
        """
        from focalcal import loading

        return loading.load(path, loading.Keys.of(keys), layout).predictions

    @classmethod
    def from_frame(cls, frame: Any, **keys: Unpack[KeyOptions]) -> Predictions:
        """Read the columns of a pandas or polars frame; other columns are carried along.

        logits, probs: one column, several (one per class) as a list or separated by commas, or
        "*" for all but labels and ids. logits_prefix, probs_prefix: all columns with this prefix.
        labels: a column, or one per label. ids: a column. classes: class names in the order of the
        columns. labels_required: whether absent or missing labels are an error [True]. task: "auto"
        or "multilabel". Columns not given are found by their usual names, as in files.
        """
        from focalcal import loading

        return loading.from_frame(frame, loading.Keys.of(keys))

    def save(self, path: str | Path) -> None:
        """Write npz, parquet, csv, tsv or jsonl; `load` restores the same values.

        Text files have no metadata: there the columns and the labels carry the class names.
        """
        name = "logits" if self.logits is not None else "probs"
        table: dict[str, Any] = {} if self.ids is None else {"id": self.ids}
        table[name] = to_numpy(self._values)
        if self.labels is not None:
            table["labels"] = to_numpy(self.labels)
            as_text = self.class_names and self.task == "auto" and ending(Path(path)) in TEXT
            # Beside the one column `probs_2` the labels 1 and 2 would be taken for indices.
            as_text = as_text and not (self.one_column and by_value(self.class_names))
            if as_text:
                table["labels"] = np.array(self.class_names, dtype=object)[table["labels"]]
        metadata = metadata_of(self.task, self.class_names, by_name=False)
        if self.provenance:
            metadata["provenance"] = self.provenance
        write_table(path, table | self.extra, metadata)


def concatenate(parts: Sequence[Predictions]) -> Predictions:
    """Several sets of predictions of one model as one; only columns common to all are kept."""
    first = parts[0]
    names = next((part.class_names for part in parts if part.class_names), None)
    for part in parts[1:]:
        same = part.task == first.task and part.n_classes == first.n_classes
        if not same or (part.logits is None) != (first.logits is None):
            raise InputError(
                f"expected {first.n_classes} classes as {_kind(first)}, as in the first part, "
                f"got {part.n_classes} as {_kind(part)}; read such files separately"
            )
        if part.class_names and part.class_names != names:
            raise InputError(
                f"expected the classes {listed(names)}, as before, "
                f"got {listed(part.class_names)}; read both with the same `classes`"
            )

    def joined(arrays: Sequence[Array | None]) -> Array | None:
        if any(array is None for array in arrays):
            return None
        return namespace(arrays[0]).concat(list(arrays))

    if len(parts) == 1:
        return first
    columns = ("logits", "probs", "labels", "ids")
    own = {name: joined([getattr(part, name) for part in parts]) for name in columns}
    shared = [name for name in first.extra if all(name in part.extra for part in parts)]
    extra = {name: joined([part.extra[name] for part in parts]) for name in shared}
    return dataclasses.replace(first, **own, extra=extra)


def id_texts(ids: Any) -> np.ndarray:
    """Ids as text, since text files store numbers as text."""
    ids = to_numpy(ids)
    whole = ids.dtype.kind == "f" and (ids == np.floor(ids)).all()
    return ids.astype(np.int64 if whole else ids.dtype).astype(str)


def like_given(probs: Array, given: Predictions) -> Array:
    """Probabilities (N, 2) as one column, class 1, if that is how the predictions were given."""
    return probs[:, 1] if given.one_column else probs


def _kind(predictions: Predictions) -> str:
    return "logits" if predictions.logits is not None else "probabilities"


def _log_of_probs(probs: Array, floor: float | None, zeros: bool = False) -> Array:
    xp = namespace(probs)
    if floor is not None:
        if not 0 < floor < 1 / probs.shape[1]:
            raise InputError(
                f"expected a floor between 0 and 1/{probs.shape[1]}, got {floor}; try 1e-12"
            )
        probs = xp.clip(probs, floor, 1.0)
        probs = probs / xp.sum(probs, axis=1, keepdims=True)
    elif not zeros and bool(xp.any(probs == 0)):
        row, column = np.argwhere(to_numpy(probs == 0))[0]
        raise InputError(
            f"expected probabilities > 0, got 0 at row {row}, column {column}: "
            "its logarithm is -inf; give the logits, or a floor such as 1e-12"
        )
    with np.errstate(divide="ignore"):
        return xp.log(probs)
