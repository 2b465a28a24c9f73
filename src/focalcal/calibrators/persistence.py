"""Calibrators as small versioned JSON files.

Numbers are written with all digits of float64, so a loaded calibrator predicts bit for bit what
the saved one did. Reading validates every field and executes nothing.
"""

from __future__ import annotations

import dataclasses
import json
import math
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from focalcal.calibrators.base import Calibrator, Diagnostics
from focalcal.errors import FileFormatError, FocalcalError, InputError
from focalcal.files import write_text

FORMAT = "focalcal-calibrator"
VERSION = 1
MAX_CLASSES = 1_000_000
"""A larger class count in a file is refused as damage."""

_FIELDS = ("format", "version", "method", "params", "n_classes", "state", "diagnostics")
_OPTIONAL = ("class_names", "decision")
"""Fields that a file may have: the names of the classes, the threshold of `focalcal decide`."""
_INFINITIES = {"inf": math.inf, "-inf": -math.inf}  # JSON has no infinity; T = ∞ is a valid fit


def to_dict(calibrator: Calibrator) -> dict[str, Any]:
    """The JSON document of a fitted calibrator."""
    check_is_fitted(calibrator, "n_classes_")
    if calibrator.task == "multilabel":
        state: dict[str, Any] = {"labels_": [to_dict(c) for c in calibrator.labels_]}
    else:
        names = (*calibrator.state, *(["floor_"] if calibrator.floor_ > 0 else []))
        state = {name: _encode(getattr(calibrator, name), name) for name in names}
    params = calibrator.get_params(deep=False)
    document = {
        "format": FORMAT,
        "version": VERSION,
        "method": calibrator.method,
        "params": {name: _encode(value, name) for name, value in params.items()},
        "n_classes": calibrator.n_classes_,
        "state": state,
        "diagnostics": _encode(dataclasses.asdict(calibrator.diagnostics_), "diagnostics"),
    }
    if getattr(calibrator, "class_names_", None) is not None:
        document["class_names"] = list(calibrator.class_names_)
    if getattr(calibrator, "decision_", None) is not None:
        document["decision"] = _encode(calibrator.decision_, "decision")
    return document


def from_dict(document: Any, methods: Mapping[str, type[Calibrator]]) -> Calibrator:
    """The calibrator a JSON document describes; FileFormatError if anything in it is off."""
    _expect_fields(document, _FIELDS, "calibrator", _OPTIONAL)
    method, version, n_classes = (document[name] for name in ("method", "version", "n_classes"))
    _expect(document["format"] == FORMAT, f"format {FORMAT!r}", document["format"])
    _expect(
        type(version) is int and version == VERSION,
        f"version {VERSION} (read others with the focalcal release that wrote them, or fit again)",
        version,
    )
    known = isinstance(method, str) and method in methods
    _expect(known, f"a method of this release ({', '.join(methods)})", method)
    possible = type(n_classes) is int and 1 <= n_classes <= MAX_CLASSES
    _expect(possible, f"n_classes in 1..{MAX_CLASSES}", n_classes)

    kind = methods[method]
    _expect_fields(document["params"], tuple(kind().get_params(deep=False)), "params")
    calibrator = kind(**_decode(document["params"], methods, arrays=False))
    task, state = calibrator.task, document["state"]
    _expect(task in ("auto", "multilabel"), "task 'auto' or 'multilabel'", task)
    calibrator.n_classes_ = n_classes
    calibrator.diagnostics_ = _diagnostics(document["diagnostics"])
    if "class_names" in document:
        calibrator.class_names_ = _class_names(document["class_names"], n_classes)
    if "decision" in document:
        calibrator.decision_ = _decision(document["decision"])
    _expect(isinstance(state, dict), "state as an object", state)
    if task != "multilabel":
        state = kind._upgraded(state)
    names = ("labels_",) if task == "multilabel" else calibrator.state
    _expect_fields(state, names, "state", optional=("floor_",))  # not written where there is none
    for name, value in state.items():
        setattr(calibrator, name, _decode(value, methods))
    try:
        calibrator._check_params()
        _check_fitted(calibrator)
    except FileFormatError:
        raise
    except (FocalcalError, ValueError, TypeError, LookupError, ArithmeticError) as error:
        raise FileFormatError(
            f"expected a consistent {method} calibrator for {n_classes} classes, got: {error}"
        ) from error
    return calibrator


def save(calibrator: Calibrator, path: Any) -> None:
    """Write a fitted calibrator; the old file stays until the new one is complete."""
    write_text(path, json.dumps(to_dict(calibrator), indent=1, allow_nan=False) + "\n")


