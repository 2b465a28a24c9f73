"""Training losses: drop-in replacements for `torch.nn.CrossEntropyLoss`."""

from focalcal.losses.focal import (
    FocalLoss,
    LabelSmoothingLoss,
    SampleDependentFocalLoss,
    ScheduledFocalLoss,
    focal_loss,
)

__all__ = [
    "FocalLoss",
    "LabelSmoothingLoss",
    "SampleDependentFocalLoss",
    "ScheduledFocalLoss",
    "focal_loss",
]
