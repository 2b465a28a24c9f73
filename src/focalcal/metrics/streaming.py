"""Metrics of merged statistics, with error bounds, and the JSON form of statistics.

Means and fixed-bin errors are exact; metrics that depend on the order of confidences are computed
from a fine histogram and have an error bound.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np

from focalcal._checks import check_whole
from focalcal.bins import Bins, check_bins
from focalcal.errors import FileFormatError, InputError
from focalcal.metrics.declare import METRICS
from focalcal.stats import PARTS, SETTINGS, SUMS, TABLES, CalibrationStats

_FORMAT = "focalcal.CalibrationStats"
_VERSION = 2
_OLD_TABLES = {"top": "fixed", "classes": "columns", "fine": "fine"}
_OLD_SUMS = ("nll", "zero", "entropy", "true_class_probability")
_ALWAYS = {"weight", "brier", "high", *_OLD_SUMS}


@dataclasses.dataclass(frozen=True)
class Streamed:
    """A metric of a stream: the value of one pass over all samples lies within ±error_bound.

    A bound of 0 means exact but for float64 rounding.
    """

    value: float
    error_bound: float
    n: int


@dataclasses.dataclass(frozen=True)
class StreamedEvaluation:
    """What `CalibrationStats.compute` returns; `result["ece"]` is a `Streamed`."""

    n: int
    n_classes: int
    metrics: dict[str, Streamed]
    reliability: Bins

    def __getitem__(self, name: str) -> Streamed:
        return self.metrics[name]


def compute(stats: CalibrationStats) -> StreamedEvaluation:
    """All metrics of the samples seen so far."""
    if stats.n == 0:
        raise InputError("expected at least one sample, got none; call update first")
    streams = stats.exact is None
    metrics = {}
    for name, m in METRICS.items():
        if not stats.has(m.needs) or (streams and not m.streams):
            continue
        bound = m.bound(stats) if streams and m.bound is not None else 0.0
        metrics[name] = Streamed(float(m.of(stats)), bound, stats.n)
    columns = len(stats.classes.counts)
    return StreamedEvaluation(stats.n, columns, metrics, stats.top)


def to_json(stats: CalibrationStats) -> str:
    """The state as JSON text; floats keep every digit. A sum that is unknown is left out."""
    tables = {
        name: {part: getattr(b, part).tolist() for part in PARTS}
        for name, b in stats.tables().items()
    }
    sums = {name: v.tolist() for name, v in stats.sums.items() if not np.isnan(v).any()}
    state = {"format": _FORMAT, "version": _VERSION, **stats.settings(), "n": stats.n}
    return json.dumps(state | {"sums": sums} | tables, allow_nan=False)


def from_json(text: str) -> CalibrationStats:
    """The statistics that `to_json` wrote; anything else is a FileFormatError."""
    try:
        state = json.loads(text)
    except ValueError as e:
        raise FileFormatError(f"expected JSON of a CalibrationStats, got: {e}") from e
    if not isinstance(state, dict) or state.get("format") != _FORMAT:
        raise FileFormatError(f"expected JSON with format {_FORMAT!r}, got something else")
    if state.get("version") == 1:
        state = _from_version_1(state)
    if state.get("version") != _VERSION:
        raise FileFormatError(
            f"expected version {_VERSION}, got {state.get('version')!r}; "
            "read it with the focalcal that wrote it"
        )
    _expect_keys(state, {"format", "version", *SETTINGS, "n", "sums", *TABLES}, "the file")
    for name in TABLES:
        _expect_keys(state[name], set(PARTS), name)
    _expect_keys(state["sums"], set(SUMS), "sums", optional=set(SUMS) - _ALWAYS)
    try:
        size = check_whole(state["n_classes"], "classes", 1) * check_bins(state["bins"])
        if size > len(text):  # before memory is taken for them
            raise InputError(f"{state['n_classes']} classes with {state['bins']} bins")
        stats = CalibrationStats(**{name: state[name] for name in SETTINGS})
    except (TypeError, ValueError, OverflowError) as error:
        raise FileFormatError(f"expected valid settings, got: {error}") from error
    stats.n = state["n"]
    if type(stats.n) is not int or stats.n < 0:
        raise FileFormatError(f"expected n as a whole number >= 0, got {stats.n!r}")
    # A metric that was declared after the file was written is unknown, not 0.
    stats.sums = {name: np.full(2, np.nan) for name in SUMS} | {
        name: numbers(v, (2,), f"sums.{name}") for name, v in state["sums"].items()
    }
    for name, b in stats.tables().items():
        parts = [numbers(state[name][p], b.counts.shape, f"{name}.{p}") for p in PARTS]
        setattr(stats, name, Bins(b.edges, *parts))
    _check_consistent(stats)
    return stats


def _from_version_1(state: dict[str, Any]) -> dict[str, Any]:
    """The state of a file of focalcal 0.1, whose one column was the forecast of an event."""
    renamed = {new: state.get(old) for new, old in _OLD_TABLES.items()}
    s, event = state.get("sums"), state.get("n_classes") == 1
    try:
        sums = {name: [s[f"{name}_wrong"], s[f"{name}_right"]] for name in _OLD_SUMS}
        right, high = s["right"], s["high_correct"]
        if event:  # "right" was y_prob > 1/2 == y_true; how losses split by the event is unknown
            right = sum(state["fixed"]["correct_sums"])
            sums = {name: [sum(pair), 0.0] for name, pair in sums.items()}
        sums |= {
            "weight": [max(s["weight"] - right, 0.0), right],
            "brier": [s["brier"], 0.0],  # only their sum was kept
            "high": [max(s["high"] - high, 0.0), high],
        }
    except (KeyError, TypeError) as e:
        raise FileFormatError(f"wrong fields in sums of version 1: {e}") from e
    known = {k: v for k, v in state.items() if k not in _OLD_TABLES.values()}
    kind = "event" if event else "classes"
    return known | renamed | {"version": _VERSION, "kind": kind, "sums": sums}


def _check_consistent(stats: CalibrationStats) -> None:
    """FileFormatError where parts cannot come from the same samples; rounding is allowed."""
    s, most = stats.sums, 1 + 1e-6
    weight = s["weight"].sum()
    names = ("zero", "true_class_probability", "high")
    wrong = [name for name in names if s[name].sum() > weight * most]
    for name, b in stats.tables().items():
        fits = [
            np.allclose(b.total, weight, rtol=1e-6, atol=0),
            (b.correct_sums <= b.counts * most).all(),
            (b.confidence_sums <= b.counts * b.edges[1:] * most).all(),
        ]
        wrong += [] if all(fits) else [name]
    if not np.allclose(stats.top.correct_sums.sum(), s["weight"][1], rtol=1e-6, atol=0):
        wrong.append("weight")
    if wrong or (stats.n == 0) != (weight == 0):
        raise FileFormatError(
            f"expected statistics of one set of samples, got {', '.join(wrong) or 'n'} that "
            "disagree with the weight; the file is damaged, write it again"
        )


def _expect_keys(found: Any, expected: set[str], where: str, optional: Any = frozenset()) -> None:
    keys = set(found) if isinstance(found, dict) else set()
    missing, extra = sorted(expected - optional - keys), sorted(keys - expected)
    if missing or extra or not isinstance(found, dict):
        raise FileFormatError(f"wrong fields in {where}: missing {missing}, unknown {extra}")


def numbers(values: Any, shape: tuple[int, ...], where: str) -> np.ndarray:
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as e:
        raise FileFormatError(f"expected numbers in {where}, got: {e}") from e
    if array.shape != shape:
        raise FileFormatError(f"expected {where} of shape {shape}, got {array.shape}")
    if not (np.isfinite(array).all() and (array >= 0).all()):
        raise FileFormatError(f"expected finite numbers >= 0 in {where}, got {array.min()}")
    return array
