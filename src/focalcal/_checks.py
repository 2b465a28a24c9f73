"""Validation shared by metrics, calibrators and files: every message names the row or column."""

from __future__ import annotations

import contextlib
import operator
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from focalcal._arrays import Array, add_up, as_array, as_float, both_columns, namespace, to_numpy
from focalcal._labels import encode
from focalcal.errors import FocalcalError, InputError, InputWarning

SUM_TOLERANCE = {"float64": 1e-5, "float32": 1e-4}
"""How far the sum of a row may be from 1 for it to be used unchanged."""
RESCALED = 0.01, 0.05
"""Rows whose sum is off by up to 0.01 per class, and at most 0.05, are rescaled, as for
probabilities rounded to two decimals or stored in half precision."""


@contextlib.contextmanager
def checking(given: object) -> Iterator[None]:
    """InputError also for settings of a type that their checks cannot compare, as text and 0."""
    try:
        yield
    except FocalcalError:
        raise
    except (TypeError, ValueError) as error:
        raise InputError(
            f"expected settings of the documented types, got {given!r}: {error}"
        ) from error


def check_gamma(gamma: float) -> float:
    """γ as a float; γ ≤ −1, NaN and infinity are errors (the map's denominator reaches zero)."""
    try:
        gamma = float(() if isinstance(gamma, str) else gamma)
    except (TypeError, ValueError):
        raise InputError(
            f"expected gamma as one number, got {gamma!r}; for a gamma that depends on the "
            "probability use SampleDependentFocalLoss, for one gamma per sample focal_loss; class "
            "weights are passed as weight="
        ) from None
    if not (-1.0 < gamma < float("inf")):
        raise InputError(f"expected a finite gamma > -1, got {gamma}; choose gamma > -1")
    return gamma


def check_whole(value: Any, name: str, least: int) -> int:
    """A whole number ≥ `least` as an int, for example a number of bins."""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if isinstance(value, bool) or number < least:
        raise InputError(f"expected a whole number of {name} >= {least}, got {value!r}")
    return number


def check_level(level: float) -> None:
    """Refuse a level of confidence that is not between 0 and 1."""
    if not 0 < level < 1:
        raise InputError(f"expected a level between 0 and 1, such as 0.95, got {level!r}")


def check_logits(logits: Any) -> Array:
    """Finite float logits of shape (N, C), or (N,) / (N, 1) for a binary problem; N ≥ 1."""
    return _check_all_finite(_check_matrix(logits, "logits"), "logits")


def check_probs(probs: Any, name: str = "y_prob", *, sums: bool = True) -> Array:
    """Probabilities in [0, 1]; rows of a (N, C) array sum to one unless `sums` is false.

    Rows that miss 1 by rounding (see `RESCALED`) are rescaled with an `InputWarning`.
    """
    probs = _check_matrix(probs, name)
    xp = namespace(probs)
    # min and max also catch NaN: every comparison with it is false.
    if not bool((xp.min(probs) >= 0) & (xp.max(probs) <= 1)):
        _check_all_finite(probs, name)
        tolerance = 1e-6  # rounding of a softmax; values this far out are kept, not clipped
        bad = to_numpy((probs < -tolerance) | (probs > 1 + tolerance))
        if bad.any():
            at = np.argwhere(bad)[0]
            raise InputError(
                f"expected {name} in [0, 1], got {float(probs[tuple(at.tolist())]):.6g} "
                f"at {_where(at)}; pass logits through a softmax, divide percentages by 100"
            )
        probs = xp.clip(probs, 0, 1)
    if sums and probs.ndim == 2 and probs.shape[1] > 1:
        return _rows_of_one(probs, name)
    return probs


def _rows_of_one(probs: Array, name: str) -> Array:
    """Rows (N, C) that sum to 1, rescaled if rounding made them miss it."""
    xp = namespace(probs)
    tolerance = SUM_TOLERANCE["float32" if probs.dtype == xp.float32 else "float64"]
    # A product with ones is several times as fast as the sum, but loses digits in long rows.
    if xp is np and np.abs(probs @ np.ones_like(probs[0]) - 1).max() <= tolerance:
        return probs
    total = add_up(probs, axis=1)[:, 0]
    off = xp.abs(total - 1)
    worst = float(xp.max(off))
    if worst <= tolerance:
        return probs
    per_class, most = RESCALED
    if not worst <= min(per_class * probs.shape[1], most) * (1 + 1e-6):
        row = int(xp.argmax(off))
        raise InputError(
            f"expected rows of {name} to sum to 1, got {float(total[row]):.6g} at row {row}; "
            "pass logits through a softmax, or name the multi-label task"
        )
    # The same text for every part of a stream, so that the command line prints it once.
    warnings.warn(
        f"rows of {name} do not sum to 1, as with half precision or few decimals; they were "
        f"rescaled to sum to 1, which is done up to a difference of {most}",
        InputWarning,
        stacklevel=3,
    )
    return probs / total[:, None]


