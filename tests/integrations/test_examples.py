"""The examples in the docstrings."""

import doctest
import importlib

import pytest

pytest.importorskip("torch")


@pytest.mark.parametrize("name", ["huggingface", "segmentation", "torchmetrics", "tracking"])
def test_examples(name):
    if name == "torchmetrics":
        pytest.importorskip("torchmetrics", reason="torchmetrics is not installed")
    result = doctest.testmod(importlib.import_module(f"focalcal.integrations.{name}"))
    assert result.attempted > 0
    assert result.failed == 0
