"""CalibratedClassifier: scikit-learn's own checks, and identities with its parts."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, Perceptron
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.estimator_checks import parametrize_with_checks

from focalcal.calibrators import (
    CalibratedClassifier,
    IsotonicCalibration,
    PlattScaling,
    TemperatureScaling,
    VectorScaling,
)
from focalcal.errors import InputError

EXPECTED_FAILURES = {
    "check_sample_weight_equivalence_on_dense_data": "folds are drawn over rows, weighted or not",
    "check_sample_weight_equivalence_on_sparse_data": "folds are drawn over rows, weighted or not",
}


@parametrize_with_checks(
    [CalibratedClassifier(LogisticRegression(C=1), PlattScaling(), cv=2)],
    expected_failed_checks=lambda _: EXPECTED_FAILURES,
)
@pytest.mark.filterwarnings("ignore::focalcal.errors.FitWarning")  # the checks fit tiny data
def test_scikit_learn_rules(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def data():
    X, y = make_classification(
        600, n_classes=3, n_informative=6, class_sep=0.7, flip_y=0.1, random_state=0
    )
    return X, np.array(["ant", "bee", "cat"])[y]


@pytest.mark.parametrize(
    "estimator",
    [GaussianNB(), LogisticRegression(), RandomForestClassifier(20, random_state=0), SVC()],
    ids=lambda e: type(e).__name__,
)
def test_prefit_equals_its_parts(estimator, data):
    X, y = data
    estimator.fit(X[:300], y[:300])
    model = CalibratedClassifier(estimator, PlattScaling()).fit(X[300:], y[300:])
    margin = hasattr(estimator, "decision_function")
    with np.errstate(divide="ignore"):
        z = estimator.decision_function(X) if margin else np.log(estimator.predict_proba(X))
    if not margin:
        z = np.where(z < np.log(1e-15), -np.inf, z)
    by_hand = PlattScaling().fit(z[300:], np.searchsorted(model.classes_, y[300:]))
    np.testing.assert_allclose(model.predict_proba(X), by_hand.predict_proba(z), atol=1e-9)
    np.testing.assert_allclose(np.exp(model.predict_log_proba(X)), model.predict_proba(X))
    assert set(model.predict(X)) <= {"ant", "bee", "cat"}
    assert model.estimator_ is estimator


def test_cross_validation_uses_out_of_fold_logits(data):
    # Independent: the same folds through scikit-learn's cross_val_predict.
    X, y = data
    folds = StratifiedKFold(3, shuffle=True, random_state=0)
    z = cross_val_predict(LogisticRegression(), X, y, cv=folds, method="decision_function")
    by_hand = TemperatureScaling().fit(z, np.unique(y, return_inverse=True)[1])
    model = CalibratedClassifier(LogisticRegression(), cv=3).fit(X, y)
    assert model.calibrator_.temperature_ == pytest.approx(by_hand.temperature_, rel=1e-6)
    full = LogisticRegression().fit(X, y)
    np.testing.assert_allclose(model.estimator_.coef_, full.coef_)


def test_works_in_a_pipeline_and_with_frozen_estimators(data):
    X, y = data
    model = make_pipeline(
        StandardScaler(), CalibratedClassifier(GaussianNB(), IsotonicCalibration(), cv=3)
    ).fit(X, y)
    assert model.score(X, y) > 0.5
    frozen = CalibratedClassifier(FrozenEstimator(GaussianNB().fit(X, y)))
    assert frozen.fit(X, y).predict_proba(X).shape == (600, 3)


def test_weights_reach_the_estimator_and_the_calibrator(data):
    X, y = data
    weights = np.random.default_rng(0).random(600)
    model = CalibratedClassifier(LogisticRegression(), PlattScaling(), cv=2)
    weighted = model.fit(X, y, sample_weight=weights).predict_proba(X)
    assert not np.allclose(weighted, model.fit(X, y).predict_proba(X), atol=1e-4)


def test_classifiers_without_margin_or_log_probabilities(data):
    X, y = data
    knn = CalibratedClassifier(KNeighborsClassifier(5), PlattScaling(), cv=3).fit(X, y)
    assert np.isfinite(knn.predict_log_proba(X)).all()
    perceptron = CalibratedClassifier(Perceptron(), PlattScaling(), cv=3).fit(X, y)
    assert perceptron.predict_proba(X).shape == (600, 3)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (CalibratedClassifier(GaussianNB(), cv=1), "expected cv 'prefit' or a whole number"),
        (CalibratedClassifier(GaussianNB(), cv="3"), "expected cv 'prefit' or a whole number"),
        (CalibratedClassifier(GaussianNB(), cv=2, response="proba"), "expected response in"),
        (CalibratedClassifier(GaussianNB(), cv=500), "at least cv=500 samples each"),
    ],
)
def test_settings_that_make_no_sense_are_refused(model, message, data):
    with pytest.raises(InputError, match=message):
        model.fit(*data)


def test_data_that_do_not_fit_are_refused(data):
    X, y = data
    fitted = GaussianNB().fit(X, y)
    with pytest.raises(InputError, match="expected labels the estimator was fitted to"):
        CalibratedClassifier(fitted).fit(X[:3], ["ant", "bee", "dog"])
    with pytest.raises(InputError, match="whose fit takes sample_weight"):
        CalibratedClassifier(KNeighborsClassifier(), cv=2).fit(X, y, sample_weight=np.ones(600))
    X4, y4 = make_classification(200, n_classes=4, n_informative=6, random_state=0)
    ovo = SVC(decision_function_shape="ovo").fit(X4, y4)
    with pytest.raises(InputError, match="decision_function_shape='ovr'"):
        CalibratedClassifier(ovo).fit(X4, y4)
    one = DecisionTreeClassifier().fit(X[:5], np.zeros(5))
    with pytest.raises(InputError, match="2 or more classes"):
        CalibratedClassifier(one).fit(X[:5], np.zeros(5))


def test_absurd_certainty_does_not_decide_the_temperature():
    """Naive Bayes on pixels is wrong with log-probabilities of −1e3 and less."""
    from sklearn.datasets import load_digits

    from focalcal.metrics import ece, nll

    X, y = load_digits(return_X_y=True)
    model = GaussianNB().fit(X[:700], y[:700])
    calibrated = CalibratedClassifier(model).fit(X[700:1200], y[700:1200])
    plain, corrected = model.predict_proba(X[1200:]), calibrated.predict_proba(X[1200:])
    assert ece(y[1200:], corrected) < 0.5 * ece(y[1200:], plain)
    assert nll(y[1200:], corrected) < 1.0


def test_a_calibrator_can_be_given_by_name(data):
    X, y = data
    named, built = (
        CalibratedClassifier(LogisticRegression(), c, cv=3).fit(X, y).predict_proba(X)
        for c in ("vector", VectorScaling())
    )
    np.testing.assert_array_equal(named, built)
    assert clone(CalibratedClassifier(LogisticRegression(), "beta")).calibrator == "beta"
    with pytest.raises(InputError, match="expected a method of"):
        CalibratedClassifier(LogisticRegression(), "heat", cv=3).fit(X, y)


def test_classes_in_an_order_of_their_own(data):
    """As skorch keeps the order that it is given; labels were looked up as if sorted."""

    class Reversed(LogisticRegression):
        def fit(self, X, y, sample_weight=None):
            super().fit(X, y, sample_weight)
            self.classes_ = self.classes_[::-1]
            return self

        def decision_function(self, X):
            return (X @ self.coef_.T + self.intercept_)[:, ::-1]

    X, y = data
    model, plain = (
        CalibratedClassifier(kind().fit(X, y), PlattScaling()).fit(X, y)
        for kind in (Reversed, LogisticRegression)
    )
    np.testing.assert_allclose(model.predict_proba(X)[:, ::-1], plain.predict_proba(X), atol=1e-9)
    np.testing.assert_array_equal(model.predict(X), plain.predict(X))
