"""Calibrators as small versioned JSON files: readable, exact, safe to open from anyone.

Numbers are written with all digits of float64, so a loaded calibrator predicts bit for bit what
the saved one did. Reading checks every field and never executes anything.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
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
"""A larger class count in a file is taken for damage, not for an array to allocate."""

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
    if document["format"] != FORMAT:
        raise FileFormatError(f"expected format {FORMAT!r}, got {document['format']!r}")
    if type(document["version"]) is not int or document["version"] != VERSION:
        raise FileFormatError(
            f"expected version {VERSION}, got {document['version']!r}; "
            "read it with the focalcal release that wrote it, or fit again"
        )
    method = document["method"]
    if not isinstance(method, str) or method not in methods:
        raise FileFormatError(
            f"expected a method of this release ({', '.join(methods)}), got {method!r}"
        )
    n_classes = document["n_classes"]
    if type(n_classes) is not int or not 1 <= n_classes <= MAX_CLASSES:
        raise FileFormatError(f"expected n_classes in 1..{MAX_CLASSES}, got {n_classes!r}")

    kind = methods[method]
    _expect_fields(document["params"], tuple(kind().get_params(deep=False)), "params")
    decode = _decoder(methods)
    params = {name: decode(value, listed=True) for name, value in document["params"].items()}
    calibrator = kind(**params)
    if calibrator.task not in ("auto", "multilabel"):
        raise FileFormatError(f"expected task 'auto' or 'multilabel', got {calibrator.task!r}")
    calibrator.n_classes_ = n_classes
    calibrator.diagnostics_ = _diagnostics(document["diagnostics"])
    if "class_names" in document:
        calibrator.class_names_ = _class_names(document["class_names"], n_classes)
    if "decision" in document:
        calibrator.decision_ = _decision(document["decision"])
    names = ("labels_",) if calibrator.task == "multilabel" else calibrator.state
    if isinstance(document["state"], dict) and calibrator.task != "multilabel":
        document = {**document, "state": kind._upgraded(document["state"])}
    if isinstance(document["state"], dict) and "floor_" in document["state"]:
        names = (*names, "floor_")  # not written where there is none
    _expect_fields(document["state"], names, "state")
    for name, value in document["state"].items():
        setattr(calibrator, name, decode(value, listed=name == "labels_"))
    try:
        calibrator._check_params()
        _probe(calibrator)
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


def _decoder(methods: Mapping[str, type[Calibrator]]) -> Callable[..., Any]:
    """Undo `_encode`: lists become float64 arrays unless `listed` keeps them as they are."""

    def decode(value: Any, listed: bool = False) -> Any:
        if isinstance(value, dict):
            if value.get("format") == FORMAT:
                return from_dict(value, methods)
            return {key: decode(item, listed) for key, item in value.items()}
        if isinstance(value, list):
            documents = bool(value) and all(isinstance(item, (dict, str)) for item in value)
            if listed or (
                documents
                and not any(isinstance(item, str) and item in _INFINITIES for item in value)
            ):
                return [decode(item, listed) for item in value]
            return _decode_array(value)
        if isinstance(value, str):
            return _INFINITIES.get(value, value)
        if isinstance(value, float) and not math.isfinite(value):  # 1e999 parses as infinity
            raise FileFormatError(f"expected finite numbers, got {value}")
        return value

    return decode


def _decode_array(value: list[Any]) -> np.ndarray:
    def numbers(item: Any) -> Any:
        if isinstance(item, list):
            return [numbers(part) for part in item]
        if isinstance(item, str) and item in _INFINITIES:
            return _INFINITIES[item]
        if type(item) not in (int, float) or not math.isfinite(item):
            raise FileFormatError(f"expected numbers in a fitted array, got {item!r}")
        return float(item)

    try:
        return np.asarray(numbers(value), dtype=np.float64)
    except ValueError as error:
        raise FileFormatError(f"expected a rectangular array: {error}") from error


def _diagnostics(value: Any) -> Diagnostics:
    names = tuple(field.name for field in dataclasses.fields(Diagnostics))
    _expect_fields(value, names, "diagnostics")
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
    value = {key: _INFINITIES.get(v, v) if isinstance(v, str) else v for key, v in value.items()}
    for name, kind in kinds.items():
        if not isinstance(value[name], kind) or (kind is int and type(value[name]) is bool):
            raise FileFormatError(f"expected diagnostics.{name} as {kind}, got {value[name]!r}")
    if any(type(c) is not int for c in value["n_per_class"]):
        raise FileFormatError("expected whole numbers in diagnostics.n_per_class")
    if any(not isinstance(w, str) for w in value["warnings"]):
        raise FileFormatError("expected texts in diagnostics.warnings")
    return Diagnostics(
        **{
            **value,
            "n_per_class": tuple(value["n_per_class"]),
            "warnings": tuple(value["warnings"]),
        }
    )


def _class_names(value: Any, n_classes: int) -> tuple[str, ...]:
    listed = isinstance(value, list) and all(isinstance(name, str) for name in value)
    if not listed or len(value) != n_classes:
        raise FileFormatError(f"expected {n_classes} texts in class_names, got {value!r}")
    return tuple(value)


def _decision(value: Any) -> dict[str, Any]:
    at = value.get("threshold") if isinstance(value, dict) else None
    if type(at) not in (int, float) or not 0 <= at <= 1:
        raise FileFormatError(f"expected decision.threshold in [0, 1], got {at!r}")
    return value


def _probe(calibrator: Calibrator) -> None:
    """Predict once: wrong sizes, wrong types and non-finite parameters show here."""
    k = calibrator.n_classes_
    if calibrator.task == "multilabel":
        parts = calibrator.labels_
        if len(parts) != k or any(type(c) is not type(calibrator) for c in parts):
            raise FileFormatError(f"expected {k} calibrators of one kind in labels_")
        return
    for name, shape in calibrator._state_shapes().items():
        value = getattr(calibrator, name)
        if np.shape(value) != shape:
            raise FileFormatError(f"expected {name} of shape {shape}, got {np.shape(value)}")
        if np.asarray(value).dtype.kind not in "fiu":
            raise FileFormatError(f"expected numbers in {name}, got {value!r}")
    calibrator._check_state()
    if not (isinstance(calibrator.floor_, float) and 0 <= calibrator.floor_ < 1):
        raise FileFormatError(f"expected a floor_ from 0 to 1, got {calibrator.floor_!r}")
    with np.errstate(all="ignore"):
        probs = calibrator.predict_proba(np.linspace(-1.0, 1.0, 2 * k).reshape(2, k))
    if probs.shape != (2, k) or not np.allclose(probs.sum(axis=1), 1.0, atol=1e-6):
        raise FileFormatError(f"expected parameters that give probabilities of {k} classes")


def _expect_fields(
    value: Any, names: tuple[str, ...], where: str, optional: tuple[str, ...] = ()
) -> None:
    if not isinstance(value, dict):
        raise FileFormatError(f"expected {where} as an object, got {type(value).__name__}")
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
