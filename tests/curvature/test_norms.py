"""Per-sample norms against one backward pass per sample."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from focalcal.curvature import (
    gradient_norms,
    input_gradient_norms,
    last_layer_gradient_norms,
    summarise_norms,
    weight_norms,
)
from focalcal.errors import InputError


def focal(logits, target):
    log_p = F.log_softmax(logits, 1).gather(1, target[:, None])[:, 0]
    return -((1 - log_p.exp()) ** 3) * log_p


def one_by_one(problem, tensors, of_input=False):
    norms = []
    for x, y in zip(problem.x.split(1), problem.y.split(1)):
        x = x.clone().requires_grad_()
        value = focal(problem.model(x), y).sum()
        gradients = torch.autograd.grad(value, [x] if of_input else tensors)
        norms.append(torch.cat([g.reshape(-1) for g in gradients]).norm())
    return torch.stack(norms)


def batches(problem):
    return list(zip(problem.x.split(5), problem.y.split(5)))


def test_last_layer(problem):
    exact = one_by_one(problem, list(problem.model[-1].parameters()))
    norms = last_layer_gradient_norms(problem.model, focal, batches(problem))
    torch.testing.assert_close(norms, exact)


def test_last_layer_behind_something_else(mlp):
    mlp.model.append(nn.Tanh())
    exact = one_by_one(mlp, list(mlp.model[-2].parameters()))
    torch.testing.assert_close(last_layer_gradient_norms(mlp.model, focal, batches(mlp)), exact)


@pytest.mark.parametrize("bias", [True, False])
def test_last_layer_on_several_positions_and_calls(mlp, bias):
    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(5, 5, bias=bias).double()

        def forward(self, x):
            return self.layer(self.layer(torch.stack([x, x**2], 1)).tanh()).mean(1)[:, :3]

    mlp.model = Pooled()
    exact = one_by_one(mlp, list(mlp.model.parameters()))
    torch.testing.assert_close(last_layer_gradient_norms(mlp.model, focal, batches(mlp)), exact)


def test_the_last_layer_is_the_one_called_last(mlp):
    """And no graph of the layers before it is kept."""
    recorded = []

    class HeadFirst(nn.Module):
        def __init__(self):
            super().__init__()
            self.head, self.body = mlp.model[2], mlp.model[0]

        def forward(self, x):
            hidden = self.body(x).tanh()
            recorded.append(hidden.requires_grad)
            return self.head(hidden)

    batches = [(mlp.x, mlp.y)]
    expected = gradient_norms(mlp.model, "ce", batches, mlp.model[2].parameters())
    torch.testing.assert_close(last_layer_gradient_norms(HeadFirst(), "ce", batches), expected)
    assert not any(recorded)


def test_all_parameters_and_inputs(problem):
    exact = one_by_one(problem, list(problem.model.parameters()))
    torch.testing.assert_close(gradient_norms(problem.model, focal, batches(problem)), exact)
    exact = one_by_one(problem, [], of_input=True)
    torch.testing.assert_close(input_gradient_norms(problem.model, focal, batches(problem)), exact)


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM])
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_recurrent_networks(mlp, kind):
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.recurrent = kind(1, 3, batch_first=True).double()

        def forward(self, x):
            return self.recurrent(x[..., None])[0][:, -1]

    mlp.model = Last()
    exact = one_by_one(mlp, list(mlp.model.parameters()))
    torch.testing.assert_close(gradient_norms(mlp.model, focal, batches(mlp)), exact)


def test_weight_norms(mlp):
    norms = weight_norms(mlp.model)
    assert sum(v**2 for v in norms.values()) == pytest.approx(mlp.flat().square().sum().item())
    assert list(norms) == mlp.names


def test_summary():
    summary = summarise_norms(torch.arange(1.0, 102.0))
    assert (summary.mean, summary.median, summary.q95, summary.largest) == (51, 51, 96, 101)
    assert summary.standard_error == pytest.approx(29.300 / 101**0.5, rel=1e-4)
    assert summary.n == 101
    with pytest.raises(InputError, match="shape"):
        summarise_norms(torch.zeros(0))


def test_refuses_bad_input(mlp):
    with pytest.raises(InputError, match="linear layer"):
        last_layer_gradient_norms(nn.Tanh(), focal, [])
    unused = nn.Conv1d(5, 3, 1).double()
    unused.add_module("never", nn.Linear(2, 2))
    with pytest.raises(InputError, match="calls a linear layer"):
        last_layer_gradient_norms(unused, focal, [(mlp.x[..., None], mlp.y[:, None])])
    with pytest.raises(InputError, match="one value per sample"):
        last_layer_gradient_norms(mlp.model, F.cross_entropy, batches(mlp))
    with pytest.raises(InputError, match="floating point"):
        input_gradient_norms(mlp.model, focal, [(mlp.x.long(), mlp.y)])
