"""From predictions to `ReportData`: fit on validation, choose on validation, measure on test."""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from focalcal import bins as _bins
from focalcal import calibrators, decisions, metrics
from focalcal._arrays import to_numpy, two_columns
from focalcal.calibrators import Calibrator, Improvement, persistence
from focalcal.calibrators.auto import held_out_losses, mean_and_error
from focalcal.calibrators.base import FitData
from focalcal.calibrators.improvement import counted_once, loss_split
from focalcal.errors import FitWarning, InputError
from focalcal.metrics import RiskCoverage, SlicedEvaluation
from focalcal.metrics.proportion import share_interval
from focalcal.predictions import Predictions, like_given
from focalcal.provenance import provenance
from focalcal.report import sentences
from focalcal.report.data import (
    MethodResult,
    ModelDifference,
    ModelReport,
    PredictionFile,
    ReportData,
    View,
    WrongSample,
)
from focalcal.report.landscape import landscape
from focalcal.report.models import Model, binary_models, digest

MANY_CLASSES = 200
_QUADRATIC = ("matrix", "dirichlet", "structured-matrix")
"""Methods with a parameter per pair of classes: left out by default where classes are many."""
_NOT_ROWS = ("auto", "prior-correction")
"""An average of the others, and a correction that needs another class distribution."""

TARGETS = (0.9, 0.95, 0.98, 0.99, 0.995)
"""Accuracies that the page offers for what is decided alone."""

FINE_BINS = 20
CURVE_POINTS = 200
SHOWN_WRONG = 15
STOPS = np.round(np.arange(0, 101) / 100, 2)

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

    @property
    def measuring(self) -> dict[str, Any]:
        """What `metrics.evaluate`, `evaluate_by` and `compare` take."""
        names = ("bins", "resamples", "level", "seed")
        return {name: getattr(self, name) for name in names}


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
        differences=_differences(models, done, outputs, settings),
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
    for role, part in (("validation", val), ("test", test)):
        if part.labels is None:
            raise InputError(f"{model.name}: expected labels in the {role} set, got none")
    methods = _methods(settings.methods, val.n_classes)
    z, y = val.as_logits(settings.floor, zeros=True), val.labels
    z_test, labels = test.as_logits(settings.floor, zeros=True), to_numpy(test.labels)

    progress(0.0)
    chosen, scores = _choose(methods, z, y, settings.folds)
    results, fitted = {}, {}
    for i, method in enumerate(methods):
        progress(0.3 + 0.6 * i / len(methods))
        result, fitted[method] = _measure(method, z, y, z_test, test, settings)
        results[method] = dataclasses.replace(result, validation_nll=scores.get(method))

    progress(0.9)
    before, after = (to_numpy(fitted[m].predict_proba(z_test)) for m in ("identity", chosen))
    class_names = val.class_names or test.class_names or tuple(map(str, range(val.n_classes)))
    if val.class_names:
        fitted[chosen].class_names_ = val.class_names
    confidence, wrong = after.max(axis=1), after.argmax(axis=1) != labels
    out = ModelReport(
        name=model.name,
        n_classes=val.n_classes,
        class_names=class_names,
        sources=_sources(model),
        methods=tuple(results.values()),
        chosen=chosen,
        folds=settings.folds,
        before=_view(results["identity"], labels, before),
        after=_view(results[chosen], labels, after),
        split=_split(labels, before, after, test.one_column),
        landscape=landscape(z, y, settings.bins, fitted.get("focal-temperature")),
        wrong=_wrong_samples(labels, before, after, class_names),
        calibrator=persistence.to_dict(fitted[chosen]),
        thresholds=tuple(
            decisions.choose(confidence, wrong, "target_accuracy", value, settings.level)
            for value in TARGETS
        ),
        slices=_slices(test, labels, like_given(after, test), settings),
        verdict="",
        warnings=_warnings(model),
    )
    return dataclasses.replace(out, verdict=sentences.verdict(out)), after


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


def _choose(
    methods: Sequence[str], logits: Any, labels: Any, folds: int
) -> tuple[str, dict[str, float]]:
    """The first method whose cross-validated NLL is within one standard error of the best.

    Methods are given from simple to complex; with it comes the NLL of each candidate. Binning,
    which is not made for low NLL, is a candidate only where there is nothing else.

    Breiman et al. 1984, Sec. 3.4.3.
    """
    names = [m for m in methods if m not in ("histogram", "bbq")]
    names = names if len(names) > 1 else list(methods)
    z = two_columns(to_numpy(logits).astype(np.float64))
    data = FitData(z, to_numpy(labels).astype(np.int64), np.ones(len(z)))
    losses, sizes = held_out_losses([calibrators.make(name) for name in names], data, folds)
    means = {name: float(mean_and_error(loss, sizes)[0]) for name, loss in zip(names, losses)}
    best = losses[int(np.argmin(list(means.values())))]
    gaps = zip(names, [mean_and_error(loss - best, sizes) for loss in losses])
    return next(name for name, (excess, error) in gaps if excess <= error), means


