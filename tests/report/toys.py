"""Small predictions that the tests of reports share."""

from __future__ import annotations

import numpy as np

from focalcal.calibrators import make
from focalcal.predictions import Predictions
from focalcal.report import Model

EVIL = "<script>alert('x')</script>"
METHODS = ("identity", "temperature", "focal-temperature", "vector", "histogram")


def toy(seed: int = 0, n: int = 1200, scale: float = 2.5) -> tuple[Predictions, Predictions]:
    """Validation and test halves of over-confident predictions of four classes."""
    rng = np.random.default_rng(seed)
    z = 2 * rng.normal(size=(n, 4))
    y = np.argmax(z + rng.gumbel(size=z.shape), axis=1)
    names = ("cat", "dog & co", EVIL, "owl")
    whole = Predictions(
        logits=scale * z, labels=y, class_names=names, provenance={"recipe": "</script><b>x"}
    )
    return whole.split()


def calibrated(model: Model, method: str) -> np.ndarray:
    """Test probabilities by a method fitted on the validation set, without the report."""
    fitted = make(method).fit(model.val.logits, model.val.labels)
    return fitted.predict_proba(model.test.logits)
