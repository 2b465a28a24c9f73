"""The examples in the docstrings of the bins and the metrics."""

from __future__ import annotations

import doctest
import importlib

import pytest

MODULES = [
    "focalcal._blocks",
    "focalcal.bins",
    "focalcal.stats",
    *(
        f"focalcal.metrics.{name}"
        for name in ("calibration", "resampling", "sample", "scores", "selective", "smooth")
    ),
    "focalcal.metrics.summary",
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert failed == 0
    assert tried > 0
