"""Losses by the names the papers use."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import partial
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
    "ce": partial(focal.FocalLoss, 0.0),
    f"ls-{NUMBER}": focal.LabelSmoothingLoss,
    "brier": BrierLoss,
    "mmce": MMCELoss,
    f"fl-{NUMBER}": focal.FocalLoss,
    "fls-531": partial(focal.ScheduledFocalLoss, focal.SCHEDULE_531),
    "fls-532": partial(focal.ScheduledFocalLoss, focal.SCHEDULE_532),
    "fla-53": partial(focal.SampleDependentFocalLoss, focal.STEPS_53),
    "fla-532": partial(focal.SampleDependentFocalLoss, focal.STEPS_532),
    "flsd-53": partial(focal.SampleDependentFocalLoss, focal.STEPS_53),
    "flsd-532": partial(focal.SampleDependentFocalLoss, focal.STEPS_532),
    "adafocal": AdaFocalLoss,
    "dual-focal": DualFocalLoss,
    f"dual-focal-{NUMBER}": DualFocalLoss,
    f"proper-focal-{NUMBER}": ProperFocalLoss,
    f"sigmoid-focal-{NUMBER}": focal.SigmoidFocalLoss,
}
"""Maps each name, with `<number>` where one is needed, to the function that builds the loss."""

CURVATURE = "+curvature"
CURVATURE_SETTINGS = ("parameters", "tau", "probes", "generator")


def make_loss(name: str, **settings: Any) -> Loss:
    """Builds a loss by name: `ce`, `ls-0.05`, `fl-3`, `flsd-53`, `adafocal`, `ce+curvature`, …

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
    match = re.fullmatch(r"([a-z-]*[a-z])-(-?\d+(?:\.\d+)?)", key)
    if key in LOSSES:
        build = partial(LOSSES[key])
    elif match and f"{match[1]}-{NUMBER}" in LOSSES:
        build = partial(LOSSES[f"{match[1]}-{NUMBER}"], float(match[2]))
    else:
        raise InputError(
            f"unknown loss {name!r}; expected one of {', '.join(LOSSES)}, or one with {CURVATURE}"
        )
    fixed = [*inspect.signature(build.func).parameters][: len(build.args)]
    for each in set(fixed) & settings.keys():
        raise TypeError(
            f"expected the loss {name!r} without {each}=, which its name sets, got "
            f"{each}={settings[each]!r}; leave it out or use another name"
        )
    return build(**settings)
