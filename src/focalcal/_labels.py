"""Labels as class indices: strings and categoricals are looked up among the class names."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from focalcal._arrays import Array, as_array, namespace
from focalcal.errors import InputError, InputWarning

Names = tuple[str, ...]
BOOLEANS = ("False", "True"), ("false", "true"), ("FALSE", "TRUE")
"""How pandas, JSON and R write booleans as text."""


def encode(
    labels: Any, n_classes: int, class_names: Sequence[str] | None = None, name: str = "labels"
) -> tuple[Array, Names | None]:
    """(indices, class names): numbers pass through, strings and categoricals become indices.

    The names are those given, those of the categorical, or, if there are as many different strings
    as classes, the strings in alphabetical order, as scikit-learn orders its columns.

    >>> encode(["b", "a", "b"], 2, ("b", "a"))
    (array([0, 1, 0]), ('b', 'a'))
    """
    names = None if class_names is None else tuple(map(str, class_names))
    codes, categories = categorical(labels)
    if categories is not None:
        missing = np.flatnonzero(codes < 0)
        if len(missing):
            raise InputError(f"expected a label in every row, got none at row {missing[0]}")
        if names is None:
            if len(categories) != n_classes:
                raise InputError(
                    f"expected {n_classes} categories in {name}, one per class, "
                    f"got {len(categories)}: {_shown(categories)}; give class_names"
                )
            return codes, categories
        texts = np.array(categories, dtype=object)[codes]
    else:
        texts = as_array(labels)
        if not is_text(texts):
            return texts, names
    if names is None:
        names = _alphabetical(texts, n_classes, name)
    return _look_up(texts, names, name), names


def is_text(labels: Any) -> bool:
    """Whether an array holds strings."""
    if not isinstance(labels, np.ndarray) or labels.ndim != 1:
        return False
    if labels.dtype.kind in "UT":
        return True
    return labels.dtype == object and len(labels) > 0 and all(isinstance(x, str) for x in labels)


def looks_like_probabilities(logits: Array) -> bool:
    """Whether values given as logits (N, K) lie in [0, 1] and sum to 1 in every row."""
    xp = namespace(logits)
    for part in (logits[:64], logits):  # nearly all logits show it in their first rows
        if bool(xp.min(part) < 0) or bool(xp.max(part) > 1):
            return False
    return bool(xp.max(xp.abs(xp.sum(logits, axis=1) - 1)) < 1e-3)


def categorical(labels: Any) -> tuple[np.ndarray, Names | None]:
    """Codes and categories of a pandas categorical or a polars Enum column."""
    inner = getattr(labels, "cat", labels)  # a pandas Series keeps its categorical here
    if hasattr(inner, "codes") and hasattr(inner, "categories"):
        return np.asarray(inner.codes).astype(np.int64), tuple(map(str, inner.categories))
    if type(getattr(labels, "dtype", None)).__name__ == "Enum":
        categories = tuple(labels.dtype.categories)
        place = {category: i for i, category in enumerate(categories)}
        return np.array([place.get(x, -1) for x in labels.to_list()], dtype=np.int64), categories
    return np.empty(0, np.int64), None


def _alphabetical(texts: np.ndarray, n_classes: int, name: str) -> Names:
    found = tuple(sorted(map(str, set(texts.tolist()))))
    for booleans in BOOLEANS:  # their order is certain, and one of them may be missing
        if n_classes == 2 and set(found) <= set(booleans):
            return booleans
    if len(found) != n_classes:
        raise InputError(
            f"expected {n_classes} different {name}, one per class, got {len(found)}: "
            f"{_shown(found)}; give the class names in the order of the columns (--classes)"
        )
    warnings.warn(
        f"{name} are text: the columns are assumed to be {_shown(found)}, in alphabetical order; "
        "give the class names (--classes) if they are not",
        InputWarning,
        stacklevel=4,
    )
    return found


def _look_up(texts: np.ndarray, names: Names, name: str) -> np.ndarray:
    place = {text: i for i, text in enumerate(names)}
    if len(place) != len(names):
        raise InputError(
            f"expected distinct class names to look up {name} in, got {_shown(names)}; "
            "give class indices instead"
        )
    codes = np.array([place.get(str(text), -1) for text in texts], dtype=np.int64)
    unknown = np.flatnonzero(codes < 0)
    if len(unknown):
        raise InputError(
            f"expected {name} among {_shown(names)}, got {str(texts[unknown[0]])!r} "
            f"at row {unknown[0]}"
        )
    return codes


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
