from __future__ import annotations

import itertools

import mpmath as mp
import numpy as np
import pytest
import torch
from torch.nn import functional as F

from focalcal.errors import InputError
from focalcal.losses import (
    FocalLoss,
    LabelSmoothingLoss,
    SampleDependentFocalLoss,
    ScheduledFocalLoss,
    focal_loss,
    linear_focal_loss,
    make_loss,
)
from focalcal.losses._pointwise import gamma_at
from focalcal.maps import gradient_factor
from losses.conftest import case, gradient

EXTREME_GAMMAS = [-0.99, -0.5, 0.05, 0.5, 1.0, 3.0, 10.0]


def ulps(a: torch.Tensor, b: torch.Tensor) -> float:
    a, b = a.detach().numpy(), b.detach().numpy()
    return float(np.max(np.abs(a - b) / np.spacing(np.maximum(np.abs(a), np.abs(b)))))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(7, 5), (3, 5, 4), (2, 5, 3, 2), (5,)])
@pytest.mark.parametrize("per_sample", [False, True])
def test_gamma_zero_is_cross_entropy_in_every_option(shape, dtype, per_sample) -> None:
    torch.manual_seed(0)
    logits = (3 * torch.randn(shape, dtype=dtype)).requires_grad_()
    labels_shape = shape[:1] + shape[2:] if len(shape) > 1 else ()
    labels = torch.randint(5, labels_shape)
    with_ignored = labels.clone()
    if labels.ndim:
        with_ignored.view(-1)[0] = 3
    soft = torch.randn(shape, dtype=dtype).softmax(1 if len(shape) > 1 else 0)
    weights = [None, torch.rand(5, dtype=dtype) + 0.1]
    # A tensor of zeros takes the general path, a plain 0 may not.
    gamma = torch.zeros(labels_shape) if per_sample else 0.0
    options = itertools.product(weights, ["none", "mean", "sum"], [0.0, 0.1])
    for weight, reduction, smoothing in options:
        common = {"weight": weight, "reduction": reduction, "label_smoothing": smoothing}
        for target, ignore in [(labels, -100), (with_ignored, 3), (soft, -100)]:
            if ignore == 3 and labels.ndim == 0:
                continue
            ours = focal_loss(logits, target, gamma, ignore_index=ignore, **common)
            theirs = F.cross_entropy(logits, target, ignore_index=ignore, **common)
            assert ours.shape == theirs.shape
            assert ours.dtype == theirs.dtype
            # PyTorch's own kernels sum in a different order, one after the other for images.
            reordered = per_sample and reduction != "none"
            assert ulps(ours, theirs) <= (8 if reordered else 2)
            a, b = gradient(ours.sum(), logits), gradient(theirs.sum(), logits)
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("gamma", [0.0, 2.0])
def test_half_precision_is_computed_in_float32(dtype, gamma) -> None:
    logits, labels = case(dtype=dtype, scale=5.0)
    value = focal_loss(logits, labels, gamma)
    assert value.dtype == torch.float32
    assert torch.equal(value, focal_loss(logits.float(), labels, gamma))
    assert gradient(value, logits).dtype == dtype