def load(path: Any, methods: Mapping[str, type[Calibrator]]) -> Calibrator:
    """Read what `save` wrote."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (FileNotFoundError, IsADirectoryError, UnicodeDecodeError) as error:
        raise FileFormatError(f"expected a calibrator file at {path}: {error}") from error
    try:
        document = json.loads(
            text, parse_constant=_refuse_constant, object_pairs_hook=_refuse_duplicates
        )
        return from_dict(document, methods)
    except FileFormatError as error:
        raise FileFormatError(f"{path}: {error}") from error
    # JSONDecodeError is a ValueError; 10^400 as an integer overflows when it becomes a float.
    except (ValueError, RecursionError, OverflowError) as error:
        raise FileFormatError(f"{path}: expected valid JSON: {error}") from error


def _encode(value: Any, name: str) -> Any:
    """JSON for settings and fitted values; calibrators inside calibrators become documents."""
    if isinstance(value, Calibrator):
        return to_dict(value)
    if isinstance(value, Mapping):
        return {str(key): _encode(item, f"{name}.{key}") for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return _encode(value.tolist(), name)
    if isinstance(value, (list, tuple, range)):
        return [_encode(item, name) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        if math.isnan(value):
            raise InputError(f"expected finite values to save, got NaN in {name}; fit again")
        return "inf" if value > 0 else "-inf"
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise InputError(f"expected settings that JSON can hold, got {type(value).__name__} in {name}")


def _decode(value: Any, methods: Mapping[str, type[Calibrator]], arrays: bool = True) -> Any:
    """Undo `_encode`; lists of numbers become float64 arrays if `arrays`."""
    if isinstance(value, dict):
        if value.get("format") == FORMAT:
            return from_dict(value, methods)
        return {key: _decode(item, methods, arrays) for key, item in value.items()}
    if isinstance(value, list):
        texts = [v for v in value if isinstance(v, str) and v not in _INFINITIES]
        objects = len(texts) + sum(isinstance(v, dict) for v in value)
        if not arrays or 0 < objects == len(value):
            return [_decode(item, methods, arrays) for item in value]
        try:
            return np.asarray(_numbers(value), dtype=np.float64)
        except ValueError as error:
            raise FileFormatError(f"expected a rectangular array: {error}") from error
    if isinstance(value, float):
        return _numbers(value)
    return _INFINITIES.get(value, value) if isinstance(value, str) else value


def _numbers(value: Any) -> Any:
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    if isinstance(value, str) and value in _INFINITIES:
        return _INFINITIES[value]
    good = type(value) in (int, float) and math.isfinite(value)  # 1e999 parses as infinity
    _expect(good, "finite numbers", value)
    return float(value)


def _diagnostics(value: Any) -> Diagnostics:
    kinds = {
        "objective": str,
        "before": (int, float),
        "after": (int, float),
        "iterations": int,
        "converged": bool,
        "at_edge": bool,
        "n": int,
        "n_per_class": list,
        "warnings": list,
    }
    _expect_fields(value, tuple(kinds), "diagnostics")
    value = {key: _INFINITIES.get(v, v) if isinstance(v, str) else v for key, v in value.items()}
    for name, kind in kinds.items():
        good = isinstance(value[name], kind) and (kind is bool or type(value[name]) is not bool)
        _expect(good, f"diagnostics.{name} as {kind}", value[name])
    counts, notes = tuple(value["n_per_class"]), tuple(value["warnings"])
    whole = all(type(c) is int for c in counts)
    _expect(whole, "whole numbers in diagnostics.n_per_class", counts)
    _expect(all(isinstance(w, str) for w in notes), "texts in diagnostics.warnings", notes)
    return Diagnostics(**{**value, "n_per_class": counts, "warnings": notes})


def _class_names(value: Any, n_classes: int) -> tuple[str, ...]:
    listed = isinstance(value, list) and all(isinstance(name, str) for name in value)
    _expect(listed and len(value) == n_classes, f"{n_classes} texts in class_names", value)
    return tuple(value)


def _decision(value: Any) -> dict[str, Any]:
    at = value.get("threshold") if isinstance(value, dict) else None
    _expect(type(at) in (int, float) and 0 <= at <= 1, "decision.threshold in [0, 1]", at)
    return value


def _check_fitted(calibrator: Calibrator) -> None:
    """Refuse wrong sizes and types, and parameters whose predictions are not finite."""
    k = calibrator.n_classes_
    if calibrator.task == "multilabel":
        parts = calibrator.labels_
        alike = len(parts) == k and all(type(c) is type(calibrator) for c in parts)
        _expect(alike, f"{k} calibrators of one kind in labels_", [type(c) for c in parts])
        return
    for name, shape in calibrator._state_shapes().items():
        value = getattr(calibrator, name)
        _expect(np.shape(value) == shape, f"{name} of shape {shape}", np.shape(value))
        _expect(np.asarray(value).dtype.kind in "fiu", f"numbers in {name}", value)
    calibrator._check_state()
    floor = calibrator.floor_
    _expect(isinstance(floor, float) and 0 <= floor < math.inf, "a floor_ of at least 0", floor)
    with np.errstate(all="ignore"):
        probs = calibrator.predict_proba(np.linspace(-1.0, 1.0, 2 * k).reshape(2, k))
    good = probs.shape == (2, k) and np.allclose(probs.sum(axis=1), 1.0, atol=1e-6)
    _expect(good, f"parameters that give probabilities of {k} classes", probs)


def _expect(good: bool, what: str, got: Any) -> None:
    if not good:
        raise FileFormatError(f"expected {what}, got {reprlib.repr(got)}")


def _expect_fields(
    value: Any, names: tuple[str, ...], where: str, optional: tuple[str, ...] = ()
) -> None:
    _expect(isinstance(value, dict), f"{where} as an object", value)
    missing = [name for name in names if name not in value]
    extra = [name for name in value if name not in (*names, *optional)]
    if missing or extra:
        raise FileFormatError(
            f"expected the fields {', '.join(names) or '(none)'} in {where}; "
            f"missing {missing or 'none'}, not known {extra or 'none'}"
        )


def _refuse_constant(name: str) -> Any:
    raise FileFormatError(f"expected finite numbers, got {name}")


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise FileFormatError("expected each field once, got one twice")
    return result
