from __future__ import annotations

import pytest
import torch

from focalcal import losses
from focalcal.errors import InputError
from focalcal.losses import LOSSES, make_loss


@pytest.mark.parametrize(
    ("name", "kind", "settings"),
    [
        ("ce", losses.FocalLoss, {"gamma": 0.0}),
        ("ls-0.05", losses.LabelSmoothingLoss, {"label_smoothing": 0.05}),
        ("brier", losses.BrierLoss, {}),
        ("mmce", losses.MMCELoss, {"strength": 2.0, "normalization": "published"}),
        ("fl-1", losses.FocalLoss, {"gamma": 1.0}),
        ("fl-7", losses.FocalLoss, {"gamma": 7.0}),
        ("FL-2.5", losses.FocalLoss, {"gamma": 2.5}),
        ("fl--0.5", losses.FocalLoss, {"gamma": -0.5}),
        ("fls-531", losses.ScheduledFocalLoss, {"schedule": ((2 / 7, 5), (5 / 7, 3), (1, 1))}),
        ("fls-532", losses.ScheduledFocalLoss, {"schedule": ((2 / 7, 5), (5 / 7, 3), (1, 2))}),
        ("fla-53", losses.SampleDependentFocalLoss, {"steps": ((0.2, 5), (1, 3))}),
        ("flsd-53", losses.SampleDependentFocalLoss, {"steps": ((0.2, 5), (1, 3))}),
        ("fla-532", losses.SampleDependentFocalLoss, {"steps": ((0.2, 5), (0.5, 3), (1, 2))}),
        ("adafocal", losses.AdaFocalLoss, {}),
        ("dual-focal", losses.DualFocalLoss, {"gamma": 5.0}),
        ("dual-focal-2", losses.DualFocalLoss, {"gamma": 2.0}),
        ("proper-focal-3", losses.ProperFocalLoss, {"gamma": 3.0}),
        ("sigmoid-focal-2", losses.SigmoidFocalLoss, {"gamma": 2.0}),
    ],
)
def test_names_of_the_papers(name, kind, settings) -> None:
    loss = make_loss(name, reduction="sum")
    assert type(loss) is kind
    assert loss.reduction == "sum"
    for key, value in settings.items():
        assert getattr(loss, key) == value
    assert "reduction='sum'" in repr(loss)


@pytest.mark.parametrize("name", ["focal", "fl", "fl-x", "fl-1-2", "ce-3", "", "focal+curvature"])
def test_unknown_names_list_the_known_ones(name) -> None:
    with pytest.raises(InputError, match="unknown loss") as error:
        make_loss(name, **({"parameters": [0]} if "+" in name else {}))
    assert all(known in str(error.value) for known in LOSSES)


def test_a_bad_number_is_named() -> None:
    with pytest.raises(InputError, match="gamma > -1"):
        make_loss("fl--2")
    with pytest.raises(InputError, match="label_smoothing"):
        make_loss("ls-5")


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("ce", {"gamma": 2.0}),
        ("fl-3", {"gamma": 2.0}),
        ("fl-3+curvature", {"gamma": 2.0, "parameters": [torch.ones(1)]}),
        ("ls-0.1", {"smoothing": 0.2}),
        ("dual-focal-3", {"gamma": 2.0}),
        ("flsd-53", {"steps": ((1.0, 2.0),)}),
        ("fls-531", {"schedule": ((1.0, 2.0),)}),
    ],
)
def test_what_a_name_fixes_cannot_be_set_beside_it(name, settings) -> None:
    with pytest.raises(TypeError, match=f"without {next(iter(settings))}=, .* another name"):
        make_loss(name, **settings)


def test_what_a_name_does_not_fix_can_be_set() -> None:
    assert make_loss("dual-focal", gamma=2.0).gamma == 2.0
