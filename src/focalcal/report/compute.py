"""From predictions to `ReportData`: fit on validation, choose on validation, measure on test."""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from focalcal import bins as _bins
from focalcal import calibrators, decisions, metrics
from focalcal._arrays import to_numpy, two_columns
from focalcal.calibrators import persistence
from focalcal.calibrators.auto import best_alone, held_out, mean_and_error
from focalcal.calibrators.base import FitData
from focalcal.calibrators.improvement import counted_once, loss_split
from focalcal.errors import FitWarning, InputError
from focalcal.metrics.proportion import share_interval
from focalcal.predictions import Predictions, id_texts, like_given
from focalcal.provenance import provenance
from focalcal.report import sentences
from focalcal.report.data import MethodResult, ModelDifference, ModelReport, ReportData, View
from focalcal.report.landscape import landscape
from focalcal.report.models import Model, binary_models, digest

MANY_CLASSES = 200
_QUADRATIC = ("matrix", "dirichlet", "structured-matrix")
"""Methods with a parameter per pair of classes: left out by default if there are many classes."""
_NOT_ROWS = ("auto", "prior-correction")
"""An average of the others, and a correction that needs another class distribution."""

TARGETS = (0.9, 0.95, 0.98, 0.99, 0.995)
"""Accuracies of automatic decisions that the page offers."""

FINE_BINS = 20
CURVE_POINTS = 200
SHOWN_WRONG = 15
SAME = (
    "validation and test predictions are the same; the calibrators were "
    "measured on the data they were fitted on, and look better than they are"
)
STOPS = np.round(np.arange(0, 101) / 100, 2)


@dataclasses.dataclass(frozen=True)
class Settings:
    """How a report is computed. `methods` None is every one suited to the number of classes."""

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
        """The arguments of `metrics.evaluate`, `evaluate_by` and `compare`."""
        return {name: getattr(self, name) for name in ("bins", "resamples", "level", "seed")}


def default_methods(n_classes: int) -> tuple[str, ...]:
    """Every registered method, without those that have a number per pair of many classes.

    >>> "temperature" in default_methods(10), "matrix" in default_methods(1000)
    (True, False)
    """
    left_out = _NOT_ROWS + (_QUADRATIC if n_classes > MANY_CLASSES else ())
    return tuple(name for name in calibrators.METHODS if name not in left_out)


def report(
    models: Sequence[Model],
    settings: Settings | None = None,
    *,
    progress: Callable[[float], None] | None = None,
) -> ReportData:
    """Fit, choose and measure for each model: all numbers of the page.

    models: one, or several to compare, whose names must differ; progress: called with the fraction
    done.

    >>> from focalcal.predictions import Predictions
    >>> rng = np.random.default_rng(0)
    >>> z = 2 * rng.normal(size=(800, 3))
    >>> y = np.argmax(z + rng.gumbel(size=z.shape), axis=1)
    >>> halves = Predictions(logits=3 * z, labels=y).split()
    >>> few = Settings(methods=("temperature",), resamples=20)
    >>> report([Model("toy", *halves)], few).models[0].chosen
    'temperature'
    """
    settings = settings or Settings()
    progress = progress or (lambda _: None)
    given = [binary_models(model) for model in models]
    parts = [(j, part) for own in given for j, part in enumerate(own)]
    names = [part.name for _, part in parts]
    if not names or len(set(names)) < len(names):
        raise InputError(f"expected models with different names, got {', '.join(names) or 'none'}")
    started = time.perf_counter()
    measured = []
    for i, (j, part) in enumerate(parts):
        found, probs = _model_report(part, settings, lambda x, i=i: progress((i + x) / len(parts)))
        measured.append(_Measured(j, found, *_in_order_of(parts[0][1].test, part.test, probs)))
    done = [m.report for m in measured]
    differences = tuple(_differences(measured, settings))
    if any(len(own) > 1 for own in given):
        rest = iter(done)
        verdicts = [sentences.labels_verdict([next(rest) for _ in own]) for own in given]
        if len(models) > 1:
            verdicts = [f"{model.name}: {text}" for model, text in zip(models, verdicts)]
        verdict = headline = " ".join(verdicts)
    else:
        same = all(m.same_samples(measured[0]) for m in measured)
        verdict = sentences.overall_verdict(done, differences, same)
        headline = sentences.headline(done, differences, same)
    return ReportData(
        title=" / ".join(m.name for m in models) if len(models) < 4 else f"{len(models)} models",
        models=tuple(done),
        differences=differences,
        headline=headline,
        verdict=verdict,
        **settings.measuring,
        seconds=time.perf_counter() - started,
        provenance=provenance(),
    )


