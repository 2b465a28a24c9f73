"""The arena's scores and table, on made-up tasks."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest

from focalcal import metrics


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
        other = [1 + gap, 0.5, 4.0, 0.1, 3.0, error, -0.0004]
        scores = {"identity": [1.0, 0.5, 4.0, 0.0, 3.0, 0.0, 0.0], "other": other}
        return {"name": "t", "kind": "k", "seed": 0, "n": 100, "scores": scores}

    results = [pair(0.3, 0.1), pair(0.1, 0.1), pair(-0.1, 0.1), pair(-0.2, 0.1)]
    row = next(x for x in arena.table(results, ["identity", "other"]).splitlines() if "other" in x)
    assert "| 4.00 (3.00) | -2.00 |" in row
    assert "| 50.0 (25.0) |" in row


def test_the_squared_gap_has_no_bias(arena, rng):
    # Confidence .7 or .9, right in .7: the mean squared gap is .02. Noise alone adds .21/7 = .03.
    found = []
    for _ in range(4000):
        confidence = np.repeat([0.7, 0.9], 7)
        correct = rng.random(14) < 0.7
        p = np.stack([confidence, 1 - confidence], axis=1)
        found.append(arena.squared_gap(np.where(correct, 0, 1), p))
    assert np.mean(found) == pytest.approx(0.02, abs=0.003)


def test_the_squared_gap_is_the_mean_over_pairs(arena, rng):
    confidence = np.concatenate([rng.uniform(0.5, 1, 40), np.full(9, 0.75), [0.501]])
    labels = (rng.random(50) > confidence).astype(int)
    p = np.stack([confidence, 1 - confidence], axis=1)
    b = metrics.equal_mass_reliability(labels, p, bins=6)
    total = number = 0.0
    for low, high in zip(b.edges[:-1], b.edges[1:]):
        r = [(1 - y) - c for y, c in zip(labels, confidence) if low < c <= high]
        if len(r) > 1:
            pairs = [a * c for i, a in enumerate(r) for j, c in enumerate(r) if i != j]
            total, number = total + len(r) * np.mean(pairs), number + len(r)
    assert arena.squared_gap(labels, p, 6) == pytest.approx(total / number)
