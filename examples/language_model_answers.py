"""
Answers of language models
==========================

Is a language model's confidence in its multiple-choice answers right, task by task?

The samples of lm-eval (``--log_samples``) hold a log-likelihood for every choice; their softmax is
a distribution over the choices. This example writes such files for a model that is over-confident
on one of two tasks, and corrects it with temperature scaling. The commands do the same::

    focalcal evaluate samples/ --format lm-eval --by task
    focalcal fit samples/ --format lm-eval -o calibrator.json

::

    python examples/language_model_answers.py
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np

from focalcal import metrics
from focalcal.calibrators import TemperatureScaling
from focalcal.predictions import Predictions

TASKS = {"geography": 1.0, "arithmetic": 3.0}
"""How many times too large the differences of log-likelihoods are."""


def write_samples(folder: Path, n: int = 3000) -> None:
    """One `samples_<task>.jsonl` per task, as lm-eval writes them."""
    rng = np.random.default_rng(0)
    for task, sharpness in TASKS.items():
        lines = []
        for i in range(n):
            honest = rng.normal(size=4) * 1.5
            p = np.exp(honest) / np.exp(honest).sum()
            scores = sharpness * honest - 20.0  # log-likelihoods of whole answers are far below 0
            line = {
                "doc_id": i,
                "target": str(rng.choice(4, p=p)),
                "arguments": {
                    f"gen_args_{j}": {"arg_0": f"Question {i}\nAnswer:", "arg_1": f" {letter}"}
                    for j, letter in enumerate("ABCD")
                },
                "resps": [[[str(score), "False"]] for score in scores],
                "filter": "none",
            }
            lines.append(json.dumps(line))
        (folder / f"samples_{task}.jsonl").write_text("\n".join(lines) + "\n")


def main(folder: Path) -> dict[str, tuple[float, float]]:
    """ECE of each task before and after temperature scaling, on held-out questions."""
    write_samples(folder)
    answers = Predictions.load(folder, layout="lm-eval")
    found = {}
    for task in TASKS:
        own = answers.take(np.flatnonzero(answers.column("task") == task))
        calibration, test = own.split(0.5)
        calibrator = TemperatureScaling().fit(calibration.logits, calibration.labels)
        before = metrics.ece(test.labels, test.probabilities())
        after = metrics.ece(test.labels, calibrator.predict_proba(test.logits))
        found[task] = before, after
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        for task, (before, after) in main(Path(folder)).items():
            print(f"{task}: ECE {before:.3f} before, {after:.3f} after")

# sphinx_gallery_thumbnail_path = '_build/cards/language_model_answers.png'