class _Measured(NamedTuple):
    """A model, or label number `label` of one, with its test labels (N,), ids and probabilities."""

    label: int
    report: ModelReport
    y: np.ndarray
    ids: np.ndarray | None
    probs: np.ndarray

    def same_samples(self, other: _Measured) -> bool:
        same = self.ids is None or other.ids is None or np.array_equal(self.ids, other.ids)
        return same and self.label == other.label and np.array_equal(self.y, other.y)


def _in_order_of(
    first: Predictions, test: Predictions, probs: np.ndarray
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
    """Labels, ids and `probs` of `test`, its classes and samples in the order of `first`."""
    y, ids = to_numpy(test.labels), None if test.ids is None else id_texts(test.ids)
    names, wanted = test.class_names or (), first.class_names or ()
    if names and probs.ndim == 2 and sorted(names) == sorted(wanted):
        order = [names.index(name) for name in wanted]
        y, probs = np.argsort(order)[y], probs[:, order]
    if ids is not None and first.ids is not None and first.n == test.n:
        own, others = np.argsort(ids), np.argsort(id_texts(first.ids))
        rows = own[np.argsort(others)]
        y, ids, probs = y[rows], ids[rows], probs[rows]
    return y, ids, probs


def _differences(measured: list[_Measured], settings: Settings) -> Iterator[ModelDifference]:
    """Each model after calibration against the one of lowest NLL on the same samples."""
    for m in measured:
        same = [other for other in measured if m.same_samples(other)]
        best = sentences.best_of([other.report for other in same])
        reference = next(other.probs for other in same if other.report is best)
        if m.report is not best:
            found = metrics.compare(m.y, m.probs, reference, **settings.measuring)
            yield ModelDifference(m.report.name, best.name, found)


def _model_report(
    model: Model, settings: Settings, progress: Callable[[float], None]
) -> tuple[ModelReport, np.ndarray]:
    """Everything about one model, and its test probabilities after calibration, as given."""
    val, test = model.val, model.test
    for role, part in (("validation", val), ("test", test)):
        if part.labels is None:
            raise InputError(f"{model.name}: expected labels in the {role} set, got none")
    methods = _methods(settings.methods, val.n_classes)
    z, y = val.as_logits(settings.floor), val.labels
    z_test, labels = test.as_logits(settings.floor), to_numpy(test.labels)

    progress(0.0)
    chosen, scores = _choose(methods, z, y, settings.folds)
    results, fitted = {}, {}
    for i, method in enumerate(methods):
        progress(0.3 + 0.6 * i / len(methods))
        calibrator, seconds = _fitted(method, z, y)
        probs = like_given(to_numpy(calibrator.predict_proba(z_test)), test)
        fitted[method] = calibrator
        results[method] = MethodResult(
            method=method,
            summary=calibrator.summary,
            preserves_accuracy=calibrator.preserves_accuracy,
            parameters=_parameters(calibrator),
            validation_nll=scores.get(method),
            evaluation=metrics.evaluate(labels, probs, **settings.measuring),
            seconds=seconds,
            notes=calibrator.diagnostics_.warnings,
        )

    progress(0.9)
    before, after = (to_numpy(fitted[m].predict_proba(z_test)) for m in ("identity", chosen))
    if val.class_names:
        fitted[chosen].class_names_ = val.class_names
    class_names = val.class_names or test.class_names or tuple(map(str, range(val.n_classes)))
    with np.errstate(divide="ignore", invalid="ignore"):  # a probability of zero has no finite NLL
        split = loss_split(labels, np.log(before), np.log(after), np.ones(len(labels)))
    same = np.array_equal(*(to_numpy(part.probabilities()) for part in (val, test)))
    notes = (*((SAME,) if same else ()), *(f"{chosen}: {note}" for note in results[chosen].notes))
    by = {name: test.column(name) for name in settings.by}
    given = like_given(after, test)
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
        split=counted_once(split) if test.one_column else split,
        landscape=landscape(z, y, settings.bins, fitted.get("focal-temperature")),
        wrong=_wrong_samples(labels, before, after, class_names),
        calibrator=persistence.to_dict(fitted[chosen]),
        thresholds=_thresholds(labels, after, settings.level),
        slices=metrics.evaluate_by(labels, given, by=by, **settings.measuring) if by else None,
        verdict="",
        warnings=tuple(f"{model.name}: {text}" for text in notes),
    )
    return dataclasses.replace(out, verdict=sentences.verdict(out)), given


def _fitted(method: str, z: Any, y: Any) -> tuple[calibrators.Calibrator, float]:
    """The fitted calibrator and the seconds it took; the page shows its warnings."""
    started = time.perf_counter()
    with warnings.catch_warnings(action="ignore", category=FitWarning):
        calibrator = calibrators.make(method).fit(z, y)
    return calibrator, time.perf_counter() - started


