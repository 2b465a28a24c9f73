"""Calibration under shift: a run's predictions on corrupted test images, measured."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from focalcal import metrics
from focalcal.calibrators import METHODS
from focalcal.predictions import Predictions
from focalcal_papers.experiments.fts import calibrators
from focalcal_papers.experiments.runs import Run, fitted

SEVERITIES = (1, 3, 5)
STRONG = "focal-structured"
MEASURED = ("ece", "brier")
"""As Ovadia et al. 2019; under shift NLL may be infinite."""


def shift_record(place: Path, splits: Any, device: str) -> dict[str, Any]:
    """Predict the corrupted test images with a finished run's weights, and measure."""
    import torch

    from focalcal_papers.data.corruption import CORRUPTIONS, corrupt
    from focalcal_papers.training import open_run

    corrupted = {}
    for kind in CORRUPTIONS:
        for severity in SEVERITIES:
            generator = torch.Generator().manual_seed(severity)
            images = corrupt(splits.test.inputs, kind, severity, generator)
            test = dataclasses.replace(splits.test, inputs=images)
            changed = dataclasses.replace(splits, test=test)
            session = open_run(place, device=device, splits=changed)
            corrupted[kind, severity] = session.predictions("test")
    return measured_shift(Run.from_folder(place), corrupted)


def measured_shift(run: Run, corrupted: dict[tuple[str, int], Predictions]) -> dict[str, Any]:
    """Error, and ECE and Brier score by calibrator, for each kind and severity.

    The calibrators are fitted to the run's own, clean, calibration set; severity 0 is its test set.
    """
    found = calibrators("nll") | {STRONG: METHODS[STRONG]()}
    ready = {name: fitted(calibrator, run.calibration) for name, calibrator in found.items()}

    def row(p: Predictions) -> dict[str, Any]:
        probs = {"none": p.probabilities()}
        probs |= {name: c.predict_proba(p.as_logits()) for name, c in ready.items()}
        found = {
            metric: {name: getattr(metrics, metric)(p.labels, q) for name, q in probs.items()}
            for metric in MEASURED
        }
        return {"n": p.n, "error": metrics.error(p.labels, probs["none"]), **found}

    clean, record = row(run.test), {}
    for (kind, severity), predictions in corrupted.items():
        record.setdefault(kind, {"0": clean})[str(severity)] = row(predictions)
    return record
