"""Losses by the names the papers use."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from focalcal.errors import InputError
from focalcal.losses import focal
from focalcal.losses._base import Loss
from focalcal.losses.adafocal import AdaFocalLoss
from focalcal.losses.classification import BrierLoss, DualFocalLoss, ProperFocalLoss
from focalcal.losses.curvature import CurvatureRegularizedLoss
from focalcal.losses.mmce import MMCELoss

NUMBER = "<number>"

LOSSES: dict[str, Callable[..., Loss]] = {
    "ce": lambda **settings: focal.FocalLoss(0.0, **settings),
    f"ls-{NUMBER}": focal.LabelSmoothingLoss,
    "brier": BrierLoss,
    "mmce": MMCELoss,
    f"fl-{NUMBER}": focal.FocalLoss,
    "fls-531": lambda **settings: focal.ScheduledFocalLoss(focal.SCHEDULE_531, **settings),
    "fls-532": lambda **settings: focal.ScheduledFocalLoss(focal.SCHEDULE_532, **settings),
    "fla-53": lambda **settings: focal.SampleDependentFocalLoss(focal.STEPS_53, **settings),
    "fla-532": lambda **settings: focal.SampleDependentFocalLoss(focal.STEPS_532, **settings),
    "flsd-53": lambda **settings: focal.SampleDependentFocalLoss(focal.STEPS_53, **settings),
    "flsd-532": lambda **settings: focal.SampleDependentFocalLoss(focal.STEPS_532, **settings),
    "adafocal": AdaFocalLoss,
    "dual-focal": DualFocalLoss,
    f"dual-focal-{NUMBER}": DualFocalLoss,
    f"proper-focal-{NUMBER}": ProperFocalLoss,
    f"sigmoid-focal-{NUMBER}": focal.SigmoidFocalLoss,
}
"""Name, with `<number>` where one is needed, to the function that builds the loss."""

CURVATURE = "+curvature"
CURVATURE_SETTINGS = ("parameters", "tau", "probes", "generator")


def make_loss(name: str, **settings: Any) -> Loss:
    """The loss of that name: `ce`, `ls-0.05`, `fl-3`, `flsd-53`, `adafocal`, `ce+curvature`, …

    name: a key of `LOSSES` with a number for `<number>`, or one of them followed by `+curvature`,
    which also needs `parameters` (and takes `tau`, `probes`, `generator`); settings: keyword
    arguments of the loss.

    Example:
        >>> make_loss("fl-2.5", reduction="sum")
        FocalLoss(gamma=2.5, reduction='sum')
    """
    key = name.strip().lower()
    if key.endswith(CURVATURE):
        own = {each: settings.pop(each) for each in CURVATURE_SETTINGS if each in settings}
        if own.get("parameters") is None:
            raise InputError(
                f"the loss {name!r} differentiates twice in the model's parameters; "
                "pass parameters=model.parameters()"
            )
        base = make_loss(key.removesuffix(CURVATURE), **settings)
        return CurvatureRegularizedLoss(base, **own)
    if key in LOSSES:
        return LOSSES[key](**settings)
    match = re.fullmatch(r"([a-z-]*[a-z])-(-?\d+(?:\.\d+)?)", key)
    if match and f"{match[1]}-{NUMBER}" in LOSSES:
        return LOSSES[f"{match[1]}-{NUMBER}"](float(match[2]), **settings)
    raise InputError(
        f"unknown loss {name!r}; expected one of {', '.join(LOSSES)}, or one with {CURVATURE}"
    )
