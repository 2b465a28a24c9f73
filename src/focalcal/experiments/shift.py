"""A run's predictions on corrupted test images."""

from __future__ import annotations

import dataclasses

from focalcal.experiments.runs import Run
from focalcal.predictions import Predictions

SEVERITIES = (0, 1, 3, 5)


def corrupted_predictions(run: Run) -> dict[str, dict[int, Predictions]]:
    """Predictions by corruption and severity; severity 0 is the clean test set."""
    import torch

    from focalcal.data.corruption import CORRUPTIONS, corrupt
    from focalcal.training import RunFolder, load_splits
    from focalcal.training.distributed import choose_device
    from focalcal.training.session import Session

    folder = RunFolder.open(run.folder)
    splits = load_splits(folder.config, run.data)
    device = choose_device("auto")
    found: dict[str, dict[int, Predictions]] = {}
    for kind in CORRUPTIONS:
        found[kind] = {}
        for severity in SEVERITIES:
            if severity == 0:
                found[kind][0] = run.test
                continue
            generator = torch.Generator().manual_seed(severity)
            images = corrupt(splits.test.inputs, kind, severity, generator)
            test = dataclasses.replace(splits.test, inputs=images)
            changed = dataclasses.replace(splits, test=test)
            session = Session.opened(folder, changed, device)
            found[kind][severity] = session.predictions("test")
    return found
