"""Training losses: drop-in replacements for `torch.nn.CrossEntropyLoss`."""

from focalcal.errors import needing

with needing("torch", "torch", "focalcal.losses"):
    import torch  # noqa: F401

from focalcal.losses._base import Loss
from focalcal.losses.adafocal import AdaFocalLoss
from focalcal.losses.classification import BrierLoss, DualFocalLoss, ProperFocalLoss
from focalcal.losses.curvature import CurvatureRegularizedLoss
from focalcal.losses.focal import (
    FocalLoss,
    LabelSmoothingLoss,
    SampleDependentFocalLoss,
    ScheduledFocalLoss,
    SigmoidFocalLoss,
    focal_loss,
    sigmoid_focal_loss,
)
from focalcal.losses.linear import LinearFocalLoss, linear_focal_loss
from focalcal.losses.mmce import MMCELoss
from focalcal.losses.registry import LOSSES, make_loss

__all__ = [
    "LOSSES",
    "AdaFocalLoss",
    "BrierLoss",
    "CurvatureRegularizedLoss",
    "DualFocalLoss",
    "FocalLoss",
    "LabelSmoothingLoss",
    "LinearFocalLoss",
    "Loss",
    "MMCELoss",
    "ProperFocalLoss",
    "SampleDependentFocalLoss",
    "ScheduledFocalLoss",
    "SigmoidFocalLoss",
    "focal_loss",
    "linear_focal_loss",
    "make_loss",
    "sigmoid_focal_loss",
]
