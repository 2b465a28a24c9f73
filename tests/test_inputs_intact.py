"""No public function writes to its input, and none cares how the input lies in memory.

The functions are found in the packages, so that a new one is tested as soon as it is exported.
Every argument comes in five layouts; NumPy refuses a write to three of them by itself, and the
bytes of all are compared before and after.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import expit, softmax

from focalcal.bins import bin_samples, equal_width_edges
from focalcal.calibrators import METHODS, CalibratedClassifier, TemperatureScaling
from focalcal.errors import FitWarning
from focalcal.losses import LOSSES, make_loss
from focalcal.metrics import CalibrationStats
from focalcal.predictions import Predictions
from focalcal.report import Model, Settings, report

RNG = np.random.default_rng(0)
N, K = 240, 4
LOGITS = 2 * RNG.normal(size=(N, K))
LABELS = np.argmax(LOGITS / 2 + RNG.gumbel(size=(N, K)), axis=1)
PROBS = softmax(LOGITS, axis=1)
TOP, RIGHT = PROBS.max(axis=1), PROBS.argmax(axis=1) == LABELS
BINS = bin_samples(TOP, RIGHT, equal_width_edges(5))

ARGUMENTS: dict[str, Any] = {
    "y_true": LABELS,
    "y_prob": PROBS,
    "y": LABELS,
    "labels": LABELS,
    "target": LABELS,
    "logits": LOGITS,
    "logit": LOGITS,
    "values": LOGITS,
    "probs": PROBS,
    "p": PROBS,
    "q": PROBS[::-1],
    "p0": 0.1 + 0.8 * PROBS,
    "x": TOP,
    "confidence": TOP,
    "correct": RIGHT,
    "edges": BINS.edges,
    "weights": 1 + LABELS.astype(float),
    "sample_weight": 1 + LABELS.astype(float),
    "w": 1 + LABELS.astype(float),
    "hit": RIGHT,
    "hits": np.flatnonzero(RIGHT),
    "quick": False,
    "groups": LABELS,
    "by": LABELS % 2,
    "first": PROBS,
    "second": PROBS[::-1].copy(),
    "inner": np.linspace(0.1, 0.9, 9),
    "cumulative": np.arange(1.0, N + 1),
    "ordered": np.linspace(0.0, 1.0, N),
    "positions": np.array([0, N - 1]),
    "top": PROBS,
    "bottom": 1 + PROBS,
    "norms": 1 + TOP,
    "losses": TOP,
    "b": BINS,
    "gamma": 2.0,
    "m": 7,
    "n": N,
    "resamples": 20,
    "trade_off": 1.0,
    "mean_loss": float(TOP.mean()),
    "calibrator": TemperatureScaling().fit(LOGITS, LABELS),
}
"""What a parameter of this name is given. Arrays change their layout, the rest is passed as is."""

SPECIAL: dict[str, dict[str, Any]] = {
    "sigmoid_focal_loss": {"target": (LOGITS > 0).astype(float)},
    "binary_logit_curvature": {"p": TOP},
    "linear_focal_loss": {"x": LOGITS, "weight": RNG.normal(size=(K, K))},
    "kl_and_fisher": {"inputs": LOGITS, "theta": np.ones(K), "delta": np.full(K, 0.1)},
    "calibrated_pixels": {"logits": LOGITS.T.reshape(1, K, 12, 20)},
    "pixels": {"values": LOGITS.T.reshape(1, K, 12, 20), "labels": LABELS.reshape(1, 12, 20)},
}
"""Where a function's argument means something else than usual."""

WITHOUT_DATA = {
    *("panels", "panel", "figure", "operator", "model", "blocks", "loss_value"),
    *("samples", "sample", "a", "title"),
}
"""Parameters that are no arrays of samples: drawings, networks, operators, sorted samples."""

ELSEWHERE = {
    "sum_over_processes": "needs a process group",
    "add_samples": "adds to the table it is given",
}

