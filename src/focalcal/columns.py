"""Predictions of a classifier as columns, one value per sample: the input of every metric.

Predictions come in one of three kinds:

* a classifier's probabilities (N, K) or logits (N, K): `confidence` is the largest probability,
  `correct` whether the label is its (first) class;
* one column (N,) or (N, 1), the probability or logit of class 1 of a binary classifier: the same
  as [1 − p, p], except that the Brier score counts class 1 only, as scikit-learn does;
* the forecast of an event (N,), such as "the top prediction is right": `confidence` is the
  forecast itself and `correct` whether the event happened.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from focalcal import kernels
from focalcal._arrays import Array, as_array, both_columns, detach, is_torch, to_numpy, two_columns
from focalcal._blocks import map_blocks
from focalcal._checks import SUM_TOLERANCE, check_labels, check_logits, check_probs, check_weights
from focalcal.errors import InputError

BLOCK = 1 << 17
"""Numbers per block: small enough for the cache, large enough to amortise Python's overhead."""
RUN = 16
"""Blocks accumulated in one set of tables."""


@dataclasses.dataclass(frozen=True)
class Columns:
    """The values per sample that metrics read; all vectors are (n,).

    confidence: of the predicted class (or the event), in the precision of the input; correct: bool;
    nll: −ln p_y; entropy: in nats; brier: the squared error. The last three are None if only the
    top label is needed. probs: (n, K), for class-wise counts.
    """

    confidence: np.ndarray
    correct: np.ndarray
    nll: np.ndarray | None = None
    entropy: np.ndarray | None = None
    brier: np.ndarray | None = None
    probs: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.confidence)


