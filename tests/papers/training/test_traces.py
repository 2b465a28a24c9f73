from __future__ import annotations

import doctest

import numpy as np
import pytest
import torch
from torch import nn

from focalcal.losses import make_loss
from focalcal_papers.data import load
from focalcal_papers.models import make_model
from focalcal_papers.training import TrainConfig, traces
from focalcal_papers.training.batches import make_batches
from focalcal_papers.training.traces import describe, last_layer, save_snapshot, weight_norms


def test_examples_run():
    assert doctest.testmod(traces).failed == 0


def test_describe_by_hand():
    """Oracle: one sample at a time in float64."""
    torch.manual_seed(0)
    logits, labels = 3 * torch.randn(50, 4), torch.randint(4, (50,))
    rows = []
    for z, y in zip(logits.double().numpy(), labels.numpy()):
        p = np.exp(z) / np.exp(z).sum()
        rows.append((-np.log(p[y]), -(p * np.log(p)).sum(), p.max(), p[y], p.argmax() == y))
    table = np.array(rows, float)
    right = table[:, 4] == 1
    got = describe(logits, labels)
    assert got["n"] == 50
    assert got["error"] == pytest.approx(1 - right.mean())
    for column, name in enumerate(("nll", "entropy", "confidence", "p_true")):
        assert got[name] == pytest.approx(table[:, column].mean(), rel=1e-5)
        assert got[f"{name}_right"] == pytest.approx(table[right, column].mean(), rel=1e-5)
        assert got[f"{name}_wrong"] == pytest.approx(table[~right, column].mean(), rel=1e-5)
    assert 0 < got["ece"] < 1


def test_describe_where_a_group_is_empty_or_a_logit_is_not_finite():
    got = describe(torch.tensor([[3.0, 0.0]]), torch.tensor([0]))
    assert got["nll_wrong"] is None
    assert got["nll_right"] == got["nll"]
    broken = describe(torch.tensor([[float("nan"), 0.0]]), torch.tensor([0]))
    assert broken["nll"] is None
    assert broken["ece"] is None


def test_weight_norms():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3))
    flat = torch.cat([p.flatten() for p in model.parameters()])
    norms = weight_norms(model)
    assert norms["weight_norm"] == pytest.approx(flat.norm().item(), rel=1e-6)
    assert norms["last_layer_norm"] == pytest.approx(model[1].weight.norm().item(), rel=1e-6)


@pytest.mark.parametrize("name", ["resnet20", "vit", "mobilenet_v2", "vgg19", "densenet121", "mlp"])
def test_the_last_layer_gives_the_logits(name):
    assert last_layer(make_model(name, 7)).out_features == 7


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_snapshot_gradients_are_those_of_backward(tmp_path, reduction):
    """Oracle: one backward pass per sample through the whole model; weights and bias."""
    splits = load("blobs", n_train=30, calibration=10, n_test=5)
    config = TrainConfig(dataset="blobs", model="mlp", batch_size=8, reduction=reduction)
    model = make_model("mlp", 3, hidden=6, input_shape=(8,))
    source = make_batches(splits, config, torch.device("cpu"))
    loss = make_loss("fl-2", reduction=reduction)
    save_snapshot(tmp_path / "s.npz", model, loss, source, config)
    expected = []
    for x, y in zip(splits.train.inputs, splits.train.labels):
        model.zero_grad()
        loss(model(x[None]), y[None]).backward()
        layer = last_layer(model)
        expected.append(torch.cat([p.grad.flatten() for p in layer.parameters()]).norm().item())
    with np.load(tmp_path / "s.npz") as saved:
        np.testing.assert_allclose(saved["gradient_norms"], expected, rtol=1e-4)
        assert saved["correct_sums"].sum() <= 20
        assert saved["edges"].shape == (26,)
        assert "logits" not in saved


def test_snapshot_of_a_loss_without_a_value_per_sample(tmp_path):
    splits = load("blobs", n_train=30, calibration=10, n_test=5)
    config = TrainConfig(dataset="blobs", model="mlp", batch_size=8)
    model = make_model("mlp", 3, hidden=6, input_shape=(8,))
    source = make_batches(splits, config, torch.device("cpu"))
    save_snapshot(tmp_path / "s.npz", model, make_loss("mmce"), source, config)
    with np.load(tmp_path / "s.npz") as saved:
        assert "gradient_norms" not in saved
        assert saved["counts"].sum() == 20