PACKAGES = ("maps", "metrics", "bins", "figures", "losses", "curvature")
TORCH_ONLY = ("losses", "curvature")
NUMPY_ONLY = (
    "last_equal",
    "quantile_positions",
    "ratio_or_zero",
    "bin_table",
    "class_table",
    "slices",
    "even_bins",
)


def _functions() -> list[tuple[str, str]]:
    """(module, name) of every public function that takes an array of samples."""
    found = []
    for package in (*PACKAGES, "integrations.segmentation"):
        module = importlib.import_module(f"focalcal.{package}")
        names = getattr(module, "__all__", None) or [
            name
            for name, value in vars(module).items()
            if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
        ]
        for name in names:
            function = getattr(module, name)
            if inspect.isfunction(function) and name not in ELSEWHERE:
                needed = {
                    p.name
                    for p in inspect.signature(function).parameters.values()
                    if p.default is p.empty and p.kind is not p.VAR_KEYWORD
                }
                numbers = {"gamma", "n_classes", "temperature", "m", "bins", "name"}
                if needed - numbers and not needed & WITHOUT_DATA:
                    found.append((package, name))
    return found


def _layouts(x: np.ndarray, path: Any) -> dict[str, np.ndarray]:
    """The same numbers in every order that files, frames and slices produce."""
    wide = np.zeros([2 * n + 1 for n in x.shape], x.dtype)
    strided = wide[tuple(slice(1, None, 2) for _ in x.shape)]
    strided[...] = x
    frozen = x.copy()
    frozen.flags.writeable = False
    np.save(path, x)
    return {
        "C": np.ascontiguousarray(x),
        "F": np.asfortranarray(x),
        "strided": strided,
        "read-only": frozen,
        "memory-mapped": np.load(path, mmap_mode="r"),
    }


def _numbers(result: Any) -> list[np.ndarray]:
    """All numbers of a result, whatever it is made of; times are left out."""
    if isinstance(result, torch.Tensor):
        return [result.detach().numpy()]
    if dataclasses.is_dataclass(result):
        result = {k: v for k, v in vars(result).items() if k not in ("seconds", "provenance")}
    if isinstance(result, Mapping):
        return [x for value in result.values() for x in _numbers(value)]
    if isinstance(result, list | tuple | Iterator):
        return [x for value in result for x in _numbers(value)]
    if isinstance(result, np.ndarray | np.number | float | int):
        return [np.asarray(result)]
    return []


def _check(call: Callable[..., Any], arguments: Mapping[str, Any], tmp_path, kind: str) -> None:
    """`call` in every layout: inputs keep their bytes, results agree."""
    expected = None
    arrays = {name: x for name, x in arguments.items() if isinstance(x, np.ndarray)}
    others = {name: x for name, x in arguments.items() if name not in arrays}
    laid_out = {name: _layouts(x, tmp_path / f"{name}.npy") for name, x in arrays.items()}
    for layout in ("C", "F", "strided", "read-only", "memory-mapped"):
        if kind == "torch" and layout in ("read-only", "memory-mapped"):
            continue  # torch knows neither
        given = {name: forms[layout] for name, forms in laid_out.items()}
        before = {name: x.tobytes() for name, x in given.items()}
        # from_numpy shares memory and strides: a write to the tensor is a write to the array
        passed = {k: torch.from_numpy(x) if kind == "torch" else x for k, x in given.items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)
            result = _numbers(call(**passed, **others))
        for name, x in given.items():
            assert x.tobytes() == before[name], f"{name} was written to in layout {layout}"
        assert result
        expected = expected or result
        for one, other in zip(result, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-7, atol=1e-12, err_msg=layout)