def check_labels(labels: Any, n: int, n_classes: int, name: str = "y_true") -> Array:
    """Labels (N,) of any integer type or bool in 0..n_classes−1, returned as int64.

    Strings and categoricals become the indices of their classes. int64 because 8-bit types cannot
    hold 200 classes in a comparison, and torch treats uint8 indices as a mask and has no arithmetic
    for its wider unsigned types.
    """
    given = as_array(encode(labels, n_classes, name=name)[0])
    xp = namespace(given)
    if given.ndim != 1 or given.shape[0] != n:
        raise InputError(f"expected {name} of shape ({n},), got {tuple(given.shape)}")
    if not xp.isdtype(given.dtype, ("bool", "integral")):
        raise InputError(
            f"expected integer {name}, got dtype {given.dtype}; "
            "convert class indices to integers, as with .astype(int) or .long()"
        )
    labels = xp.astype(given, xp.int64, copy=False)
    if bool((xp.min(labels) < 0) | (xp.max(labels) >= n_classes)):
        row = int(np.flatnonzero(to_numpy((labels < 0) | (labels >= n_classes)))[0])
        raise InputError(
            f"expected {name} in 0..{n_classes - 1}, got {int(given[row])} at row {row}; "
            "number the classes from 0, or name them (--classes)"
        )
    return labels


def check_classes(y_true: Any, y_prob: Any) -> tuple[np.ndarray | None, np.ndarray]:
    """Labels (N,), if given, and probabilities (N, K) as NumPy; one column is class 1 of two."""
    probs = to_numpy(both_columns(check_probs(y_prob)))
    if y_true is None:
        return None, probs
    return to_numpy(check_labels(y_true, *probs.shape)), probs


def check_weights(sample_weight: Any, n: int, most: float = float("inf")) -> Array:
    """Finite weights (N,) ≥ 0 with a positive sum, scaled down to `most` if that is larger."""
    weight = _check_all_finite(_check_numbers(sample_weight, "sample_weight"), "sample_weight")
    if weight.ndim != 1 or weight.shape[0] != n:
        raise InputError(f"expected sample_weight of shape ({n},), got {tuple(weight.shape)}")
    xp = namespace(weight)
    if bool(xp.min(weight) < 0):
        row = int(xp.argmin(weight))
        raise InputError(f"expected sample_weight >= 0, got {float(weight[row])} at row {row}")
    with np.errstate(over="ignore"):
        total = float(xp.sum(weight, dtype=xp.float64))
    if not total > 0:
        raise InputError("expected sample_weight with a positive sum, got all zeros")
    if total <= most:
        return weight
    share = weight / xp.max(weight)  # the total may be infinite
    return share * (most / float(xp.sum(share, dtype=xp.float64)))


def _check_matrix(x: Any, name: str) -> Array:
    x = _check_numbers(x, name)
    if x.ndim not in (1, 2) or 0 in x.shape:
        raise InputError(
            f"expected {name} of shape (N, classes) or (N,) with N >= 1, got {tuple(x.shape)}"
        )
    return x


def _check_numbers(x: Any, name: str) -> Array:
    x = as_array(x)
    if not namespace(x).isdtype(x.dtype, ("bool", "integral", "real floating")):
        raise InputError(f"expected numbers in {name}, got dtype {x.dtype}; convert it first")
    return as_float(x)


def _check_all_finite(x: Array, name: str) -> Array:
    xp = namespace(x)
    # A finite sum means that every term is finite, and needs no temporary of the size of x. As a
    # sum of finite terms may overflow, each term is checked if the sum is not finite.
    with np.errstate(all="ignore"):
        # einsum sums three times as fast as np.sum.
        total = np.einsum(x, list(range(x.ndim)), []) if xp is np else xp.sum(x)
        finite = bool(xp.isfinite(total))
    if not finite and (bad := ~to_numpy(xp.isfinite(x))).any():
        at = np.argwhere(bad)[0]
        value = float(x[tuple(at.tolist())])
        advice = "remove such rows"
        if name == "logits" and np.isinf(value):
            advice += ", or give probabilities instead, which may be 0 or 1"
        raise InputError(f"expected finite {name}, got {value} at {_where(at)}; {advice}")
    return x


def _where(index: np.ndarray) -> str:
    row = f"row {int(index[0])}"
    return row if len(index) == 1 else f"{row}, column {int(index[1])}"
