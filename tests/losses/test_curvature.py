from __future__ import annotations

import pytest
import torch

from focalcal.errors import InputError
from focalcal.losses import CurvatureRegularizedLoss, make_loss


def small_model():
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2)
    ).double()
    return model, torch.randn(6, 2, dtype=torch.float64), torch.randint(2, (6,))


def dense_trace(model, loss, x, y) -> torch.Tensor:
    """Tr(H) from the full Hessian by torch.func: no probes, differentiable."""
    names = [name for name, _ in model.named_parameters()]
    sizes = [p.numel() for p in model.parameters()]
    shapes = [p.shape for p in model.parameters()]

    def value(flat):
        parts = [part.reshape(s) for part, s in zip(flat.split(sizes), shapes)]
        return loss(torch.func.functional_call(model, dict(zip(names, parts)), (x,)), y)

    flat = torch.cat([p.flatten() for p in model.parameters()])
    rows = [
        torch.autograd.functional.hvp(value, flat, e, create_graph=True)[1] @ e
        for e in torch.eye(len(flat), dtype=flat.dtype)
    ]
    return torch.stack(rows).sum()


@pytest.mark.parametrize("base", ["ce", "fl-2", "fl-0.5"])
def test_many_probes_reach_the_dense_trace_and_its_gradient(base) -> None:
    model, x, y = small_model()
    generator = torch.Generator().manual_seed(1)
    plain = make_loss(base)
    loss = CurvatureRegularizedLoss(plain, model.parameters(), 0.5, 400, generator)
    value = loss(model(x), y)
    trace = dense_trace(model, plain, x, y)
    expected = plain(model(x), y) + 0.5 * trace
    torch.testing.assert_close(value, expected, rtol=0.05, atol=0)
    first = next(model.parameters())
    got = torch.autograd.grad(value, first)[0]
    wanted = torch.autograd.grad(expected, first)[0]
    torch.testing.assert_close(got, wanted, rtol=0, atol=0.2 * wanted.norm().item())


def test_tau_zero_is_the_base_and_evaluation_too() -> None:
    model, x, y = small_model()
    loss = make_loss("ce+curvature", parameters=model.parameters(), tau=0.0)
    assert torch.equal(loss(model(x), y), make_loss("ce")(model(x), y))
    loss = make_loss("ce+curvature", parameters=model.parameters(), tau=1.0)
    with torch.no_grad():
        assert torch.equal(loss(model(x), y), make_loss("ce")(model(x), y))


def test_same_generator_same_value_and_no_parameters_of_its_own() -> None:
    model, x, y = small_model()
    values = []
    for _ in range(2):
        generator = torch.Generator().manual_seed(3)
        loss = make_loss(
            "fls-531+curvature", parameters=model.parameters(), tau=0.1, generator=generator
        )
        values.append(loss(model(x), y).item())
    assert values[0] == values[1]
    assert list(loss.parameters()) == []
    assert loss.needs_parameters
    loss.start_epoch(6, 7)
    assert loss.base.gamma == 1.0


def test_a_base_that_needs_validation_is_passed_it() -> None:
    model, x, y = small_model()
    loss = make_loss("adafocal+curvature", parameters=model.parameters())
    assert loss.needs_validation
    loss.update(model(x), y)
    assert not torch.equal(loss.base.gammas, torch.ones(15))


def test_bad_settings_are_refused() -> None:
    model, _, _ = small_model()
    with pytest.raises(InputError, match="no per-sample value"):
        CurvatureRegularizedLoss(make_loss("ce", reduction="none"), model.parameters())
    with pytest.raises(InputError, match="at least one parameter"):
        CurvatureRegularizedLoss(make_loss("ce"), [])
    for given in (model, next(model.parameters()), model.named_parameters()):
        with pytest.raises(InputError, match=r"iterable such as model\.parameters\(\), got"):
            CurvatureRegularizedLoss(make_loss("ce"), given)
    with pytest.raises(InputError, match=r"got CrossEntropyLoss; FocalLoss\(0\.0\) is"):
        CurvatureRegularizedLoss(torch.nn.CrossEntropyLoss(), model.parameters())
    with pytest.raises(InputError, match=r"parameters=model\.parameters\(\)"):
        make_loss("ce+curvature")
