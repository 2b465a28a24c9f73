"""No calibration: the softmax as it is, the baseline of every comparison."""

from __future__ import annotations

from typing import Any, ClassVar

from focalcal._arrays import Array, log_softmax
from focalcal.calibrators.base import Calibrator, FitData


class Identity(Calibrator):
    """p = softmax(z).

    task: "auto" or "multilabel", as in `Calibrator`.

    >>> Identity().fit([[0.0, 0.0], [1.0, 0.0]], [0, 1]).predict_proba([[0.0, 0.0]]).tolist()
    [[0.5, 0.5]]
    """

    method: ClassVar[str] = "identity"
    summary: ClassVar[str] = "no calibration: the softmax of the logits as they are"
    preserves_accuracy: ClassVar[bool] = True
    floors: ClassVar[str] = "never"

    def __init__(self, task: str = "auto") -> None:
        self.task = task

    def _fit(self, data: FitData) -> dict[str, Any]:
        return {}

    def _log_proba(self, logits: Array) -> Array:
        return log_softmax(logits)
