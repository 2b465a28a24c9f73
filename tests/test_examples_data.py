"""The predictions that come with the package."""

from __future__ import annotations

import pytest

from focalcal import metrics
from focalcal.errors import InputError
from focalcal.examples import LOSSES, resnet18


@pytest.mark.parametrize("loss", LOSSES)
def test_they_are_good_networks(loss):
    val, test = resnet18(loss)
    assert len(val.labels) == 5000
    assert metrics.accuracy(test.labels, test.probabilities()) == pytest.approx(0.949, abs=0.002)


def test_another_loss_is_refused():
    with pytest.raises(InputError, match="expected a network of ce or fl3"):
        resnet18("mse")
