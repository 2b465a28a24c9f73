from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from focalcal.errors import InputError
from focalcal.losses import make_loss
from focalcal_papers.data import load
from focalcal_papers.models import make_model
from focalcal_papers.training.batches import make_batches
from focalcal_papers.training.distributed import Processes
from focalcal_papers.training.step import (
    GraphedStep,
    Step,
    _frozen_statistics,
    _unchanged,
    make_optimizer,
    use_graph,
)

CPU = torch.device("cpu")


def make_step(config, device=CPU, model=None):
    splits = load(config.dataset, **config.data_settings)
    source = make_batches(splits, config, device)
    source.start_epoch(0)
    torch.manual_seed(0)
    if model is None:
        model = make_model(
            config.model, splits.n_classes, input_shape=splits.input_shape, **config.model_settings
        )
    loss = make_loss(config.loss, reduction=config.reduction, **config.loss_settings)
    step = Step(config, model.to(device), loss.to(device), source, device, Processes())
    step.set_rate(config.lr)
    return step


def by_hand(config, model, batches, n_steps):
    """The published loop, written out: cross_entropy, backward, clip, SGD."""
    optimizer = torch.optim.SGD(
        model.parameters(), config.lr, momentum=0.9, weight_decay=config.weight_decay
    )
    norms = []
    for batch in batches[:n_steps]:
        optimizer.zero_grad()
        value = nn.functional.cross_entropy(
            model(batch.inputs), batch.targets, reduction=config.reduction
        )
        value.backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), config.clip_norm or 1e9))
        optimizer.step()
    return norms


@pytest.mark.parametrize(("reduction", "clip"), [("mean", 0.0), ("sum", 2.0)])
def test_a_step_is_the_loop_written_out(config, reduction, clip):
    config = config.replace(reduction=reduction, clip_norm=clip)
    step = make_step(config)
    oracle = copy.deepcopy(step.model)
    batches = [step.source.batch(torch.arange(i * 32, i * 32 + 32)) for i in range(4)]
    norms = by_hand(config, oracle, batches, 4)
    if clip:
        assert max(norms) > clip  # otherwise nothing was clipped
    for _ in range(4):
        step(32)
    for got, expected in zip(step.model.parameters(), oracle.parameters()):
        torch.testing.assert_close(got, expected)
    assert (int(step.position), int(step.steps), int(step.samples)) == (128, 4, 128)
    assert int(step.bad_step) == -1


def test_sam_takes_the_gradient_uphill(config):
    config = config.replace(sam=0.1, momentum=0.0, weight_decay=0.0)
    step = make_step(config)
    model = copy.deepcopy(step.model)
    batch = step.source.batch(torch.arange(32))

    def gradient(at):
        return torch.autograd.grad(
            nn.functional.cross_entropy(at(batch.inputs), batch.targets), list(at.parameters())
        )

    first = gradient(model)
    norm = torch.cat([g.flatten() for g in first]).norm()
    above = copy.deepcopy(model)
    with torch.no_grad():
        for p, g in zip(above.parameters(), first):
            p += 0.1 * g / norm
    second = gradient(above)
    step(32)
    for got, start, g in zip(step.model.parameters(), model.parameters(), second):
        torch.testing.assert_close(got, start - config.lr * g, rtol=1e-4, atol=1e-6)


def test_sam_leaves_running_statistics_to_the_first_pass(config):
    config = config.replace(sam=0.1)
    model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    plain = make_step(config.replace(sam=0.0), model=copy.deepcopy(model))
    sam = make_step(config, model=model)
    plain(32)
    sam(32)
    assert torch.equal(sam.model[1].running_mean, plain.model[1].running_mean)
    assert sam.model[1].momentum == 0.1


def test_mixup_loss_is_that_of_the_mixed_label(config):
    """Oracle: cross-entropy with soft targets, which the two-label form must equal."""
    config = config.replace(mixup=0.5)
    step = make_step(config)
    model = copy.deepcopy(step.model)
    batch = step.source.batch(torch.arange(32))
    one_hot = nn.functional.one_hot(batch.targets, 3).float()
    soft = batch.share[:, None] * one_hot + (1 - batch.share[:, None]) * one_hot.roll(1, 0)
    expected = nn.functional.cross_entropy(model(batch.inputs), soft).item()
    step(32)
    assert float(step.loss_sum) == pytest.approx(32 * expected, rel=1e-5)


def test_the_first_bad_step_is_remembered(config):
    step = make_step(config)
    step(32)
    with torch.no_grad():
        step.parameters[0].fill_(float("nan"))
    step(32)
    step(32)
    assert int(step.bad_step) == 2


def test_graph_on_where_none_can_be(config):
    step = make_step(config)
    assert not use_graph(config, step.loss, step.source, step)
    with pytest.raises(InputError, match="but the device is cpu"):
        use_graph(config.replace(graph="on"), step.loss, step.source, step)


@pytest.mark.parametrize("name", ["sgd", "adam", "adagrad"])
def test_optimizers_by_name(config, name):
    parameter = nn.Parameter(torch.ones(2))
    optimizer = make_optimizer(config.replace(optimizer=name), [parameter], CPU)
    assert type(optimizer).__name__.lower() == name
    assert optimizer.param_groups[0]["weight_decay"] == config.weight_decay


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_warm_up_before_a_capture_leaves_no_trace(config, optimizer):
    """Steps inside must not show afterwards: neither in weights nor statistics, nor momentum."""
    config = config.replace(optimizer=optimizer, lr=0.01)
    model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3))
    plain = make_step(config, model=copy.deepcopy(model))
    warmed = make_step(config, model=model)
    torch.manual_seed(1)
    for _ in range(2):
        plain(32)
    torch.manual_seed(1)
    for _ in range(2):
        with _unchanged(warmed):
            for _ in range(3):
                warmed.position.zero_()
                warmed(32)
        warmed(32)
    for name, value in plain.model.state_dict().items():
        assert torch.equal(warmed.model.state_dict()[name], value)
    for name, value in plain.counters.items():
        assert torch.equal(warmed.counters[name], value)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_graph_of_the_step_is_the_step(config, optimizer):
    device = torch.device("cuda")
    config = config.replace(optimizer=optimizer, clip_norm=2.0, lr=0.01)
    eager, graphed = make_step(config, device), make_step(config, device)
    run = GraphedStep(graphed)
    for rate, size in ((0.01, 32), (0.01, 32), (0.001, 32), (0.001, 12)):
        eager.set_rate(rate)
        graphed.set_rate(rate)
        eager(size)
        run(size)
    assert int(graphed.position) == int(eager.position)
    for got, expected in zip(graphed.model.parameters(), eager.model.parameters()):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("inside", ["climbed", "frozen", "unchanged"])
def test_a_failure_inside_a_step_leaves_the_model_as_it_was(config, inside):
    model = nn.Sequential(nn.Flatten(), nn.LazyLinear(16), nn.BatchNorm1d(16), nn.Linear(16, 3))
    splits = load(config.dataset, **config.data_settings)
    model(splits.train.inputs[:2])
    step = make_step(config.replace(sam=0.5), model=model)
    step._gradient(step.source.batch(torch.arange(32)), 32)
    before = copy.deepcopy(step.model.state_dict())
    guards = {
        "climbed": step._climbed,
        "frozen": lambda: _frozen_statistics(step.model),
        "unchanged": lambda: _unchanged(step),
    }

    def fail():
        with guards[inside](), torch.no_grad():
            if inside == "unchanged":
                for value in step.model.state_dict().values():
                    value += 1
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        fail()
    for name, value in step.model.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=1e-6)
    assert step.model[2].momentum == 0.1
