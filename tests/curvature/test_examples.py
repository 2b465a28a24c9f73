"""The examples in the docstrings."""

import doctest
import importlib

import pytest

MODULES = ["lanczos", "logit", "norms", "operators", "summary", "trace"]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    result = doctest.testmod(importlib.import_module(f"focalcal.curvature.{name}"))
    assert result.attempted > 0
    assert result.failed == 0
