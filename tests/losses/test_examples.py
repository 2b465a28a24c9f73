"""The examples in the docstrings run."""

from __future__ import annotations

import doctest
import importlib

import pytest

MODULES = [
    "adafocal",
    "classification",
    "curvature",
    "focal",
    "mmce",
    "registry",
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name: str) -> None:
    result = doctest.testmod(importlib.import_module(f"focalcal.losses.{name}"))
    assert result.attempted > 0
    assert result.failed == 0
