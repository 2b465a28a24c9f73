"""
A scikit-learn pipeline
=======================

A calibrated classifier in a Pipeline, compared with CalibratedClassifierCV.

::

    python examples/sklearn_pipeline.py

`CalibratedClassifier(estimator, calibrator, cv=5)` fits one estimator on all samples and one map
on out-of-fold logits; scikit-learn's `CalibratedClassifierCV` with its default `ensemble` keeps
five of each.
"""

from __future__ import annotations

from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from focalcal.calibrators import CalibratedClassifier, TemperatureScaling
from focalcal.metrics import ece, nll


def main() -> dict[str, tuple[float, float]]:
    """(ECE, NLL) on held-out digits, by classifier name."""
    X, y = load_digits(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)
    forest = RandomForestClassifier(50, random_state=0)
    models = {
        "random forest": forest,
        "focalcal": CalibratedClassifier(forest, TemperatureScaling(), cv=5),
        "scikit-learn": CalibratedClassifierCV(forest, method="isotonic", cv=5),
    }
    scores = {}
    for name, model in models.items():
        pipeline = make_pipeline(StandardScaler(), model).fit(X_train, y_train)
        proba = pipeline.predict_proba(X_test)
        scores[name] = (ece(y_test, proba), nll(y_test, proba))
    return scores


if __name__ == "__main__":
    for name, (error, loss) in main().items():
        print(f"{name:14} ECE {100 * error:5.2f} %   NLL {loss:.3f}")

# sphinx_gallery_thumbnail_path = '_build/cards/sklearn_pipeline.png'
