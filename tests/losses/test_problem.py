"""What all losses share, checked on all of them: the reduction, shapes and refusals are one."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import forward_ad
from torch.nn import functional as F

from focalcal.errors import InputError
from focalcal.losses import FocalLoss, focal_loss, make_loss
from losses.conftest import ALL, INTEGER_ONLY, PER_SAMPLE, build, case, gradient

SOFT = [name for name in ALL if name not in INTEGER_ONLY and not name.startswith("dual")]


@pytest.mark.parametrize("name", PER_SAMPLE)
def test_mean_and_sum_of_the_per_sample_values(name) -> None:
    logits, labels = case()
    labels[2] = -100
    weight = torch.rand(5, dtype=torch.float64)
    for w in (None, weight):
        each = build(name, reduction="none", weight=w)(logits, labels)
        assert each.shape == (9,)
        assert each[2] == 0
        total = each.sum()
        count = (labels != -100).sum() if w is None else w[labels[labels != -100]].sum()
        torch.testing.assert_close(build(name, reduction="sum", weight=w)(logits, labels), total)
        torch.testing.assert_close(build(name, weight=w)(logits, labels), total / count)


@pytest.mark.parametrize("name", PER_SAMPLE)
def test_images_equal_their_pixels(name) -> None:
    torch.manual_seed(2)
    logits, labels = torch.randn(2, 5, 3, 2), torch.randint(5, (2, 3, 2))
    flat = logits.movedim(1, -1).reshape(-1, 5)
    loss = build(name, reduction="none")
    torch.testing.assert_close(loss(logits, labels).flatten(), loss(flat, labels.flatten()))
    torch.testing.assert_close(loss(flat[0], labels[0, 0, 0]), loss(flat, labels.flatten())[0])


@pytest.mark.parametrize("name", ALL)
def test_gradients_to_second_order(name) -> None:
    logits, labels = case(n=4, n_classes=3, scale=1.5, seed=3)
    loss = build(name)
    assert torch.autograd.gradcheck(lambda z: loss(z, labels), logits)
    assert torch.autograd.gradgradcheck(lambda z: loss(z, labels), logits)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_extreme_logits_are_finite(name, dtype) -> None:
    rows = [[1e4, -1e4, 0.0], [-1e4, 1e4, 0.0], [1e4, 1e4, 1e4], [40.0, 0, 0]]
    logits = torch.tensor(rows, dtype=dtype, requires_grad=True)
    value = build(name)(logits, torch.zeros(4, dtype=torch.long))
    assert value.dtype == torch.float32
    assert value.isfinite()
    (first,) = torch.autograd.grad(value, logits, create_graph=True)
    assert first.isfinite().all()
    if first.requires_grad:
        assert gradient(first.float().square().sum(), logits).isfinite().all()


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_changes_neither_value_nor_gradient(name, dtype) -> None:
    logits, labels = case(n=40, dtype=torch.float32)
    loss = build(name)
    expected = loss(logits, labels)
    with torch.autocast("cpu", dtype=dtype):
        value = loss(logits, labels)
    assert torch.equal(value, expected)
    assert torch.equal(gradient(value, logits), gradient(expected, logits))


@pytest.mark.parametrize("name", sorted({*ALL} - {"brier"}))
def test_a_label_that_is_ruled_out_costs_infinity_with_a_finite_gradient(name) -> None:
    rows = [[-torch.inf, 0.0, 1.0], [0.0, 1.0, 2.0]]
    logits = torch.tensor(rows, requires_grad=True)
    value = build(name)(logits, torch.tensor([0, 1]))
    assert value == torch.inf
    assert gradient(value, logits).isfinite().all()


@pytest.mark.parametrize("name", sorted({*ALL} - {"ls-0.05"}))
def test_an_ignored_row_with_a_class_ruled_out_changes_nothing(name) -> None:
    logits, labels = case(dtype=torch.float32)
    logits.detach()[:, 0] = -torch.inf
    labels = labels.clamp(min=1)
    labels[3] = -100
    kept = labels != -100
    loss = build(name)
    value, alone = loss(logits, labels), loss(logits[kept], labels[kept])
    torch.testing.assert_close(value, alone)
    got = gradient(value, logits)
    assert (got[3] == 0).all()
    torch.testing.assert_close(got, gradient(alone, logits))


@pytest.mark.parametrize("name", ALL)
def test_a_batch_of_ignored_rows_is_nan_without_a_gradient_as_in_pytorch(name) -> None:
    logits, _ = case(n=3)
    value = build(name)(logits, torch.full((3,), -100))
    assert value.isnan()
    assert (gradient(value, logits) == 0).all()


@pytest.mark.parametrize("name", SOFT)
def test_one_hot_rows_equal_labels(name) -> None:
    logits, labels = case()
    weight = torch.rand(5, dtype=torch.float64)
    loss = build(name, reduction="none", weight=weight)
    torch.testing.assert_close(loss(logits, F.one_hot(labels, 5).double()), loss(logits, labels))


@pytest.mark.parametrize("name", INTEGER_ONLY)
def test_losses_without_soft_targets_refuse_them(name) -> None:
    logits, _ = case()
    with pytest.raises(InputError, match="integer labels only"):
        build(name)(logits, logits.detach().softmax(1))
    with pytest.raises(InputError, match="no label smoothing"):
        build(name, label_smoothing=0.1)
    loss = build(name)
    loss.label_smoothing = 0.1
    with pytest.raises(InputError, match="no label smoothing"):
        loss(logits, torch.zeros(9, dtype=torch.long))


@pytest.mark.parametrize("name", ALL)
def test_every_loss_has_the_trainers_hooks(name) -> None:
    loss = build(name)
    loss.start_epoch(0, 10)
    logits, labels = case()
    before = loss(logits, labels)
    loss.update(logits, labels)
    changed = bool(loss(logits, labels) != before)
    assert loss.needs_validation == changed == (name == "adafocal")
    assert loss.needs_parameters is False


@pytest.mark.parametrize(
    ("logits", "target", "message"),
    [
        (torch.zeros(4, 3), [0, 1, 2, 0], "target as a tensor, got list"),
        ({"logits": torch.zeros(4, 3)}, torch.zeros(4).long(), "logits as a tensor, got dict"),
        (torch.zeros(4, 3), F.one_hot(torch.arange(4) % 3), r"converted with \.float\(\)"),
        (torch.zeros(4, 6, 3), torch.zeros(4, 6).long(), "axis 1 of the logits"),
        (torch.zeros(4), torch.tensor([0.0, 1.0, 1.0, 0.0]), "use SigmoidFocalLoss"),
        (torch.zeros(1), torch.tensor(0), "use SigmoidFocalLoss"),
    ],
)
@pytest.mark.parametrize("name", ["fl-2", "brier"])
def test_what_other_losses_take_is_refused_with_advice(name, logits, target, message) -> None:
    with pytest.raises(InputError, match=message):
        build(name)(logits, target)


@pytest.mark.parametrize("name", ["brier", "proper-focal-2", "dual-focal", "mmce"])
def test_labels_out_of_range_are_named(name) -> None:
    logits, labels = case()
    labels[3] = 7
    with pytest.raises(InputError, match=r"got 7 at \[3\]"):
        build(name)(logits, labels)


@pytest.mark.parametrize("name", ["brier", "fla-53", "dual-focal", "adafocal", "proper-focal-2"])
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
def test_torch_func_agrees_with_autograd(name) -> None:
    logits, labels = case(n=4, n_classes=3)
    loss = build(name, reduction="sum")
    expected = gradient(loss(logits, labels), logits)
    z = logits.detach()
    torch.testing.assert_close(torch.func.grad(loss)(z, labels), expected)
    per_row = torch.func.vmap(torch.func.grad(loss))(z[:, None], labels[:, None])
    torch.testing.assert_close(per_row[:, 0], expected)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
def test_forward_mode_agrees_with_reverse_mode(name) -> None:
    logits, labels = case(n=4, n_classes=3)
    tangent = case(n=4, n_classes=3, seed=1)[0].detach()
    loss = build(name)
    expected = (gradient(loss(logits, labels), logits) * tangent).sum()
    with forward_ad.dual_level():
        value = loss(forward_ad.make_dual(logits.detach(), tangent), labels)
        torch.testing.assert_close(forward_ad.unpack_dual(value).tangent, expected)


@pytest.mark.parametrize("name", ["ce", "fl-2", "fla-53", "brier", "dual-focal", "mmce"])
@pytest.mark.parametrize("shape", [(6,), (6, 1), (6, 1, 2), (6, 0)])
def test_one_logit_per_sample_points_to_the_sigmoid_loss(name, shape) -> None:
    target = torch.ones(shape[:1] + shape[2:], dtype=torch.long)
    with pytest.raises(InputError, match="use SigmoidFocalLoss"):
        make_loss(name)(torch.zeros(shape), target)


def test_alpha_points_to_weight_and_the_default_gamma_is_2() -> None:
    with pytest.raises(InputError, match="weight="):
        FocalLoss(2.0, alpha=torch.ones(3))
    with pytest.raises(TypeError, match=r"unexpected arguments \['labelsmoothing'\]; it takes "):
        FocalLoss(labelsmoothing=0.1)
    for name, own in (("fla-53", "steps"), ("fls-531", "schedule"), ("brier", "weight")):
        with pytest.raises(TypeError, match=rf"\['gamma'\]; it takes {own}, "):
            type(make_loss(name))(gamma=2.0)
    logits, labels = torch.randn(5, 3), torch.arange(5) % 3
    assert torch.equal(FocalLoss()(logits, labels), focal_loss(logits, labels))
    assert torch.equal(FocalLoss()(logits, labels), focal_loss(logits, labels, 2.0))


@pytest.mark.parametrize(
    ("loss", "text"),
    [
        (FocalLoss(), "FocalLoss(gamma=2.0, reduction='mean')"),
        (
            FocalLoss(3.0, weight=torch.ones(4), ignore_index=0, label_smoothing=0.1),
            "FocalLoss(gamma=3.0, weight=(4,), ignore_index=0, label_smoothing=0.1, "
            "reduction='mean')",
        ),
        (
            make_loss("fla-53", reduction="sum"),
            "SampleDependentFocalLoss(gamma=((0.2, 5.0), (1.0, 3.0)), reduction='sum')",
        ),
        (make_loss("sigmoid-focal-2"), "SigmoidFocalLoss(gamma=2.0, alpha=None, reduction='mean')"),
        (make_loss("adafocal", bins=4), "AdaFocalLoss(bins=4, reduction='mean')"),
    ],
)
def test_repr_shows_every_setting(loss, text) -> None:
    assert repr(loss) == text
