"""Small networks with exact dense Hessians: plain autograd in float64, no library code."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call


@dataclasses.dataclass
class Problem:
    """A float64 network, its data and the exact Hessian of its loss over all parameters."""

    model: nn.Module
    x: Tensor
    y: Tensor

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.model.named_parameters()]

    @property
    def n_parameters(self) -> int:
        return sum(p.numel() for p in self.model.parameters())

    def flat(self) -> Tensor:
        return torch.cat([p.detach().reshape(-1) for p in self.model.parameters()])

    def loss_of(self, loss: Callable, flat: Tensor, x: Tensor | None = None) -> Tensor:
        """The loss as a function of one flat parameter vector."""
        values, start = {}, 0
        for name, p in self.model.named_parameters():
            values[name] = flat[start : start + p.numel()].view_as(p)
            start += p.numel()
        x = self.x if x is None else x
        return loss(functional_call(self.model, values, (x,)), self.y)

    def hessian(self, loss: Callable = nn.functional.cross_entropy) -> Tensor:
        return torch.autograd.functional.hessian(lambda t: self.loss_of(loss, t), self.flat())


def make_mlp(seed: int = 0, widths: tuple[int, ...] = (5, 7, 3), n: int = 24) -> Problem:
    g = torch.Generator().manual_seed(seed)
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.Tanh()]
    model = nn.Sequential(*layers[:-1]).double()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=g, dtype=torch.float64) * 0.7)
    x = torch.randn(n, widths[0], generator=g, dtype=torch.float64)
    y = torch.randint(0, widths[-1], (n,), generator=g)
    return Problem(model, x, y)


def make_conv(seed: int = 1, n: int = 9) -> Problem:
    """Convolution, eval-mode BatchNorm with statistics of its own, ReLU, pooling, linear."""
    g = torch.Generator().manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1, bias=False),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.Conv2d(3, 3, 3, stride=2),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(3, 3),
    ).double()
    with torch.no_grad():
        for name, t in model.state_dict().items():
            if t.is_floating_point():
                noise = torch.randn(t.shape, generator=g, dtype=torch.float64) * 0.5
                t.copy_(noise.abs() + 0.5 if "var" in name else noise + (0.3 if t.ndim == 1 else 0))
    model.eval()
    x = torch.randn(n, 1, 7, 7, generator=g, dtype=torch.float64)
    y = torch.randint(0, 3, (n,), generator=g)
    return Problem(model, x, y)


def symmetric_matrix(eigenvalues: Sequence[float] | Tensor, seed: int = 0) -> Tensor:
    """A dense matrix with the given spectrum in a random basis."""
    values = torch.as_tensor(eigenvalues, dtype=torch.float64)
    g = torch.Generator().manual_seed(seed)
    q, _ = torch.linalg.qr(torch.randn(len(values), len(values), generator=g, dtype=torch.float64))
    return q @ torch.diag(values) @ q.T


@pytest.fixture
def symmetric() -> Callable[..., Tensor]:
    return symmetric_matrix


@pytest.fixture
def mlp() -> Problem:
    return make_mlp()


@pytest.fixture
def conv() -> Problem:
    return make_conv()


@pytest.fixture(params=["mlp", "conv"])
def problem(request: pytest.FixtureRequest) -> Problem:
    return request.getfixturevalue(request.param)
