"""Training: one loop for every loss of the package; exact resume; traces; predictions."""

from focalcal_papers.training.config import TrainConfig
from focalcal_papers.training.folder import RunFolder
from focalcal_papers.training.loop import RunResult, TrainingError, load_splits, predict, train
from focalcal_papers.training.schedule import learning_rate

__all__ = [
    "RunFolder",
    "RunResult",
    "TrainConfig",
    "TrainingError",
    "learning_rate",
    "load_splits",
    "predict",
    "train",
]
