"""The Trainer's two functions: the loss is the mean over all items, the metrics are ours."""

from __future__ import annotations

import types

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from focalcal import metrics  # noqa: E402
from focalcal._arrays import softmax  # noqa: E402
from focalcal.errors import InputError  # noqa: E402
from focalcal.integrations.huggingface import compute_loss_func, compute_metrics  # noqa: E402
from focalcal.losses import FocalLoss, SigmoidFocalLoss, focal_loss  # noqa: E402


@pytest.fixture
def tokens(sharp_data):
    """Logits (8, 6, 3) and labels (8, 6), the padding labelled −100."""
    z, y = sharp_data(48, 3)
    y[::5] = -100
    return torch.as_tensor(z).reshape(8, 6, 3), torch.as_tensor(y).reshape(8, 6)


def test_loss_of_tokens_is_the_mean_over_labelled_ones(tokens):
    logits, labels = tokens
    kept = labels != -100
    expected = FocalLoss(2.0)(logits[kept], labels[kept])
    assert compute_loss_func("fl-2")({"logits": logits}, labels).item() == pytest.approx(
        expected.item()
    )


def test_accumulated_batches_add_up_to_one_mean(tokens):
    logits, labels = tokens
    function = compute_loss_func(FocalLoss(3.0))
    items = (labels != -100).sum()
    parts = [
        function(types.SimpleNamespace(logits=logits[i]), labels[i], num_items_in_batch=items)
        for i in (slice(0, 3), slice(3, 8))
    ]
    assert sum(parts).item() == pytest.approx(function({"logits": logits}, labels).item())


def test_outputs_may_be_a_tuple(tokens):
    logits, labels = tokens
    function = compute_loss_func("fl-2")
    assert torch.equal(function((logits, None), labels), function({"logits": logits}, labels))


def test_multi_label_targets_reach_the_loss_whole():
    logits, labels = torch.randn(5, 3), torch.ones(5, 3)
    loss = SigmoidFocalLoss(2.0)
    got = compute_loss_func(loss)({"logits": logits}, labels)
    assert got.item() == pytest.approx(loss(logits, labels).item())


def test_metrics_of_tokens(tokens):
    logits, labels = (a.numpy() for a in tokens)
    kept = labels != -100
    found = compute_metrics(types.SimpleNamespace(predictions=(logits, None), label_ids=labels))
    assert found["ece"] == pytest.approx(metrics.ece(labels[kept], softmax(logits[kept])))
    assert set(found) == {"accuracy", "nll", "brier", "ece", "adaptive_ece"}


def test_the_log_loss_of_finite_logits_is_finite():
    assert compute_metrics((np.array([[1000.0, 0.0]]), np.array([1])))["nll"] == 1000


def test_what_does_not_fit_is_refused():
    with pytest.raises(InputError, match="reduction 'mean', got 'sum'"):
        compute_loss_func(FocalLoss(1.0, reduction="sum"))
    with pytest.raises(InputError, match="reduction 'mean', got <function"):
        compute_loss_func(focal_loss)
    with pytest.raises(InputError, match="one label per row"):
        compute_metrics((np.zeros((4, 2)), np.zeros(3, int)))
    with pytest.raises(InputError, match="12 labels for 4 rows; with several labels per row"):
        compute_metrics((np.zeros((4, 3)), np.zeros((4, 3))))


@pytest.mark.parametrize("name", ["ce", "fl-2", "brier", "adafocal", "mmce"])
def test_a_micro_batch_without_labels_adds_nothing(tokens, name):
    logits = tokens[0].requires_grad_()
    value = compute_loss_func(name)({"logits": logits}, torch.full((8, 6), -100), 10)
    assert value.item() == 0
    (gradient,) = torch.autograd.grad(value, logits)
    assert (gradient == 0).all()
