"""
XGBoost and LightGBM
====================

Calibrate a fitted booster on held-out rows.

::

    pip install xgboost-cpu lightgbm
    python examples/gradient_boosting.py
"""

from __future__ import annotations

from typing import Any

from sklearn.datasets import make_classification
from sklearn.model_selection import train_test_split

from focalcal.calibrators import CalibratedClassifier, StructuredMatrixScaling
from focalcal.metrics import nll


def boosters() -> dict[str, Any]:
    from lightgbm import LGBMClassifier
    from xgboost import XGBClassifier

    settings = {"n_estimators": 150, "max_depth": 6, "random_state": 0, "n_jobs": 1}
    return {
        "xgboost": XGBClassifier(**settings),
        "lightgbm": LGBMClassifier(**settings, verbose=-1),
    }


def main() -> dict[str, tuple[float, float]]:
    """NLL on test rows (before, after) calibration, by library."""
    X, y = make_classification(
        3000, n_classes=3, n_informative=6, flip_y=0.2, class_sep=0.7, random_state=0
    )
    X_train, X_rest, y_train, y_rest = train_test_split(X, y, test_size=0.5, random_state=0)
    X_cal, X_test, y_cal, y_test = train_test_split(X_rest, y_rest, test_size=0.5, random_state=0)
    scores = {}
    for name, booster in boosters().items():
        booster.fit(X_train, y_train)
        calibrated = CalibratedClassifier(booster, StructuredMatrixScaling()).fit(X_cal, y_cal)
        scores[name] = (
            nll(y_test, booster.predict_proba(X_test)),
            nll(y_test, calibrated.predict_proba(X_test)),
        )
    return scores


if __name__ == "__main__":
    for name, (before, after) in main().items():
        print(f"{name:9} NLL {before:.4f} -> {after:.4f}")

# sphinx_gallery_thumbnail_path = '_build/cards/gradient_boosting.png'
