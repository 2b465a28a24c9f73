"""The arena's scores and table, on made-up tasks."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture
def arena(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    return importlib.import_module("arena")


def task(arena, rng, name="exact"):
    z = 2 * rng.normal(size=(600, 3))
    y = np.argmax(z + rng.gumbel(size=z.shape), axis=1)
    return arena.Task(name, "network", 0, z[:300], y[:300], z[300:], y[300:])


def test_noise_is_the_ece_of_exact_probabilities(arena, rng, tmp_path):
    rows = {"identity": arena.own_methods()["identity"]}
    found = [arena.score(rows, task(arena, rng, f"t{i}"), tmp_path)["scores"] for i in range(20)]
    ece, noise = np.mean([s["identity"] for s in found], axis=0)[[2, 4]]
    assert noise == pytest.approx(ece, rel=0.15)


def test_scores_are_kept(arena, rng, tmp_path):
    rows = {"identity": arena.own_methods()["identity"]}
    one = task(arena, rng)
    first = arena.score(rows, one, tmp_path)
    assert first["scores"]["identity"][5] < 1e-12  # no gap to itself
    assert arena.score({"identity": None}, one, tmp_path) == first


def test_the_table_tells_worse_from_clearly_worse(arena):
    def pair(gap, error):
        other = [1 + gap, 0.5, 4.0, 0.1, 3.0, error]
        scores = {"identity": [1.0, 0.5, 4.0, 0.0, 3.0, 0.0], "other": other}
        return {"name": "t", "kind": "k", "seed": 0, "n": 100, "scores": scores}

    results = [pair(0.3, 0.1), pair(0.1, 0.1), pair(-0.1, 0.1), pair(-0.2, 0.1)]
    row = next(x for x in arena.table(results, ["identity", "other"]).splitlines() if "other" in x)
    assert "| 4.00 (3.00) |" in row
    assert "| 50.0 (25.0) |" in row