@pytest.mark.parametrize(("package", "name"), _functions())
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_functions(package, name, kind, tmp_path):
    if kind == "numpy" and package in TORCH_ONLY:
        pytest.skip("takes torch tensors")
    if kind == "torch" and name in NUMPY_ONLY:
        pytest.skip("takes NumPy arrays")
    function = getattr(importlib.import_module(f"focalcal.{package}"), name)
    known = ARGUMENTS | SPECIAL.get(name, {})
    arguments = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in known:
            arguments[parameter.name] = known[parameter.name]
        elif parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD:
            pytest.fail(f"{name} has a new parameter {parameter.name!r}: add it to ARGUMENTS")
    ways = [{"y_prob"}, {"logits"}] if {"y_prob", "logits"} <= set(arguments) else [set()]
    for way in ways:  # metrics take one of y_prob, logits and confidence
        left_out = {"y_prob", "logits", "confidence"} - way if way else set()
        given = {k: v for k, v in arguments.items() if k not in left_out}
        _check(function, given, tmp_path, kind)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_calibrators(method, kind, tmp_path):
    settings = {"gamma": 2.0} if method == "focal" else {}

    def both(logits, y, sample_weight):
        fitted = METHODS[method](**settings).fit(logits, y, sample_weight)
        return (
            fitted.predict_log_proba(logits),
            fitted.predict_proba(logits),
            fitted.predict(logits),
        )

    arguments = {"logits": LOGITS, "y": LABELS, "sample_weight": ARGUMENTS["weights"]}
    _check(both, arguments, tmp_path, kind)


def test_multilabel_calibrators(tmp_path):
    def both(logits, y):
        fitted = TemperatureScaling(task="multilabel").fit(logits, y)
        return fitted.predict_proba(logits)

    _check(both, {"logits": LOGITS, "y": (LOGITS > 0.3).astype(int)}, tmp_path, "numpy")


def test_the_scikit_learn_wrapper(tmp_path):
    from sklearn.linear_model import LogisticRegression

    def both(X, y):
        model = CalibratedClassifier(LogisticRegression(), cv=3).fit(X, y)
        return model.predict_proba(X)

    _check(both, {"X": LOGITS, "y": LABELS}, tmp_path, "numpy")


@pytest.mark.parametrize("name", [name.replace("<number>", "0.5") for name in LOSSES])
def test_losses_and_their_gradients(name, tmp_path):
    binary = name.startswith("sigmoid")
    target = (LOGITS > 0).astype(float) if binary else LABELS

    def both(logits, target):
        logits = logits.requires_grad_()
        loss = make_loss(name)(logits, target)
        return loss, torch.autograd.grad(loss.sum(), logits)

    _check(both, {"logits": LOGITS, "target": target}, tmp_path, "torch")


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("width", [1, K, 100])
def test_predictions(kind, width, tmp_path):
    logits = np.random.default_rng(1).normal(size=(N, width))
    labels = LABELS % max(width, 2)

    def every(logits, labels):
        p = Predictions(logits=logits, labels=labels)
        again = Predictions(probs=p.probabilities(), labels=labels)
        parts = [p.probabilities(), p.probabilities(), p.log_probs(), p.as_logits()]
        first, second = p.split(0.3)
        return [
            *parts,
            again.as_logits(),
            again.log_probs(floor=1e-9),
            *(q.probabilities() for q in (first, second, p.take([3, 1]))),
        ]

    _check(every, {"logits": logits, "labels": labels}, tmp_path, kind)


def test_multilabel_predictions(tmp_path):
    def every(probs, labels):
        p = Predictions(probs=probs, labels=labels, task="multilabel")
        q = Predictions(logits=p.as_logits(), labels=labels, task="multilabel")
        return p.probabilities(), q.probabilities(), p.as_logits(floor=1e-9)

    _check(every, {"probs": expit(LOGITS), "labels": (LOGITS > 0).astype(int)}, tmp_path, "numpy")


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_streaming_statistics(kind, tmp_path):
    def stats(y_true, y_prob, sample_weight):
        return CalibrationStats(K).update(y_true, y_prob, sample_weight).compute()

    names = ("y_true", "y_prob", "sample_weight")
    _check(stats, {name: ARGUMENTS[name] for name in names}, tmp_path, kind)


def test_report(tmp_path):
    settings = Settings(methods=("temperature", "beta"), resamples=5)

    def page(logits, labels):
        p = Predictions(logits=logits, labels=labels)
        return report([Model("m", *p.split())], settings)

    _check(page, {"logits": LOGITS, "labels": LABELS}, tmp_path, "numpy")
