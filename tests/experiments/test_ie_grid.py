"""Which printed value stands beside a run, and what of the paper's setting is not ours."""

from __future__ import annotations

import numpy as np
import pytest

from focalcal.experiments import Run
from focalcal.experiments.ie_grid import known
from focalcal.predictions import Predictions

TABLE = {
    (*place, "ce"): {"value": place[1]}
    for place in (("sst-binary", "tree-lstm"), ("20newsgroups", "gpcnn"), ("CIFAR-10", "resnet50"))
}


@pytest.mark.parametrize(
    ("settings", "value", "setting"),
    [
        (("sst", "tree_lstm", 25, {"vectors": "glove.6B.300d.txt"}), "tree-lstm", ""),
        (("sst", "tree_lstm", 25, {}), "tree-lstm", "word vectors of 300 numbers, ours 100"),
        (("20newsgroups", "text_cnn", 50, {}), "gpcnn", ""),
        (("20newsgroups", "text_cnn", 9, {"length": 300}), "gpcnn", "50 epochs, 1000 words"),
        (("cifar10", "resnet50", 350, {}), "resnet50", ""),
        (("cifar10", "resnet18", 30, {}), "resnet50", "resnet50, 350 epochs"),
        (("mnist", "resnet50", 350, {}), None, ""),
    ],
)
def test_the_printed_row_and_what_is_unlike(settings, value, setting):
    names = ("dataset", "model", "epochs", "data_settings")
    some = Predictions(logits=np.eye(2), labels=[0, 1])
    run = Run("one", dict(zip(names, settings)) | {"loss": "ce"}, some, some)
    row, unlike = known(run, TABLE)
    assert (row.get("value"), unlike) == (value, setting)
