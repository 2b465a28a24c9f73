"""Measured shift: the record by hand, through the store, and in words."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from focalcal import metrics
from focalcal.calibrators import TemperatureScaling
from focalcal.predictions import Predictions
from focalcal_papers.experiments import EXPERIMENTS, Finding, Material, Result, Run, Store, refresh
from focalcal_papers.experiments.fts_next import measured_shift
from focalcal_papers.experiments.runner import analysed

SETTINGS = {
    **{"dataset": "cifar10", "model": "resnet18", "loss": "fl-1", "epochs": 350, "seed": 0},
    **{"reduction": "sum", "clip_norm": 2.0, "precision": "bf16"},
}


def _predictions(rng, scale: float) -> Predictions:
    z = rng.normal(size=(600, 4)) * 2
    y = np.argmax(z + rng.gumbel(size=z.shape), axis=1)
    return Predictions(logits=scale * z, labels=y)


@pytest.fixture
def run(rng) -> Run:
    run = Run("one", SETTINGS, _predictions(rng, 2.0), _predictions(rng, 2.0))
    corrupted = {("blur", s): _predictions(rng, 2.0 + s) for s in (1, 5)}
    return dataclasses.replace(run, shift=measured_shift(run, corrupted))


def test_the_record_is_what_its_parts_give_by_hand(run, rng):
    hard = _predictions(rng, 5.0)
    found = measured_shift(run, {("blur", 5): hard})["blur"]
    t = TemperatureScaling().fit(run.calibration.as_logits(), run.calibration.labels)
    probs = t.predict_proba(hard.as_logits())
    assert list(found) == ["0", "5"]
    assert found["5"]["n"] == 600
    assert found["5"]["error"] == metrics.error(hard.labels, hard.probabilities())
    assert found["5"]["ece"]["ts"] == pytest.approx(metrics.ece(hard.labels, probs))
    assert found["5"]["brier"]["ts"] == pytest.approx(metrics.brier(hard.labels, probs))
    clean = metrics.ece(run.test.labels, run.test.probabilities())
    assert found["0"]["ece"]["none"] == pytest.approx(clean)


def test_a_stored_run_keeps_what_was_measured_with_its_weights(run, tmp_path):
    store = Store(tmp_path)
    store.add(run)
    (stored,) = store.runs()
    assert stored.shift["blur"]["5"]["n"] == 600
    for method, value in run.shift["blur"]["5"]["ece"].items():
        assert stored.shift["blur"]["5"]["ece"][method] == pytest.approx(value, rel=1e-5)
    assert refresh(EXPERIMENTS["fts/shift"], store, [stored], None)
    kept = store.read("fts/shift", "stored")
    assert "over 2 pairs of a network and a corruption" in kept.conclusion
    # error, and two metrics of four ways, for three severities
    assert len(kept.findings) == 27
    json.loads((tmp_path / "findings" / "fts" / "shift.stored.json").read_text())


def test_runs_without_a_record_are_left_out(run):
    bare = dataclasses.replace(run, shift=None)
    both = analysed(EXPERIMENTS["fts/shift"], Material("stored", (bare, run)))
    assert len(both.findings) == 27
    assert (
        "no run was predicted under shift"
        in analysed(EXPERIMENTS["fts/shift"], Material("stored", (bare,))).conclusion
    )


def test_findings_that_need_absent_files_are_not_forgotten(run, tmp_path):
    store = Store(tmp_path)
    human = EXPERIMENTS["cpe/human"]
    assert human.files
    store.write(Result(human.name, "stored", (Finding("kept", 1.0),), "Kept.", True))
    assert not refresh(human, store, [run], None)
    assert store.read(human.name, "stored").conclusion == "Kept."
