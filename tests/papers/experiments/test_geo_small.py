"""The open questions of GEO on small networks: means over seeds, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from focalcal.predictions import Predictions
from focalcal_papers.experiments import EXPERIMENTS, Material, Run
from focalcal_papers.experiments.geo_recipes import WAYS


def _run(rng, way: str, seed: int, trace: float | None) -> Run:
    z = rng.normal(size=(200, 3))
    found = Predictions(logits=z, labels=z.argmax(axis=1))
    settings = {"dataset": "fashion_mnist", "model": "mlp", "epochs": 70, "seed": seed}
    curvature = None
    if trace is not None:
        ends = {"low": 0.9 * trace, "high": 1.1 * trace}
        curvature = {"trace": {"value": trace} | ends, "top": {"values": [1.0]}}
    return Run(way, settings | WAYS[way], found, found, curvature=curvature)


def test_sides_are_taken_with_every_seed_and_outside_the_intervals(rng):
    traces = {
        **{"ce": (10, 12), "sam": (4, 5), "mmce": (20, 20), "mixup": (9, 13)},
        # the first only by chance; the last two without a trace, or another to compare with
        **{"fl-1": (9, 11), "brier": (None, None), "fl-3": (None, None, 1)},
    }
    runs = [_run(rng, way, s, t) for way, each in traces.items() for s, t in enumerate(each)]
    found = EXPERIMENTS["geo/open1-mlp"].analyse(Material("lite", tuple(runs)))
    expected = "lower for sam (4.5); higher for mmce (20); neither for mixup (11), fl-1 (10)."
    assert expected in found.conclusion
    assert "cross-entropy (11)" in found.conclusion
    rows = {row[0]: row for row in found.tables[0].rows}
    assert rows["sam"][4] == f"4.5 ± {np.std([4, 5], ddof=1):.2g}"
    assert (rows["sam"][-1], rows["fl-3"][4]) == ("2", "1 ± —")
    assert "brier" not in rows


def test_without_cross_entropy_nothing_is_said(rng):
    material = Material("lite", (_run(rng, "sam", 0, 4.0),))
    assert "Not run" in EXPERIMENTS["geo/open1-mlp"].analyse(material).conclusion


@pytest.mark.parametrize("scale", ["lite", "paper"])
def test_every_way_and_network_has_its_recipes(scale):
    assert len(EXPERIMENTS["geo/open1-mlp"].recipes(scale)) == 3 * len(WAYS)
    assert len(EXPERIMENTS["geo/open2-small"].recipes(scale)) == 15