def _parameters(calibrator: calibrators.Calibrator) -> dict[str, float]:
    """The fitted numbers; arrays and names are left out."""
    state = {name.rstrip("_"): getattr(calibrator, name) for name in calibrator.state}
    return {k: float(v) for k, v in state.items() if np.ndim(v) == 0 and not isinstance(v, str)}


def _methods(wanted: Sequence[str] | None, n_classes: int) -> tuple[str, ...]:
    known = default_methods(n_classes)
    wanted = known if wanted is None else wanted
    if unknown := [m for m in wanted if m not in calibrators.METHODS or m in _NOT_ROWS]:
        raise InputError(f"expected methods among {', '.join(known)}; got {', '.join(unknown)}")
    others = tuple(dict.fromkeys(m for m in wanted if m != "identity"))
    if not others:
        raise InputError("expected a method besides identity to compare it with, got none")
    return ("identity", *others)


def _choose(
    methods: Sequence[str], logits: Any, labels: Any, folds: int
) -> tuple[str, dict[str, float]]:
    """The best method alone by cross-validated NLL, and the NLL of each candidate.

    Binning, which is not designed for low NLL, is a candidate only if there is no other.
    """
    names = [m for m in methods if m not in ("histogram", "bbq")]
    names = names if len(names) > 1 else list(methods)
    z = two_columns(to_numpy(logits).astype(np.float64))
    data = FitData(z, to_numpy(labels).astype(np.int64), np.ones(len(z)))
    held = held_out([calibrators.make(name) for name in names], data, folds)
    means = [float(mean_and_error(loss, held.sizes)[0]) for loss in held.losses]
    return best_alone(names, held), dict(zip(names, means))


def _view(result: MethodResult, labels: np.ndarray, probs: np.ndarray) -> View:
    """The data of the figures of one calibrator's test probabilities (N, K)."""
    b = result.evaluation.reliability
    classes = _bins.bin_columns(labels, probs, b.edges)
    low, high = share_interval(b.correct_sums, b.counts, result.evaluation.level)
    curve = metrics.risk_coverage(labels, probs)
    threshold, coverage, risk = curve.threshold, curve.coverage, curve.risk
    some = np.searchsorted(coverage, np.linspace(0, 1, CURVE_POINTS))
    some = np.unique(np.minimum(some, len(coverage) - 1))
    drawn = {"threshold": threshold[some], "coverage": coverage[some], "risk": risk[some]}
    kept = np.searchsorted(-threshold, -STOPS, side="right")
    coverage, risk = np.append(0.0, coverage)[kept], np.append(np.nan, risk)[kept]
    return View(
        method=result.method,
        evaluation=result.evaluation,
        accuracy_low=low,
        accuracy_high=high,
        confidence=metrics.reliability(labels, probs, bins=FINE_BINS),
        classes=classes,
        class_ece=_bins.mean_gap(classes),
        curve=dataclasses.replace(curve, **drawn),
        stops=dataclasses.replace(curve, threshold=STOPS, coverage=coverage, risk=risk),
    )


def _thresholds(
    labels: np.ndarray, probs: np.ndarray, level: float
) -> tuple[decisions.Threshold, ...]:
    """The confidence for each accuracy in TARGETS."""
    confidence, wrong = probs.max(axis=1), probs.argmax(axis=1) != labels
    return tuple(
        decisions.choose(confidence, wrong, "target_accuracy", value, level) for value in TARGETS
    )


def _wrong_samples(
    labels: np.ndarray, before: np.ndarray, after: np.ndarray, names: Sequence[str]
) -> tuple[dict[str, Any], ...]:
    """The wrong predictions with the highest calibrated confidence."""
    predicted, confidence = after.argmax(axis=1), after.max(axis=1)
    rows = np.flatnonzero(predicted != labels)
    rows = rows[np.argsort(-confidence[rows], kind="stable")][:SHOWN_WRONG]
    return tuple(
        {
            "row": int(i),
            "predicted": names[predicted[i]],
            "true": names[labels[i]],
            "confidence_before": float(before[i].max()),
            "confidence_after": float(confidence[i]),
            "true_class_probability": float(after[i, labels[i]]),
        }
        for i in rows
    )


def _sources(model: Model) -> tuple[dict[str, Any], ...]:
    return tuple(
        {
            "role": role,
            "file": file.name if file else "(in memory)",
            "sha256": digest(file) if file else None,
            "n": part.n,
            "class_counts": np.bincount(to_numpy(part.labels), minlength=part.n_classes).tolist(),
            "provenance": dict(part.provenance),
        }
        for role, part, file in zip(
            ("validation", "test"), (model.val, model.test), model.files or (None, None)
        )
    )
