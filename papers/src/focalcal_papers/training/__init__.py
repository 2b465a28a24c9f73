"""Training: one loop for every loss of the package; exact resume; traces; predictions."""

from focalcal_papers.training.config import TrainConfig
from focalcal_papers.training.folder import RunFolder
from focalcal_papers.training.loop import TrainingError, load_splits, open_run, predict, train

__all__ = [
    "RunFolder",
    "TrainConfig",
    "TrainingError",
    "load_splits",
    "open_run",
    "predict",
    "train",
]
