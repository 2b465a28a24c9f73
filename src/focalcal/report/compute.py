"""From predictions to `ReportData`: fit on validation, choose on validation, measure on test."""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from focalcal import bins as _bins
from focalcal import calibrators, metrics
from focalcal._arrays import to_numpy
from focalcal.calibrators import Calibrator, persistence
from focalcal.errors import FitWarning, InputError
from focalcal.figures import accuracy_interval
from focalcal.provenance import provenance
from focalcal.report import answers, sentences
from focalcal.report.data import (
    Curve,
    MethodResult,
    ModelReport,
    PredictionFile,
    ReportData,
    Stops,
    View,
    WrongSample,
)
from focalcal.report.landscape import landscape
from focalcal.report.models import Model, binary_models, digest
from focalcal.report.selection import choose

FINE_BINS = 20
CURVE_POINTS = 200
SHOWN_WRONG = 15
STOPS = np.round(np.arange(0, 101) / 100, 2)
MANY_CLASSES = 200
_QUADRATIC = ("matrix", "dirichlet", "structured-matrix")
"""Methods with a parameter per pair of classes: left out by default where classes are many."""
_NOT_ROWS = ("auto", "prior-correction")
"""An average of the others, and a correction that needs another class distribution."""

Progress = Callable[[float], None]


@dataclasses.dataclass(frozen=True)
class Settings:
    """How a report is computed. `methods` None is every one that suits the number of classes."""

    methods: tuple[str, ...] | None = None
    bins: int = 15
    resamples: int = 200
    folds: int = 5
    level: float = 0.95
    seed: int = 0
    floor: float | None = None
    by: tuple[str, ...] = ()


def default_methods(n_classes: int) -> tuple[str, ...]:
    """Every registered method, less those with a number per pair of classes if these are many.

    >>> "temperature" in default_methods(10), "matrix" in default_methods(1000)
    (True, False)
    """
    left_out = _NOT_ROWS + (_QUADRATIC if n_classes > MANY_CLASSES else ())
    return tuple(name for name in calibrators.METHODS if name not in left_out)


def report(
    models: Sequence[Model], settings: Settings | None = None, *, progress: Progress | None = None
) -> ReportData:
    """Fit, choose and measure for each model.

    Args:
        models: one model, or several to compare; names must differ.
        settings: methods, bins, resamples, level, seed.
        progress: called with the fraction done.

    Returns:
        All numbers of the page.

    >>> rng = np.random.default_rng(0)
    >>> z = 2 * rng.normal(size=(800, 3))
    >>> y = np.argmax(z + rng.gumbel(size=z.shape), axis=1)
    >>> halves = Predictions(logits=3 * z, labels=y).split()
    >>> few = Settings(methods=("temperature",), resamples=20)
    >>> report([Model("toy", *halves)], few).models[0].chosen
    'temperature'
    """
    settings = settings or Settings()
    several_labels = any(model.val.task == "multilabel" for model in models)
    models = [part for model in models for part in binary_models(model)]
    names = [model.name for model in models]
    if not names or len(set(names)) < len(names):
        raise InputError(f"expected models with different names, got {', '.join(names) or 'none'}")
    started = time.perf_counter()
    done, outputs = [], []
    for i, model in enumerate(models):

        def share(fraction: float, i: int = i) -> None:
            if progress is not None:
                progress((i + fraction) / len(models))

        made, probs = _model_report(model, settings, share)
        done.append(made)
        outputs.append(probs)
    judge = sentences.labels_verdict if several_labels else sentences.overall_verdict
    verdict = judge(done)
    return ReportData(
        title=" / ".join(names) if len(names) < 4 else f"{len(names)} models",
        models=tuple(done),
        differences=answers.differences(models, done, outputs, settings),
        headline=verdict if several_labels else sentences.headline(done),
        verdict=verdict,
        bins=settings.bins,
        level=settings.level,
        resamples=settings.resamples,
        seed=settings.seed,
        seconds=time.perf_counter() - started,
        provenance=provenance(),
    )


