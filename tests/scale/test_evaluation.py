from __future__ import annotations

import numpy as np
import pytest

from focalcal import metrics
from focalcal.metrics import CalibrationStats
from focalcal.predictions import Predictions
from focalcal.scale import Source, statistics
from focalcal.scale.evaluation import merge_statistics

from .conftest import ROWS


@pytest.mark.parametrize("bins", [15, 7])
def test_equals_the_metrics_in_memory(memory, pattern, bins):
    """`metrics.evaluate` sorts and bins all samples at once: no histogram, no merging."""
    z, y = memory
    found = statistics(Source.open(pattern), bins=bins).compute()
    probs = Predictions(logits=z, labels=y).probabilities()
    truth = metrics.evaluate(y, probs, bins=bins, resamples=2)
    assert found.n == ROWS
    for name, streamed in found.metrics.items():
        expected = truth[name].value
        assert streamed.value == pytest.approx(expected, abs=streamed.error_bound + 1e-9), name
    assert found["ece"].error_bound == 0


def test_merging_changes_neither_part(memory):
    z, y = memory
    p = Predictions(logits=z, labels=y).probabilities()
    a = CalibrationStats(4).update(y[:100], p[:100])
    b = CalibrationStats(4).update(y[100:300], p[100:300])
    before = a.to_json(), b.to_json()
    merged = merge_statistics(a, b)
    assert merged.n == 300
    assert (a.to_json(), b.to_json()) == before
    again = merge_statistics(a, b)
    assert again.to_json() == merged.to_json()
    assert np.isclose(merged.compute()["ece"].value, metrics.ece(y[:300], p[:300]), atol=1e-12)
