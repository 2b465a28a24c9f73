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
from typing import Any, get_args, get_type_hints

import numpy as np
from sklearn.utils.validation import check_is_fitted

from focalcal.calibrators.base import Calibrator, Diagnostics
from focalcal.errors import FileFormatError, FocalcalError, InputError
from focalcal.files import write_text

FORMAT = "focalcal-calibrator"
VERSION = 1
MAX_CLASSES = 1_000_000
"""Files with more classes are rejected as damaged,"""
MAX_NUMBERS = 10**8
"""as are those with more numbers in one array."""

_FIELDS = {
    "format": str,
    "version": int,
    "method": str,
    "params": dict,
    "n_classes": int,
    "state": dict,
    "diagnostics": dict,
}
_OPTIONAL = {"class_names": tuple[str, ...], "decision": dict}
"""Optional fields: the names of the classes, the threshold of `focalcal decide`."""
_INFINITIES = {"inf": math.inf, "-inf": -math.inf}  # JSON has no infinity; T = ∞ is a valid fit


def to_dict(calibrator: Calibrator) -> dict[str, Any]:
    """The JSON document of a fitted calibrator."""
    check_is_fitted(calibrator, "n_classes_")
    state = calibrator._fitted()
    params = calibrator.get_params(deep=False)
    document = {
        "format": FORMAT,
        "version": VERSION,
        "method": calibrator.method,
        "params": {name: _encode(value, name) for name, value in params.items()},
        "n_classes": calibrator.n_classes_,
        "state": {
            name: _encode(_trimmed(value) if _is_padded(calibrator, name) else value, name)
            for name, value in state.items()
        },
        "diagnostics": _encode(dataclasses.asdict(calibrator.diagnostics_), "diagnostics"),
    }
    for name in _OPTIONAL:
        if getattr(calibrator, f"{name}_", None) is not None:
            document[name] = _encode(getattr(calibrator, f"{name}_"), name)
    return document


