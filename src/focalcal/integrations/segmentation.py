"""Dense predictions, such as semantic segmentation: every pixel that has a label is a sample."""

from __future__ import annotations

from typing import Any

from focalcal._arrays import Array, as_array, namespace
from focalcal.calibrators.base import Calibrator
from focalcal.errors import InputError

IGNORE_INDEX = -100


def pixels(values: Any, labels: Any, ignore_index: int = IGNORE_INDEX) -> tuple[Array, Array]:
    """Logits or probabilities (N, C, d1..dk) and labels (N, d1..dk) as rows (M, C) and (M,).

    Pixels labelled `ignore_index` are left out. Calibrators, metrics and `CalibrationStats` take
    the result, so that images can be streamed batch by batch.

    >>> import numpy as np
    >>> z, y = pixels(np.zeros((2, 3, 4, 4)), np.full((2, 4, 4), -100))
    >>> z.shape, y.shape
    ((0, 3), (0,))
    """
    values, labels = as_array(values), as_array(labels)
    shape = tuple(values.shape)
    if values.ndim < 2 or tuple(labels.shape) != (shape[0], *shape[2:]):
        raise InputError(
            "expected values (N, C, d1..dk) and labels (N, d1..dk), "
            f"got {shape} and {tuple(labels.shape)}"
        )
    rows = _rows(values)
    xp = namespace(labels)
    if not xp.isdtype(labels.dtype, ("bool", "integral")):
        raise InputError(
            f"expected integer labels, got dtype {labels.dtype}; convert class indices to "
            "integers, as with .astype(int) or .long()"
        )
    # In uint8 the label −100 would be class 156, and 255 in int8 would be −1.
    flat = xp.astype(xp.reshape(labels, (-1,)), xp.int64, copy=False)
    kept = flat != ignore_index
    return rows[kept], flat[kept]


def calibrated_pixels(calibrator: Calibrator, logits: Any) -> Array:
    """Calibrated probabilities (N, C, d1..dk) of logits of that shape."""
    logits = as_array(logits)
    n, c, *rest = logits.shape
    proba = calibrator.predict_proba(_rows(logits))
    xp = namespace(proba)
    return xp.moveaxis(xp.reshape(proba, (n, *rest, c)), -1, 1)


def _rows(values: Array) -> Array:
    xp = namespace(values)
    return xp.reshape(xp.moveaxis(values, 1, -1), (-1, values.shape[1]))