def _model_report(
    model: Model, settings: Settings, progress: Progress
) -> tuple[ModelReport, np.ndarray]:
    """Everything about one model, and its test probabilities after calibration."""
    val, test = model.val, model.test
    _check(model)
    methods = _methods(settings.methods, val.n_classes)
    z, y = val.as_logits(settings.floor), val.labels
    z_test, labels = test.as_logits(settings.floor), to_numpy(test.labels)

    progress(0.0)
    choice = choose(methods, z, y, settings.folds)
    results, fitted = [], {}
    for i, method in enumerate(methods):
        progress(0.3 + 0.6 * i / len(methods))
        result, calibrator = _measure(method, z, y, z_test, labels, settings)
        results.append(dataclasses.replace(result, validation_nll=choice.scores.get(method)))
        fitted[method] = calibrator
    chosen = choice.method

    progress(0.9)
    by_name = {r.method: r for r in results}
    probs = {m: to_numpy(fitted[m].predict_proba(z_test)) for m in ("identity", chosen)}
    before, after = (_view(by_name[m], labels, probs[m], settings) for m in ("identity", chosen))
    class_names = val.class_names or test.class_names or tuple(map(str, range(val.n_classes)))
    out = ModelReport(
        name=model.name,
        n_classes=val.n_classes,
        class_names=class_names,
        sources=_sources(model),
        methods=tuple(results),
        chosen=chosen,
        folds=settings.folds,
        before=before,
        after=after,
        landscape=landscape(z, y, settings.bins, _gamma_and_temperature(fitted)),
        wrong=_wrong(labels, probs["identity"], probs[chosen], class_names),
        calibrator=persistence.to_dict(_named(fitted[chosen], val.class_names)),
        thresholds=answers.thresholds(labels, probs[chosen], settings.level),
        slices=answers.slices(test, labels, probs[chosen], settings),
        verdict="",
        warnings=_warnings(model),
    )
    return dataclasses.replace(out, verdict=sentences.verdict(out)), probs[chosen]


def _named(calibrator: Calibrator, names: tuple[str, ...] | None) -> Calibrator:
    if names:
        calibrator.class_names_ = names
    return calibrator


def _warnings(model: Model) -> tuple[str, ...]:
    """What a reader must know before believing the numbers."""
    parts = (model.val, model.test)
    a, b = (to_numpy(p.logits if p.logits is not None else p.probs) for p in parts)
    if a.shape != b.shape or not bool((a == b).all()):
        return ()
    return (
        f"{model.name}: validation and test predictions are the same; the calibrators were "
        "measured on what they were fitted on, and look better than they are",
    )


def _gamma_and_temperature(fitted: Mapping[str, Calibrator]) -> tuple[float, float] | None:
    found = fitted.get("focal-temperature")
    return None if found is None else (float(found.gamma_), float(found.temperature_))


def _check(model: Model) -> None:
    for role, part in (("validation", model.val), ("test", model.test)):
        if part.labels is None:
            raise InputError(f"{model.name}: expected labels in the {role} set, got none")


def _methods(wanted: Sequence[str] | None, n_classes: int) -> tuple[str, ...]:
    known = default_methods(n_classes)
    if wanted is None:
        return known
    unknown = [m for m in wanted if m not in calibrators.METHODS or m in _NOT_ROWS]
    if unknown:
        raise InputError(f"expected methods among {', '.join(known)}; got {', '.join(unknown)}")
    others = tuple(dict.fromkeys(m for m in wanted if m != "identity"))
    if not others:
        raise InputError("expected a method besides identity to compare it with, got none")
    return ("identity", *others)