def from_dict(document: Any, methods: Mapping[str, type[Calibrator]]) -> Calibrator:
    """The calibrator a JSON document describes; FileFormatError if anything in it is wrong."""
    _expect_fields(document, _FIELDS, "calibrator", _OPTIONAL)
    method, version, n_classes = (document[name] for name in ("method", "version", "n_classes"))
    _expect(document["format"] == FORMAT, f"format {FORMAT!r}", document["format"])
    other = "read others with the focalcal release that wrote them, or fit again"
    _expect(version == VERSION, f"version {VERSION} ({other})", version)
    _expect(method in methods, f"a method of this release ({', '.join(methods)})", method)
    _expect(1 <= n_classes <= MAX_CLASSES, f"n_classes in 1..{MAX_CLASSES}", n_classes)

    kind = methods[method]
    settings = dict.fromkeys(kind().get_params(deep=False))
    _expect_fields(document["params"], settings, "params")
    calibrator = kind(**_decode(document["params"], methods, arrays=False))
    task, state = calibrator.task, document["state"]
    _expect(task in ("auto", "multilabel"), "task 'auto' or 'multilabel'", task)
    calibrator.n_classes_ = n_classes
    calibrator.diagnostics_ = _diagnostics(document["diagnostics"])
    if "class_names" in document:
        calibrator.class_names_ = names = tuple(document["class_names"])
        _expect(len(names) == n_classes, f"{n_classes} class_names", names)
    if "decision" in document:
        calibrator.decision_ = document["decision"]
        at = calibrator.decision_.get("threshold")
        _expect(type(at) in (int, float) and 0 <= at <= 1, "decision.threshold in [0, 1]", at)
    names = {"labels_": list}
    if task != "multilabel":
        state, names = kind._upgraded(state), dict.fromkeys(kind.state)
    # Files without a floor omit it.
    _expect_fields(state, names, "state", optional={"floor_": None})
    try:
        for name, value in state.items():
            value = _filled(value) if _is_padded(calibrator, name) else value
            setattr(calibrator, name, _decode(value, methods))
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
    hooks = {"parse_constant": _finite, "parse_float": _finite, "object_pairs_hook": _once}
    try:
        return from_dict(json.loads(Path(path).read_text(encoding="utf-8"), **hooks), methods)
    except UnicodeDecodeError as error:
        raise FileFormatError(
            f"expected a calibrator file at {path}, got a file that is not text; fit one first"
        ) from error
    except (FileNotFoundError, IsADirectoryError) as error:
        raise FileFormatError(f"expected a calibrator file at {path}: {error}") from error
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
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.tolist()
    if isinstance(value, (list, tuple, range)):
        return [_encode(item, name) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        if math.isnan(value):
            raise InputError(f"expected finite values to save, got NaN in {name}; fit again")
        return "inf" if value > 0 else "-inf"
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise InputError(f"expected settings that JSON can hold, got {type(value).__name__} in {name}")


def _decode(value: Any, methods: Mapping[str, type[Calibrator]], arrays: bool = True) -> Any:
    """Undo `_encode`; lists of numbers become float64 arrays if `arrays`."""
    if isinstance(value, str):
        return _INFINITIES.get(value, value)
    if isinstance(value, dict):
        if value.get("format") == FORMAT:
            return from_dict(value, methods)
        return {key: _decode(item, methods, arrays) for key, item in value.items()}
    if not isinstance(value, list):
        return value
    items = [_decode(item, methods, arrays) for item in value]
    if not arrays or (items and all(isinstance(v, (str, dict, Calibrator)) for v in items)):
        return items
    found = np.asarray(items)
    _expect(found.dtype.kind in "fiu", "numbers in an array", value)
    return found.astype(np.float64)


def _is_padded(calibrator: Calibrator, name: str) -> bool:
    """Whether a part of `state` holds columns that `pack` padded to one length."""
    return bool({"L", "P"} & set(calibrator.state.get(name) or ""))


def _trimmed(columns: np.ndarray) -> list[np.ndarray]:
    """The columns; all but the first without repetitions of their last entry."""
    same = [(c == c[-1:]).all(axis=tuple(range(1, c.ndim))) for c in columns[1:]]
    lengths = [len(s) - np.argmin(s[::-1]) + 1 if not s.all() else 1 for s in same]
    return [columns[0], *(c[:n] for c, n in zip(columns[1:], lengths))]


def _filled(columns: Any) -> Any:
    """Undo `_trimmed`; anything but a list of lists is rejected later because of its shape."""
    if not isinstance(columns, list) or not all(isinstance(c, list) for c in columns):
        return columns
    size = max(map(len, columns[:1]), default=0)
    _expect(size * len(columns) <= MAX_NUMBERS, f"up to {MAX_NUMBERS} numbers", columns)
    return [c + c[-1:] * (size - len(c)) for c in columns]


def _diagnostics(value: Any) -> Diagnostics:
    found = _decode(value, {}, arrays=False)
    _expect_fields(found, get_type_hints(Diagnostics), "diagnostics")
    return Diagnostics(**{k: tuple(v) if isinstance(v, list) else v for k, v in found.items()})


def _check_fitted(calibrator: Calibrator) -> None:
    """Refuse wrong sizes and types, and parameters whose predictions are not finite."""
    k = calibrator.n_classes_
    if calibrator.task == "multilabel":
        parts = calibrator.labels_
        alike = len(parts) == k and all(type(c) is type(calibrator) for c in parts)
        _expect(alike, f"{k} calibrators of one kind in labels_", [type(c) for c in parts])
        return
    _check_shapes(calibrator)
    calibrator._check_state()
    floor = calibrator.floor_
    _expect(isinstance(floor, float) and 0 <= floor < math.inf, "a floor_ of at least 0", floor)
    with np.errstate(all="ignore"):
        probs = calibrator.predict_proba(np.linspace(-1.0, 1.0, 2 * k).reshape(2, k))
    good = probs.shape == (2, k) and np.allclose(probs.sum(axis=1), 1.0, atol=1e-6)
    _expect(good, f"parameters that give probabilities of {k} classes", probs)


def _check_shapes(calibrator: Calibrator) -> None:
    """Refuse `state` that does not have the shapes it declares."""
    edges = np.shape(getattr(calibrator, "edges_", None))
    size = edges[-1] if edges else 0
    _expect(size & (size + 1) == 0, "2^m - 1 edges per column", size)
    sizes = {"K": calibrator.n_classes_, "L": size, "P": size + 1}
    sizes["J"] = getattr(calibrator, "_n_columns", 1)
    for name, forms in calibrator.state.items():
        if forms is None:
            continue
        value = getattr(calibrator, name)
        shapes = [tuple(sizes[c] if c in sizes else int(c) for c in f) for f in forms.split("|")]
        _expect(np.shape(value) in shapes, f"{name} of a shape in {shapes}", np.shape(value))
        _expect(np.asarray(value).dtype.kind in "fiu", f"numbers in {name}", value)
        _expect(not forms or np.isfinite(value).all(), f"finite numbers in {name}", value)


def _expect(good: bool, what: str, got: Any) -> None:
    if not good:
        raise FileFormatError(f"expected {what}, got {reprlib.repr(got)}")


def _expect_fields(
    value: Any, kinds: dict[str, Any], where: str, optional: dict[str, Any] | None = None
) -> None:
    """Refuse anything but an object of these fields; kinds: a type for each, or None for any."""
    _expect(isinstance(value, dict), f"{where} as an object", value)
    known = kinds | (optional or {})
    missing = [name for name in kinds if name not in value]
    extra = [name for name in value if name not in known]
    if missing or extra:
        raise FileFormatError(
            f"expected the fields {', '.join(kinds) or '(none)'} in {where}; "
            f"missing {missing or 'none'}, not known {extra or 'none'}"
        )
    for name, item in value.items():
        kind = known[name]
        if kind is None:
            continue
        items, inner = item, get_args(kind)  # a tuple is a list in JSON
        if not inner:
            items, inner = [item], (kind,)
        allowed = (int, float) if inner[0] is float else inner[:1]
        good = isinstance(items, list) and all(type(one) in allowed for one in items)
        _expect(good, f"{name} in {where} as {kind}", item)


def _finite(number: str) -> float:
    value = float(number)
    _expect(math.isfinite(value), "finite numbers", number)  # 1e999 parses as infinity
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    _expect(len(dict(pairs)) == len(pairs), "each field once", [key for key, _ in pairs])
    return dict(pairs)
