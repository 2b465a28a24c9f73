"""The learning rate as a function of the point in training."""

from __future__ import annotations

import math

from focalcal_papers.training.config import TrainConfig


def learning_rate(config: TrainConfig, epoch: float) -> float:
    """The rate `epoch` epochs (a fraction inside an epoch) into the run.

    step: lr·factor^(number of milestones passed), constant within an epoch as in the papers;
    cosine: lr·(1 + cos(π·epoch/epochs))/2; both after a linear warm-up over `warmup_epochs`.

    >>> config = TrainConfig(dataset="cifar10", model="resnet18", lr=0.1, epochs=350)
    >>> [round(learning_rate(config, epoch), 6) for epoch in (0, 149.9, 150, 250)]
    [0.1, 0.1, 0.01, 0.001]
    """
    rate = config.lr
    if config.schedule == "step":
        # A milestone between two epochs takes effect at the next whole one.
        rate *= config.drop_factor ** sum(math.floor(epoch) >= m for m in config.milestones)
    elif config.schedule == "cosine":
        rate *= (1 + math.cos(math.pi * min(1.0, epoch / config.epochs))) / 2
    if epoch < config.warmup_epochs:
        rate *= epoch / config.warmup_epochs
    return rate