@dataclasses.dataclass(frozen=True)
class Input:
    """Checked predictions: values (N, K) on any device, labels (N,), weights (N,) or None.

    kind: "classes", "binary" (one column was given) or "event", whose labels are 0 where it
    happened, else −1; logits: whether the values are logits; quick: whether compiled loops are
    used; top: confidence and correctness, if the checks computed them.
    """

    values: Array
    labels: np.ndarray
    weights: np.ndarray | None
    kind: str
    logits: bool
    quick: bool
    top: tuple[np.ndarray, np.ndarray] | None = None

    def __len__(self) -> int:
        return int(self.values.shape[0])

    @property
    def n_classes(self) -> int:
        """Columns of a classifier, 2 for a binary one, 1 for the forecast of an event."""
        return int(self.values.shape[1])

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of statistics of these predictions."""
        return {"n_classes": 1 if self.kind == "binary" else self.n_classes, "kind": self.kind}

    @property
    def dtype(self) -> Any:
        """The NumPy dtype of the values."""
        return np.float32 if "float32" in str(self.values.dtype) else np.float64

    @property
    def block(self) -> int:
        """Rows processed at a time."""
        return max(BLOCK // self.n_classes // 64, 1) * 64

    def take(self, rows: np.ndarray) -> Input:
        """The predictions of some rows (indices)."""
        return dataclasses.replace(
            self,
            values=self.values[rows],
            labels=self.labels[rows],
            weights=None if self.weights is None else self.weights[rows],
            top=None if self.top is None else tuple(column[rows] for column in self.top),
        )

    def columns(self, rows: slice, scores: bool = True) -> Columns:
        """The columns of some rows; without `scores` only the top label, if that is cheaper."""
        values, y = to_numpy(self.values[rows]), self.labels[rows]
        if self.kind == "event":
            return _event_columns(values[:, 0], y == 0)
        kernel, n = kernels.pick(self.quick), len(y)
        confidence, correct = np.empty(n, values.dtype), np.empty(n, bool)
        nll, entropy, brier = np.empty((3, n)) if scores or self.logits else (None, None, None)
        if self.logits:
            below, top, rest = np.array(values.T, order="C"), np.empty(n, np.int32), np.empty(n)
            kernel.below_top(below, np.finfo(values.dtype).min, top)
            p = np.exp(below)
            found = confidence, correct, rest, nll, entropy, brier
            kernel.scores_of_logits(below, p, top, y, *found)
            log_total, values = np.log1p(rest), p.T
            nll += log_total
            entropy += log_total
        else:
            if self.top is None:
                kernel.top_label(values, y, np.inf, confidence, correct)
            else:
                confidence, correct = (column[rows] for column in self.top)
            if scores:
                with np.errstate(divide="ignore"):
                    log_p = np.log(values)
                kernel.scores_of_probs(values, log_p, y, nll, entropy, brier)
        if self.kind == "binary" and brier is not None:
            brier /= 2
        return Columns(confidence, correct, nll, entropy, brier, values)


def read(
    y_true: Any,
    y_prob: Any = None,
    *,
    logits: Any = None,
    confidence: Any = None,
    sample_weight: Any = None,
    quick: bool | None = None,
) -> Input:
    """Check predictions of one of the three kinds.

    y_true: (N,) labels, or 0/1 for an event; exactly one of y_prob, logits and confidence (the
    forecast of an event, (N,)); quick: whether compiled loops are used (by size if None). `y_true`
    may also be a `Predictions`, which was checked on construction.
    """
    check_given(y_true, y_prob, logits, confidence)
    if hasattr(y_true, "as_logits"):
        return _of_predictions(y_true, sample_weight, quick)
    if logits is not None:
        return _make(check_logits(_prepare(logits)), y_true, sample_weight, True, quick)
    if confidence is not None:
        return _of_event(y_true, confidence, sample_weight, quick)
    values = _prepare(y_prob)
    if _is_plain(values):
        quick = kernels.fast(values.size) if quick is None else quick
        found = _checked_top(values, y_true, quick)
        if found is not None:
            return _input(values, found[0], sample_weight, "classes", False, quick, found[1:])
    return _make(check_probs(values), y_true, sample_weight, False, quick)


def check_given(y_true: Any, *values: Any) -> None:
    """Require exactly one of y_prob, logits and confidence, or none with `Predictions`."""
    count = sum(v is not None for v in values)
    if hasattr(y_true, "as_logits"):
        if count:
            raise InputError(
                "expected Predictions alone, which have their own values, got other values too; "
                "give predictions.labels with other values"
            )
    elif count != 1:
        raise InputError(
            "expected exactly one of y_prob, logits and confidence, got "
            f"{count} of them; give the one you have"
        )


def map_columns(data: Input, function: Any, scores: bool = True) -> list[Any]:
    """`function(blocks)` of runs of rows, results in order; blocks yields (columns, rows)."""
    size = data.block

    def run(rows: slice) -> Any:
        parts = range(rows.start, rows.stop, size)
        blocks = (slice(start, min(start + size, rows.stop)) for start in parts)
        return function((data.columns(block, scores), block) for block in blocks)

    return map_blocks(run, len(data), RUN * size)


def _make(
    values: Array, y_true: Any, sample_weight: Any, logits: bool, quick: bool | None, y: Any = None
) -> Input:
    if is_torch(values) and values.device.type == "cpu":
        values = to_numpy(values)
    one = values.ndim == 1 or values.shape[1] == 1
    values = two_columns(values) if logits else both_columns(values)
    if y is None:
        y = check_labels(y_true, values.shape[0], values.shape[1])
    y = to_numpy(y).astype(np.intp, copy=False)
    return _input(values, y, sample_weight, "binary" if one else "classes", logits, quick)


def _input(
    values: Array, y: np.ndarray, w: Any, kind: str, logits: bool, quick: Any, top: Any = None
) -> Input:
    """The checked values with their weights, which are checked here; zero weights are left out."""
    w = None if w is None else to_numpy(check_weights(w, len(y))).astype(np.float64)
    quick = kernels.fast(len(y) * values.shape[1]) if quick is None else quick
    data = Input(values, y, w, kind, logits, quick, top)
    return data if w is None or w.all() else data.take(np.flatnonzero(w))


def _of_predictions(predictions: Any, sample_weight: Any, quick: bool | None) -> Input:
    if predictions.labels is None:
        raise InputError("expected predictions with labels, got none; metrics compare with labels")
    if predictions.task == "multilabel":
        raise InputError("expected a single-label task, got multilabel; evaluate label by label")
    logits = predictions.logits is not None
    values = predictions.logits if logits else predictions.probs
    return _make(values, None, sample_weight, logits, quick, y=predictions.labels)


def _of_event(y_true: Any, confidence: Any, sample_weight: Any, quick: bool | None) -> Input:
    c = to_numpy(check_probs(_prepare(confidence), "confidence"))
    c = c[:, 0] if c.ndim == 2 and c.shape[1] == 1 else c
    if c.ndim != 1:
        raise InputError(
            f"expected confidence of shape (N,), one forecast per sample, got {c.shape}; "
            "give the probabilities of all classes as y_prob (on the command line without --event)"
        )
    y = to_numpy(check_labels(y_true, len(c), 2)).astype(np.intp) - 1
    return _input(c[:, None], y, sample_weight, "event", False, quick)


def _event_columns(c: np.ndarray, happened: np.ndarray) -> Columns:
    wide = c.astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):  # 0·ln 0 is 0
        log_c, log_rest = np.log(wide), np.log1p(-wide)
        entropy = -np.nan_to_num(wide * log_c) - np.nan_to_num((1 - wide) * log_rest)
    return Columns(
        confidence=c,
        correct=happened,
        nll=-np.where(happened, log_c, log_rest),
        entropy=entropy,
        brier=(wide - happened) ** 2,
        probs=c[:, None],
    )


def _checked_top(p: np.ndarray, y_true: Any, quick: bool) -> tuple[np.ndarray, ...] | None:
    """Labels, confidence and correctness in one pass; None if anything is wrong."""
    y = to_numpy(as_array(y_true))
    if y.shape != (len(p),) or y.dtype.kind not in "iu":
        return None
    confidence, correct = np.empty(len(p), p.dtype), np.empty(len(p), bool)
    y, tolerance = y.astype(np.intp, copy=False), SUM_TOLERANCE[p.dtype.name]

    def block(rows: slice) -> bool:
        found = confidence[rows], correct[rows]
        return kernels.pick(quick).top_label(p[rows], y[rows], tolerance, *found)

    fine = map_blocks(block, len(p), max(BLOCK // p.shape[1], 64))
    return (y, confidence, correct) if all(fine) else None


def _is_plain(x: Array) -> bool:
    plain = isinstance(x, np.ndarray) and x.dtype in (np.float32, np.float64) and x.ndim == 2
    return plain and x.shape[0] > 0 and x.shape[1] > 1


def _prepare(values: Any) -> Array:
    """An array, detached from its graph."""
    return detach(as_array(values))
