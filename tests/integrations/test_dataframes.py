"""pandas and polars columns and frames are taken wherever arrays are."""

from __future__ import annotations

import numpy as np
import pytest

from focalcal import metrics
from focalcal._arrays import softmax
from focalcal.calibrators import TemperatureScaling
from focalcal.errors import InputError, InputWarning

NAMES = ["cat", "dog", "bird"]


@pytest.fixture(params=["pandas", "polars"])
def library(request):
    return pytest.importorskip(request.param, reason=f"{request.param} is not installed")


@pytest.fixture
def table(sharp_data):
    z, y = sharp_data(300, 3)
    return z, softmax(z), y


def test_evaluate_takes_columns_and_frames(library, table):
    _, probs, y = table
    frame = library.DataFrame({name: probs[:, j] for j, name in enumerate(NAMES)} | {"label": y})
    found = metrics.evaluate(frame["label"], frame[NAMES], resamples=20)
    expected = metrics.evaluate(y, probs, resamples=20)
    for name, estimate in expected.metrics.items():
        assert found[name].value == pytest.approx(estimate.value, rel=1e-12), name
    correct = library.Series((probs.argmax(1) == y).tolist())
    confidence = library.Series(probs.max(1).tolist())
    assert metrics.ece(correct, confidence=confidence) == pytest.approx(metrics.ece(y, probs))


def test_calibrators_take_frames(library, table):
    z, _, y = table
    frame = library.DataFrame({name: z[:, j] for j, name in enumerate(NAMES)})
    fitted = TemperatureScaling().fit(frame, library.Series(y))
    assert fitted.temperature_ == TemperatureScaling().fit(z, y).temperature_
    assert isinstance(fitted.predict_proba(frame), np.ndarray)


def test_missing_values_and_too_many_texts_are_refused(library):
    with pytest.raises(InputError, match="finite"):
        metrics.ece([0, 1], library.Series([0.5, float("nan")]))
    with pytest.raises(InputError, match="expected 2 different"):
        metrics.ece(library.Series(["cat", "dog", "cow"]), [0.5, 0.5, 0.5])


def test_texts_are_classes_in_alphabetical_order_and_said_to_be(library):
    with pytest.warns(InputWarning, match="cat, dog, in alphabetical order"):
        found = metrics.ece(library.Series(["cat", "dog"]), [0.1, 0.8])
    assert found == metrics.ece([0, 1], [0.1, 0.8])
