"""The open questions of GEO on small networks: means over seeds, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from focalcal.experiments import EXPERIMENTS, Material, Run
from focalcal.experiments.geo_small import WAYS
from focalcal.predictions import Predictions


def _run(rng, way: str, seed: int, trace: float | None) -> Run:
    z = rng.normal(size=(200, 3))
    found = Predictions(logits=z, labels=z.argmax(axis=1))
    settings = {"dataset": "fashion_mnist", "model": "mlp", "epochs": 70, "seed": seed}
    curvature = (
        None if trace is None else {"trace": {"value": trace}, "top": {"values": [trace / 4]}}
    )
    return Run(way, settings | WAYS[way], found, found, curvature=curvature)


def test_a_lower_trace_means_with_every_seed(rng):
    traces = {"ce": (10, 12), "sam": (4, 5), "mixup": (9, 13), "brier": (None, None)}
    runs = [_run(rng, way, s, t) for way, each in traces.items() for s, t in enumerate(each)]
    found = EXPERIMENTS["geo/open1-mlp"].analyse(Material("lite", tuple(runs)))
    assert "(11) the trace is lower with every seed for sam (4.5); not for mixup (11)." in (
        found.conclusion
    )
    assert "over these 3 ways" in found.conclusion
    row = next(row for row in found.tables[0].rows if row[0] == "sam")
    assert row[4] == f"4.5 ± {np.std([4, 5], ddof=1):.2g}"
    assert row[-1] == "2"


def test_without_cross_entropy_nothing_is_said(rng):
    material = Material("lite", (_run(rng, "sam", 0, 4.0),))
    assert "Not run" in EXPERIMENTS["geo/open1-mlp"].analyse(material).conclusion


@pytest.mark.parametrize("scale", ["lite", "paper"])
def test_every_way_and_network_has_its_recipes(scale):
    assert len(EXPERIMENTS["geo/open1-mlp"].recipes(scale)) == 3 * len(WAYS)
    assert len(EXPERIMENTS["geo/open2-small"].recipes(scale)) == 20
