"""A scikit-learn classifier with calibrated probabilities, around any classifier and calibrator."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.model_selection import StratifiedKFold
from sklearn.utils import _safe_indexing, assert_all_finite, column_or_1d, get_tags, indexable
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _num_samples, check_is_fitted, has_fit_parameter

from focalcal._checks import check_weights
from focalcal.calibrators.base import Calibrator
from focalcal.errors import InputError

RESPONSES = ("auto", "decision_function", "predict_log_proba")
CERTAIN = 1e-15
"""Smaller probabilities are zero: one error at 1e-4000 (naive Bayes) would determine T."""


class CalibratedClassifier(MetaEstimatorMixin, ClassifierMixin, BaseEstimator):
    """A classifier whose `predict_proba` is calibrated by one calibrator.

    With cv="prefit" the estimator is already fitted, and `fit` takes calibration data, which must
    not be its training data. With cv=k, `fit` collects out-of-fold logits of all samples (k
    stratified folds), fits one calibrator to them, and then fits the estimator to all samples. The
    result is one estimator and one map, where scikit-learn's `CalibratedClassifierCV` averages k of
    each.

    estimator: any scikit-learn classifier; calibrator: a calibrator of this package or its name in
    METHODS, None for temperature scaling by NLL; cv: "prefit" or the number of folds, at least 2;
    response: "decision_function" or "predict_log_proba", which gives the logits, or "auto" for the
    first of them that the estimator has; random_state: seed of the folds' shuffling.

    A probability below 1e-15 counts as zero; where there are zeros, the calibrator learns a floor
    under the probabilities.

    Fitted: `estimator_`, `calibrator_`, `classes_`.

    >>> from sklearn.datasets import make_classification
    >>> from sklearn.naive_bayes import GaussianNB
    >>> X, y = make_classification(300, random_state=0)
    >>> model = CalibratedClassifier(GaussianNB().fit(X[:150], y[:150])).fit(X[150:], y[150:])
    >>> model.predict_proba(X[:2]).shape
    (2, 2)
    """

    def __init__(
        self,
        estimator: Any,
        calibrator: Calibrator | str | None = None,
        *,
        cv: int | str = "prefit",
        response: str = "auto",
        random_state: int | None = 0,
    ) -> None:
        self.estimator = estimator
        self.calibrator = calibrator
        self.cv = cv
        self.response = response
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the calibrator to X (N, features), y (N,); with cv=k the estimator too."""
        if self.response not in RESPONSES:
            raise InputError(f"expected response in {RESPONSES}, got {self.response!r}")
        prefit = isinstance(self.cv, str) and self.cv == "prefit"
        if not prefit and (not isinstance(self.cv, (int, np.integer)) or self.cv < 2):
            raise InputError(f"expected cv 'prefit' or a whole number >= 2, got {self.cv!r}")
        X, y = indexable(X, y)
        y = column_or_1d(y, warn=True)
        assert_all_finite(y, input_name="y")
        check_classification_targets(y)
        if sample_weight is not None:
            sample_weight = check_weights(sample_weight, _num_samples(X))
        if prefit:
            check_is_fitted(self.estimator)
            self.estimator_ = self.estimator
            logits = self._logits(self.estimator, X)
        else:
            logits = self._out_of_fold_logits(X, y, sample_weight)
            self.estimator_ = _fit_clone(self.estimator, X, y, sample_weight)
        self.classes_ = np.asarray(self.estimator_.classes_)
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self.estimator_, name):
                setattr(self, name, getattr(self.estimator_, name))
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            raise InputError(
                f"expected labels the estimator was fitted to, got {unknown[:3].tolist()}"
            )
        from focalcal.calibrators import make  # it imports this module

        given = "temperature" if self.calibrator is None else self.calibrator
        calibrator = make(given) if isinstance(given, str) else clone(given)
        order = np.argsort(self.classes_)  # some estimators keep the order given to them
        codes = order[np.searchsorted(self.classes_, y, sorter=order)]
        self.calibrator_ = calibrator.fit(logits, codes, sample_weight=sample_weight)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Calibrated probabilities (N, K), columns in the order of `classes_`."""
        check_is_fitted(self, "calibrator_")
        return self.calibrator_.predict_proba(self._logits(self.estimator_, X))

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Calibrated log-probabilities (N, K)."""
        check_is_fitted(self, "calibrator_")
        return self.calibrator_.predict_log_proba(self._logits(self.estimator_, X))

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class after calibration (N,)."""
        proba = self.predict_proba(X)
        return self.classes_[np.argmax(proba, axis=1)]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = get_tags(self.estimator).input_tags.sparse
        tags.input_tags.allow_nan = get_tags(self.estimator).input_tags.allow_nan
        return tags

    def _out_of_fold_logits(self, X: Any, y: np.ndarray, sample_weight: Any) -> np.ndarray:
        classes, counts = np.unique(y, return_counts=True)
        if len(classes) < 2 or counts.min() < self.cv:
            raise InputError(
                f"expected 2 or more classes with at least cv={self.cv} samples each, got "
                f"{len(classes)} class(es), the rarest with {counts.min()}; use fewer folds"
            )
        folds = StratifiedKFold(self.cv, shuffle=True, random_state=self.random_state)
        logits = None
        for train, test in folds.split(np.zeros(len(y)), y):
            weights = None if sample_weight is None else sample_weight[train]
            part = _fit_clone(self.estimator, _safe_indexing(X, train), y[train], weights)
            held_out = self._logits(part, _safe_indexing(X, test))
            logits = np.empty((len(y), *held_out.shape[1:])) if logits is None else logits
            logits[test] = held_out
        return logits

    def _logits(self, estimator: Any, X: Any) -> np.ndarray:
        """Logits (N, K), or (N,) of the second class if the estimator gives a binary margin."""
        response = self.response
        if response == "auto":
            margin = hasattr(estimator, "decision_function")
            response = "decision_function" if margin else "predict_log_proba"
        classes = len(estimator.classes_)
        with np.errstate(divide="ignore"):
            if response == "decision_function" or hasattr(estimator, response):
                logits = np.asarray(getattr(estimator, response)(X), dtype=np.float64)
            else:
                logits = np.log(np.asarray(estimator.predict_proba(X), dtype=np.float64))
        if classes < 2 or (logits.ndim == 2 and logits.shape[1] not in {classes, 1}):
            raise InputError(
                f"expected one logit for each of 2 or more classes, got shape {logits.shape} for "
                f"{classes} class(es) from {response}; for SVC use decision_function_shape='ovr'"
            )
        if response == "decision_function":
            return logits
        return np.where(logits < np.log(CERTAIN), -np.inf, logits)


def _fit_clone(estimator: Any, X: Any, y: np.ndarray, sample_weight: Any) -> Any:
    if sample_weight is None:
        return clone(estimator).fit(X, y)
    if not has_fit_parameter(estimator, "sample_weight"):
        raise InputError(
            f"expected an estimator whose fit takes sample_weight, got "
            f"{type(estimator).__name__}; use cv='prefit' to weight the calibration only"
        )
    return clone(estimator).fit(X, y, sample_weight=sample_weight)
