"""Columns as values: numbers for logits and probabilities, class indices or strings for labels."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from focalcal.errors import FileFormatError
from focalcal.formats import arrow
from focalcal.formats.classes import MissingLabel, is_number, number

_LIST = re.compile(r"\s*\[[-+0-9.,eE\s]*\]\s*")


def plain(column: Any) -> np.ndarray:
    """Any column as an array; values that are not numbers remain strings or Python objects."""
    return arrow.column_to_plain(column) if arrow.is_column(column) else np.asarray(column)


def numbers(column: Any, where: str) -> np.ndarray:
    """A column as numbers (N,) or (N, M); any other value is an error that names its row."""
    if arrow.is_column(column):
        return arrow.column_to_numpy(column, where)
    if column.ndim == 0:
        raise FileFormatError(f"{where}: expected a value for each sample, got a single one")
    if column.dtype != object:
        return column
    column = _lists(column)
    if any(isinstance(value, list | tuple | np.ndarray) for value in column):
        return _stacked(column, where)
    try:
        # None would pass as NaN
        return np.array(column.tolist() if None not in column else [""], dtype=np.float64)
    except (ValueError, TypeError):
        row = next((i for i, value in enumerate(column) if not is_number(value)), None)
        if row is None:
            return np.array([number(value) for value in column])
        raise FileFormatError(
            f"{where}: expected a number, got {column[row]!r} at row {row}; fill or drop such rows"
        ) from None


def _lists(column: np.ndarray) -> np.ndarray:
    """Strings such as "[0.1, 0.9]" or "[0.1 0.9]", written for lists by data frames, as lists."""
    if not all(isinstance(text, str) and _LIST.fullmatch(text) for text in column):
        return column
    found = np.empty(len(column), dtype=object)
    found[:] = [text.strip("[] \n").replace(",", " ").split() for text in column]
    return found


def _stacked(column: np.ndarray, where: str) -> np.ndarray:
    lengths = [len(v) if isinstance(v, list | tuple | np.ndarray) else -1 for v in column]
    for row, length in enumerate(lengths):
        if length != lengths[0]:
            got = f"{length}" if length >= 0 else repr(column[row])
            raise FileFormatError(
                f"{where}: expected lists of length {lengths[0]}, as in row 0, "
                f"got {got} at row {row}"
            )
    for row, values in enumerate(column):
        if not all(is_number(value) for value in values):
            raise FileFormatError(f"{where}: expected lists of numbers, got another at row {row}")
    stacked = np.array([np.asarray(values) for values in column])
    if stacked.dtype.kind in "biuf":
        return stacked
    return np.array([[number(value) for value in values] for values in column])


def labels(column: Any, where: str) -> np.ndarray:
    """Numbers (N,) or (N, M), or strings (N,) of dtype object.

    `classes.class_labels` decides which are class indices and which are names.
    """
    if arrow.is_column(column) and not arrow.is_list(column.type):
        column = plain(column)
    if not arrow.is_column(column) and column.dtype == object and column.ndim == 1:
        unknown = np.array([x is None or (isinstance(x, float) and x != x) for x in column], bool)
        if unknown.any() and not all(isinstance(x, str) for x in column[~unknown]):
            raise MissingLabel(where, unknown)
        # Beside strings they are strings too, as "NA" is: `classes.refuse_missing` finds them all.
        column = _lists(np.where(unknown, "", column))
        if all(isinstance(value, str) for value in column):
            return column
        if all(isinstance(value, bool) for value in column):
            column = column.astype(bool)
    values = numbers(column, where)
    if values.dtype.kind == "f" and np.isnan(values).any():
        raise MissingLabel(where, np.isnan(values).reshape(len(values), -1).any(axis=1))
    return values