def test_autocast_changes_nothing() -> None:
    logits, labels = case(dtype=torch.float32)
    expected = focal_loss(logits, labels, 2.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(focal_loss(logits, labels, 2.0), expected)
        low = torch.nn.Linear(5, 5)(logits)
        assert low.dtype == torch.bfloat16
        assert focal_loss(low, labels, 2.0).dtype == torch.float32


@pytest.mark.parametrize("gamma", EXTREME_GAMMAS)
def test_logit_gradient_is_g_times_the_cross_entropy_gradient(gamma) -> None:
    """The oracle is g from the maps, written on probabilities; neither autograd nor f is shared."""
    logits, labels = case(n=50, scale=3.0)
    q = logits.detach().softmax(1)
    p = q.gather(1, labels[:, None])
    expected = gradient_factor(p, gamma) * (q - F.one_hot(labels, 5))
    got = gradient(focal_loss(logits, labels, gamma, reduction="sum"), logits)
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("target", ["label", "soft", "steps", "per sample", "linear"])
def test_negative_gamma_keeps_its_digits_where_p_rounds_to_one(target) -> None:
    """Softmax has no digit of 1−p above a gap of 16.6 in float32; mpmath has."""
    gamma = -0.9
    gaps = torch.tensor([5.0, 16.0, 18.0, 25.0, 40.0])
    logits = torch.stack([gaps, torch.zeros(5), torch.full((5,), -3.0)], 1).requires_grad_()
    labels = torch.zeros(5, dtype=torch.long)
    value = {
        "label": lambda: focal_loss(logits, labels, gamma, reduction="none"),
        "soft": lambda: focal_loss(logits, F.one_hot(labels, 3).float(), gamma, reduction="none"),
        "steps": lambda: focal_loss(logits, labels, [(0.5, 2.0), (1.0, gamma)], reduction="none"),
        "per sample": lambda: focal_loss(logits, labels, torch.full((5,), gamma), reduction="none"),
        "linear": lambda: linear_focal_loss(logits, torch.eye(3), labels, gamma, reduction="none"),
    }[target]()
    got = gradient(value.sum(), logits)
    for i, gap in enumerate(gaps.tolist()):
        with mp.workdps(40):
            odds = (1 + mp.exp(-3)) / mp.exp(gap)
            ce, wrong = mp.log1p(odds), odds / (1 + odds)
            power = wrong ** mp.mpf(gamma)
            slope = power * (1 + mp.mpf(gamma) * ce / odds)
        assert value[i].item() == pytest.approx(float(power * ce), rel=2e-6)
        assert -got[i, 0].item() == pytest.approx(float(slope * wrong), rel=2e-5)
        assert got[i, 1:].sum().item() == pytest.approx(float(slope * wrong), rel=2e-5)


def test_value_against_a_plain_formula_in_probabilities() -> None:
    """As optax writes it, in NumPy float64 and without logarithmic tricks."""
    logits, labels = case(n=50, scale=1.0)
    z = logits.detach().numpy()
    q = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    p = q[np.arange(50), labels.numpy()]
    for gamma in (0.5, 2.0, 5.0):
        expected = np.mean(-((1 - p) ** gamma) * np.log(p))
        np.testing.assert_allclose(focal_loss(logits, labels, gamma).item(), expected, rtol=1e-12)


@pytest.mark.parametrize("gamma", [-0.5, 0.5, 2.0, torch.linspace(-0.5, 4, 9)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_finite_differences_to_second_order(gamma, smoothing) -> None:
    logits, labels = case()
    weight = torch.linspace(0.5, 2, 5)

    def f(z):
        return focal_loss(z, labels, gamma, weight=weight, label_smoothing=smoothing)

    assert torch.autograd.gradcheck(f, logits)
    assert torch.autograd.gradgradcheck(f, logits)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("gamma", EXTREME_GAMMAS)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_extreme_logits_give_finite_value_gradient_and_curvature(gamma, dtype, smoothing) -> None:
    """Five public focal losses give NaN gradients at γ = 0.5 where a sample is certain."""
    rows = [[1e4, -1e4, 0.0], [-1e4, 1e4, 0.0], [1e4, 1e4, 1e4], [40.0, 0, 0], [17.0, 0, 0]]
    logits = torch.tensor(rows, dtype=dtype, requires_grad=True)
    labels = torch.zeros(5, dtype=torch.long)
    value = focal_loss(logits, labels, gamma, reduction="none", label_smoothing=smoothing)
    assert value.isfinite().all()
    (first,) = torch.autograd.grad(value.float().mean(), logits, create_graph=True)
    assert first.isfinite().all()
    (second,) = torch.autograd.grad(first.float().square().sum(), logits)
    assert second.isfinite().all()


@pytest.mark.parametrize("gamma", [0.0, 0.5, 3.0])
def test_one_hot_probabilities_equal_labels(gamma) -> None:
    logits, labels = case()
    weight = torch.rand(5, dtype=torch.float64)
    onehot = F.one_hot(labels, 5).double()
    for smoothing, reduction in itertools.product([0.0, 0.2], ["none", "sum"]):
        settings = {"weight": weight, "label_smoothing": smoothing, "reduction": reduction}
        hard = focal_loss(logits, labels, gamma, **settings)
        soft = focal_loss(logits, onehot, gamma, **settings)
        torch.testing.assert_close(hard, soft)


def test_soft_targets_follow_their_definition() -> None:
    logits, _ = case()
    u = torch.rand(9, 5, dtype=torch.float64).softmax(1)
    q = logits.softmax(1)
    expected = (u * (1 - q) ** 2 * -q.log()).sum(1)
    torch.testing.assert_close(focal_loss(logits, u, 2.0, reduction="none"), expected)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_segmentation_equals_the_flattened_call(smoothing) -> None:
    torch.manual_seed(1)
    logits = torch.randn(2, 5, 3, 4, dtype=torch.float64)
    labels = torch.randint(5, (2, 3, 4))
    labels[0, 0, 0] = -100
    gamma = torch.rand(2, 3, 4, dtype=torch.float64)
    flat = logits.movedim(1, -1).reshape(-1, 5)
    for reduction in ("mean", "sum", "none"):
        settings = {"reduction": reduction, "label_smoothing": smoothing}
        image = focal_loss(logits, labels, gamma, **settings)
        rows = focal_loss(flat, labels.flatten(), gamma.flatten(), **settings)
        torch.testing.assert_close(image.flatten(), rows.flatten())


def test_the_mean_is_not_divided_by_the_class_count_nor_by_the_focal_factor() -> None:
    """Two public losses divide by K as well."""
    logits, labels = case()
    each = focal_loss(logits, labels, 2.0, reduction="none")
    torch.testing.assert_close(focal_loss(logits, labels, 2.0), each.sum() / 9)
    weight = torch.rand(5, dtype=torch.float64)
    weighted = focal_loss(logits, labels, 2.0, weight=weight)
    torch.testing.assert_close(weighted, (each * weight[labels]).sum() / weight[labels].sum())


def test_ignored_rows_change_nothing_and_get_no_gradient() -> None:
    logits, labels = case()
    labels[[1, 4]] = -100
    kept = labels != -100
    for smoothing in (0.0, 0.1):
        value = focal_loss(logits, labels, 0.5, label_smoothing=smoothing)
        alone = focal_loss(logits[kept], labels[kept], 0.5, label_smoothing=smoothing)
        torch.testing.assert_close(value, alone)
        assert (gradient(value, logits)[~kept] == 0).all()


def test_any_integer_dtype_and_a_gamma_per_sample() -> None:
    logits, labels = case()
    gamma = torch.linspace(0, 4, 9)
    each = [focal_loss(logits[i : i + 1], labels[i : i + 1], float(gamma[i])) for i in range(9)]
    together = focal_loss(logits, labels.to(torch.uint8), gamma, reduction="none")
    torch.testing.assert_close(together, torch.stack(each))


def test_empty_batch_follows_pytorch() -> None:
    logits, labels = torch.zeros(0, 3), torch.zeros(0, dtype=torch.long)
    assert focal_loss(logits, labels, 2.0).isnan()
    assert focal_loss(logits, labels, 2.0, reduction="sum") == 0
    assert focal_loss(logits, labels, 2.0, reduction="none").shape == (0,)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
def test_torch_func_transforms_agree_with_autograd() -> None:
    logits, labels = case(n=4, n_classes=3)
    z = logits.detach()

    def total(z, y):
        return focal_loss(z, y, 2.0, reduction="sum")

    expected = gradient(total(logits, labels), logits)
    torch.testing.assert_close(torch.func.grad(total)(z, labels), expected)
    per_row = torch.func.vmap(torch.func.grad(total))(z[:, None], labels[:, None])
    torch.testing.assert_close(per_row[:, 0], expected)
    unbatched = torch.func.vmap(lambda z, y: focal_loss(z, y, 2.0))(z, labels)
    torch.testing.assert_close(unbatched, focal_loss(z, labels, 2.0, reduction="none"))
    gammas = torch.tensor([0.5, 3.0])
    over_gamma = torch.func.vmap(lambda g: focal_loss(z, labels, g.expand(4)))(gammas)
    torch.testing.assert_close(over_gamma[1], focal_loss(z, labels, 3.0))
    hessian = torch.func.hessian(total)(z, labels)
    reference = torch.autograd.functional.hessian(lambda z: total(z, labels), z)
    torch.testing.assert_close(hessian, reference)
    torch.testing.assert_close(torch.func.jacrev(total)(z, labels), expected)


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_equals_eager(backend) -> None:
    logits, labels = case(dtype=torch.float32)
    torch._dynamo.reset()
    losses = [FocalLoss(2.0), SampleDependentFocalLoss(label_smoothing=0.1)]
    for loss in losses[: 1 if backend == "inductor" else 2]:
        compiled = torch.compile(loss, backend=backend, fullgraph=True)
        value, expected = compiled(logits, labels), loss(logits, labels)
        torch.testing.assert_close(value, expected)
        torch.testing.assert_close(gradient(value, logits), gradient(expected, logits))


def test_module_is_the_function() -> None:
    logits, labels = case()
    weight = torch.rand(5)
    module = FocalLoss(3.0, weight=weight, ignore_index=2, label_smoothing=0.1, reduction="sum")
    expected = focal_loss(
        logits, labels, 3.0, weight=weight, ignore_index=2, label_smoothing=0.1, reduction="sum"
    )
    assert torch.equal(module(logits, labels), expected)
    assert "weight" in module.state_dict()
    assert torch.equal(FocalLoss(0.0)(logits, labels), F.cross_entropy(logits, labels))


def test_label_smoothing_is_pytorch_s() -> None:
    logits, labels = case()
    expected = F.cross_entropy(logits, labels, label_smoothing=0.05)
    assert torch.equal(LabelSmoothingLoss(0.05)(logits, labels), expected)


@pytest.mark.parametrize(
    ("steps", "gammas"),
    [
        (((0.2, 5), (1, 3)), [5, 3, 3, 3, 3]),
        (((0.2, 5), (0.5, 3), (1, 2)), [5, 3, 3, 2, 2]),
    ],
)
def test_steps_choose_gamma_by_probability_and_hold_it_constant(steps, gammas) -> None:
    loss = SampleDependentFocalLoss(steps, reduction="sum")
    # Just above the thresholds, which log and exp may round either way.
    p = torch.tensor([0.1, 0.2, 0.4, 0.5, 0.9], dtype=torch.float64) + 1e-3
    assert gamma_at(-p.log(), loss.gamma).tolist() == gammas
    logits = torch.stack([p, 1 - p], 1).log().requires_grad_()
    labels = torch.zeros(5, dtype=torch.long)
    value = loss(logits, labels)
    fixed = focal_loss(logits, labels, torch.tensor(gammas), reduction="sum")
    torch.testing.assert_close(value, fixed)
    torch.testing.assert_close(gradient(value, logits), gradient(fixed, logits))


def test_steps_on_soft_targets_look_at_each_class() -> None:
    q = torch.tensor([[0.15, 0.3, 0.55]], dtype=torch.float64)
    u = torch.tensor([[0.2, 0.3, 0.5]], dtype=torch.float64)
    loss = SampleDependentFocalLoss(((0.2, 5), (0.5, 3), (1, 2)))
    gamma = torch.tensor([[5.0, 3.0, 2.0]], dtype=torch.float64)
    torch.testing.assert_close(loss(q.log(), u), (u * (1 - q) ** gamma * -q.log()).sum())


@pytest.mark.parametrize("epochs", [350, 70, 7])
def test_schedule_scales_with_the_run(epochs) -> None:
    loss = ScheduledFocalLoss()
    gammas = []
    for epoch in range(epochs):
        loss.start_epoch(epoch, epochs)
        gammas.append(loss.gamma)
    share = epochs // 7
    assert gammas == [5.0] * (2 * share) + [3.0] * (3 * share) + [1.0] * (2 * share)


def test_schedule_survives_its_state_dict() -> None:
    loss, fresh = ScheduledFocalLoss(), ScheduledFocalLoss()
    loss.start_epoch(200, 350)
    fresh.load_state_dict(loss.state_dict())
    assert fresh.gamma == loss.gamma == 3.0
    logits, labels = case()
    assert torch.equal(fresh(logits, labels), focal_loss(logits, labels, 3.0))


@pytest.mark.parametrize("gamma", [-1.0, -2.0, float("nan"), float("inf"), torch.full((9,), -1.0)])
def test_gamma_out_of_range_is_refused(gamma) -> None:
    logits, labels = case()
    with pytest.raises(InputError, match="gamma"):
        focal_loss(logits, labels, gamma)


@pytest.mark.parametrize("rows", [slice(None), 0])
def test_gamma_without_a_shape_is_one_number(rows) -> None:
    logits, labels = case()
    expected = focal_loss(logits[rows], labels[rows], 1.5)
    assert torch.equal(focal_loss(logits[rows], labels[rows], torch.tensor(1.5)), expected)


def test_class_weights_may_be_a_list_or_an_array() -> None:
    logits, labels = case()
    weight = [1.0, 2.0, 0.5, 3.0, 1.0]
    expected = F.cross_entropy(logits, labels, weight=torch.tensor(weight).double())
    for given in (weight, np.array(weight)):
        assert torch.equal(focal_loss(logits, labels, 0.0, weight=given), expected)


def test_gamma_of_the_wrong_shape_is_refused() -> None:
    logits, labels = case()
    with pytest.raises(InputError, match="labels' shape"):
        focal_loss(logits, labels, torch.ones(3))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target": torch.zeros(9)}, r"\.long\(\)"),
        ({"target": torch.zeros(9, dtype=torch.bool)}, "integer labels"),
        ({"target": torch.zeros(8, dtype=torch.long)}, r"shape \(9,\)"),
        ({"target": torch.full((9,), 5)}, r"0\.\.4 .*got 5 at \[0\]"),
        ({"target": torch.full((9,), -1)}, "got -1"),
        ({"weight": torch.ones(4)}, "one weight per class"),
        ({"label_smoothing": 1.5}, "label_smoothing"),
        ({"reduction": "average"}, "reduction"),
        ({"logits": torch.zeros(9, 5, dtype=torch.long)}, "floating-point logits"),
        ({"logits": torch.tensor(1.0)}, "floating-point logits"),
        ({"target": torch.full((9, 5), 0.2), "ignore_index": 2}, "ignore_index"),
    ],
)
def test_bad_input_is_named(change, message) -> None:
    logits, labels = case()
    arguments = {"logits": logits, "target": labels, "gamma": 2.0, **change}
    with pytest.raises(InputError, match=message):
        focal_loss(**arguments)


@pytest.mark.parametrize("name", ["ce", "ls-0.1", "flsd-53", "fls-531"])
def test_a_loss_that_sets_gamma_takes_no_other(name) -> None:
    with pytest.raises(TypeError, match="gamma"):
        make_loss(name, gamma=1.0)


@pytest.mark.parametrize(
    "steps",
    [
        (),
        ((0.5, 1),),
        ((0.5, 1), (0.2, 2), (1, 3)),
        ((0, 1), (1, 2)),
        3.0,
        [1.0, 2.0],
        ((0.5, 1, 2), (1, 3, 4)),
        (("half", 1), (1, 3)),
    ],
)
def test_bad_steps_are_refused(steps) -> None:
    with pytest.raises(InputError, match="rising ends"):
        SampleDependentFocalLoss(steps)
    with pytest.raises(InputError, match="rising ends"):
        ScheduledFocalLoss(steps)


def test_an_epoch_outside_the_run_is_refused() -> None:
    with pytest.raises(InputError, match="epoch 5 of 5"):
        ScheduledFocalLoss().start_epoch(5, 5)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_backward_twice_and_in_batches(reduction) -> None:
    logits, labels = case()
    value = focal_loss(logits, labels, 2.0, reduction=reduction)
    outer = torch.rand(3, *value.shape, dtype=torch.float64)
    each = [torch.autograd.grad(value, logits, o, retain_graph=True)[0] for o in outer]
    again = torch.autograd.grad(value, logits, outer[0], retain_graph=True)[0]
    assert torch.equal(each[0], again)
    (together,) = torch.autograd.grad(value, logits, outer, is_grads_batched=True)
    torch.testing.assert_close(together, torch.stack(each))
