"""Training: one loop for every loss of the package; exact resume; traces; predictions."""

from focalcal.training.config import TrainConfig
from focalcal.training.folder import RunFolder
from focalcal.training.loop import RunResult, TrainingError, load_splits, predict, train
from focalcal.training.schedule import learning_rate

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