def _measure(
    method: str, z: Any, y: Any, z_test: Any, test: Predictions, settings: Settings
) -> tuple[MethodResult, Calibrator]:
    calibrator = calibrators.make(method)
    started = time.perf_counter()
    with warnings.catch_warnings():
        # The diagnostics keep the message; the page shows it beside the method.
        warnings.simplefilter("ignore", FitWarning)
        calibrator.fit(z, y)
    seconds = time.perf_counter() - started
    probs = like_given(to_numpy(calibrator.predict_proba(z_test)), test)
    result = MethodResult(
        method=method,
        summary=calibrator.summary,
        preserves_accuracy=calibrator.preserves_accuracy,
        parameters=_parameters(calibrator),
        validation_nll=None,
        evaluation=metrics.evaluate(to_numpy(test.labels), probs, **settings.measuring),
        seconds=seconds,
        notes=calibrator.diagnostics_.warnings,
    )
    return result, calibrator


def _split(
    labels: np.ndarray, before: np.ndarray, after: np.ndarray, one_column: bool
) -> dict[str, Improvement]:
    with np.errstate(divide="ignore", invalid="ignore"):  # a probability of zero has no finite NLL
        found = loss_split(labels, np.log(before), np.log(after), np.ones(len(labels)))
    return counted_once(found) if one_column else found


def _parameters(calibrator: Calibrator) -> dict[str, float]:
    """Fitted numbers that stand alone, such as γ and T; arrays are in the saved file."""
    found = {name.rstrip("_"): getattr(calibrator, name) for name in calibrator.state}
    return {k: float(v) for k, v in found.items() if np.ndim(v) == 0 and not isinstance(v, str)}


def _view(result: MethodResult, labels: np.ndarray, probs: np.ndarray) -> View:
    """Everything that is drawn of one calibrator's test probabilities (N, K)."""
    b = result.evaluation.reliability
    classes = _bins.bin_columns(labels, probs, b.edges)
    curve = metrics.risk_coverage(labels, probs)
    low, high = share_interval(b.correct_sums, b.counts, result.evaluation.level)
    return View(
        method=result.method,
        evaluation=result.evaluation,
        accuracy_low=low,
        accuracy_high=high,
        confidence=metrics.reliability(labels, probs, bins=FINE_BINS),
        classes=classes,
        class_ece=_bins.mean_gap(classes),
        curve=_thinned(curve),
        stops=_at_stops(curve),
    )


def _thinned(curve: RiskCoverage) -> RiskCoverage:
    at = np.searchsorted(curve.coverage, np.linspace(0, 1, CURVE_POINTS))
    at = np.unique(np.minimum(at, len(curve.coverage) - 1))
    found = {name: getattr(curve, name)[at] for name in ("threshold", "coverage", "risk")}
    return dataclasses.replace(curve, **found)


def _at_stops(curve: RiskCoverage) -> RiskCoverage:
    """Coverage and risk of the samples at or above each fixed threshold."""
    kept = np.searchsorted(-curve.threshold, -STOPS, side="right")
    coverage = np.append(0.0, curve.coverage)[kept]
    risk = np.append(np.nan, curve.risk)[kept]
    return dataclasses.replace(curve, threshold=STOPS, coverage=coverage, risk=risk)


def _wrong_samples(
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


def _slices(
    test: Predictions, labels: np.ndarray, probs: np.ndarray, settings: Settings
) -> SlicedEvaluation | None:
    if not settings.by:
        return None
    columns = {name: test.column(name) for name in settings.by}
    return metrics.evaluate_by(labels, probs, by=columns, **settings.measuring)


def _differences(
    models: Sequence[Model],
    done: Sequence[ModelReport],
    outputs: Sequence[np.ndarray],
    settings: Settings,
) -> tuple[ModelDifference, ...]:
    """Each model after calibration against the one of lowest NLL, on the same samples."""
    best = min(range(len(done)), key=lambda i: done[i].after.evaluation["nll"].value)
    labels = [to_numpy(model.test.labels) for model in models]
    outputs = [like_given(probs, model.test) for probs, model in zip(outputs, models)]
    return tuple(
        ModelDifference(
            first=done[i].name,
            second=done[best].name,
            comparison=metrics.compare(labels[i], outputs[i], outputs[best], **settings.measuring),
        )
        for i in range(len(done))
        if i != best and np.array_equal(labels[i], labels[best])
    )


def _warnings(model: Model) -> tuple[str, ...]:
    """What a reader must know before believing the numbers."""
    if not np.array_equal(*(to_numpy(part.probabilities()) for part in (model.val, model.test))):
        return ()
    return (
        f"{model.name}: validation and test predictions are the same; the calibrators were "
        "measured on what they were fitted on, and look better than they are",
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