def _measure(
    method: str, z: Any, y: Any, z_test: Any, labels: np.ndarray, settings: Settings
) -> tuple[MethodResult, Calibrator]:
    calibrator = calibrators.make(method)
    started = time.perf_counter()
    with warnings.catch_warnings():
        # The diagnostics keep the message; the page shows it beside the method.
        warnings.simplefilter("ignore", FitWarning)
        calibrator.fit(z, y)
    seconds = time.perf_counter() - started
    evaluation = metrics.evaluate(
        labels,
        to_numpy(calibrator.predict_proba(z_test)),
        bins=settings.bins,
        resamples=settings.resamples,
        level=settings.level,
        seed=settings.seed,
    )
    result = MethodResult(
        method=method,
        name=method,
        summary=calibrator.summary,
        preserves_accuracy=calibrator.preserves_accuracy,
        parameters=_parameters(calibrator),
        validation_nll=None,
        evaluation=evaluation,
        seconds=seconds,
        notes=calibrator.diagnostics_.warnings,
    )
    return result, calibrator


def _parameters(calibrator: Calibrator) -> dict[str, float]:
    """Fitted numbers that stand alone, such as γ and T; arrays are in the saved file."""
    found = {}
    for name in calibrator.state:
        value = getattr(calibrator, name)
        if np.ndim(value) == 0 and not isinstance(value, str):
            found[name.rstrip("_")] = float(value)
    return found


def _view(result: MethodResult, labels: np.ndarray, probs: np.ndarray, settings: Settings) -> View:
    classes = _bins.bin_columns(labels, probs, _bins.equal_width_edges(settings.bins))
    curve = metrics.risk_coverage(labels, probs)
    low, high = accuracy_interval(result.evaluation.reliability, settings.level)
    return View(
        method=result.method,
        name=result.name,
        evaluation=result.evaluation,
        accuracy_low=low,
        accuracy_high=high,
        confidence=metrics.reliability(labels, probs, bins=FINE_BINS),
        classes=classes,
        class_ece=_bins.mean_gap(classes),
        curve=_thinned(curve),
        stops=_stops(curve),
    )


def _thinned(curve: metrics.RiskCoverage) -> Curve:
    at = np.searchsorted(curve.coverage, np.linspace(0, 1, CURVE_POINTS))
    at = np.unique(np.minimum(at, len(curve.coverage) - 1))
    return Curve(curve.threshold[at], curve.coverage[at], curve.risk[at], curve.area)


def _stops(curve: metrics.RiskCoverage) -> Stops:
    """Coverage and risk of the samples at or above each fixed threshold."""
    kept = np.searchsorted(-curve.threshold, -STOPS, side="right")
    coverage = np.concatenate([[0.0], curve.coverage])[kept]
    risk = np.concatenate([[np.nan], curve.risk])[kept]
    return Stops(STOPS, coverage, risk)


def _wrong(
    labels: np.ndarray, before: np.ndarray, after: np.ndarray, names: Sequence[str]
) -> tuple[WrongSample, ...]:
    """The wrong predictions of greatest calibrated confidence."""
    predicted, confidence = after.argmax(axis=1), after.max(axis=1)
    rows = np.flatnonzero(predicted != labels)
    rows = rows[np.argsort(-confidence[rows], kind="stable")][:SHOWN_WRONG]
    return tuple(
        WrongSample(
            row=int(i),
            predicted=names[predicted[i]],
            true=names[labels[i]],
            confidence_before=float(before[i].max()),
            confidence_after=float(confidence[i]),
            true_class_probability=float(after[i, labels[i]]),
        )
        for i in rows
    )


def _sources(model: Model) -> tuple[PredictionFile, ...]:
    files = model.files or (None, None)
    return tuple(
        PredictionFile(
            role=role,
            file=file.name if file else "(in memory)",
            sha256=digest(file) if file else None,
            n=part.n,
            class_counts=tuple(
                np.bincount(to_numpy(part.labels), minlength=part.n_classes).tolist()
            ),
            provenance=dict(part.provenance),
        )
        for role, part, file in zip(("validation", "test"), (model.val, model.test), files)
    )
