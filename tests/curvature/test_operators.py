"""Operators against dense matrices from plain float64 autograd, and finite differences."""

import gc

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from focalcal.curvature import FisherOperator, GGNOperator, HessianOperator, hessian_trace
from focalcal.errors import InputError


def per_sample(logits, target):
    return F.cross_entropy(logits, target, reduction="none")


def focal(logits, target, gamma=3.0):
    """The focal loss as its definition reads; only here to have a loss that is not convex in z."""
    log_p = F.log_softmax(logits, 1).gather(1, target[:, None])[:, 0]
    return -((1 - log_p.exp()) ** gamma) * log_p


def in_batches(problem, size=7, weight=None):
    parts = [problem.x, problem.y] + ([] if weight is None else [weight])
    return list(zip(*[part.split(size) for part in parts]))


def dense(operator):
    return operator @ torch.eye(operator.shape[0], dtype=torch.float64)


@pytest.mark.parametrize("loss", [F.cross_entropy, per_sample, focal])
def test_hessian_equals_the_dense_one(problem, loss):
    operator = HessianOperator(problem.model, loss, in_batches(problem))
    exact = problem.hessian(lambda z, y: loss(z, y).mean())
    torch.testing.assert_close(dense(operator), exact)
    v = torch.randn(exact.shape[0], dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(operator @ v, exact @ v)


def test_product_equals_finite_differences_of_the_gradient(problem):
    operator = HessianOperator(problem.model, per_sample, in_batches(problem))
    n = operator.shape[0]
    v = torch.randn(n, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    step = 1e-5
    flat = problem.flat()

    def gradient_at(values):
        torch.nn.utils.vector_to_parameters(values, problem.model.parameters())
        return operator.gradient()

    difference = (gradient_at(flat + step * v) - gradient_at(flat - step * v)) / (2 * step)
    torch.nn.utils.vector_to_parameters(flat, problem.model.parameters())
    torch.testing.assert_close(operator @ v, difference, rtol=1e-6, atol=1e-7)


def test_transformers(mlp):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(12, 3)).double()
    operator = HessianOperator(model, "ce", [(torch.randn(5, 3, 4).double(), mlp.y[:5])])
    v = torch.randn(operator.shape[0], dtype=torch.float64)

    def gradient_at(step):
        with torch.no_grad():
            for p, s in zip(operator.parameters.values(), operator.blocks.values()):
                p += step * v[s].view_as(p)
        return operator.gradient()

    step = 1e-5
    difference = gradient_at(step) - gradient_at(-2 * step)
    gradient_at(step)
    torch.testing.assert_close(operator @ v, difference / (2 * step), rtol=1e-5, atol=1e-6)
    gauss_newton = GGNOperator(model, "ce", operator.batches) @ v
    assert v @ gauss_newton > 0


@pytest.mark.parametrize("operator", [HessianOperator, GGNOperator])
def test_inside_inference_mode(mlp, operator):
    def measured():
        found = operator(mlp.model, "ce", in_batches(mlp))
        return hessian_trace(found).value, found.gradient()

    with torch.inference_mode():
        value, gradient = measured()
    assert value == measured()[0]
    assert torch.equal(gradient, measured()[1])


def test_weights_equal_repetition(mlp):
    weight = torch.tensor([0, 1, 2, 3] * 6, dtype=torch.float64)
    weighted = HessianOperator(mlp.model, per_sample, in_batches(mlp, weight=weight))
    again = weight.long()
    repeated = [(mlp.x.repeat_interleave(again, 0), mlp.y.repeat_interleave(again))]
    torch.testing.assert_close(
        dense(weighted), dense(HessianOperator(mlp.model, per_sample, repeated))
    )


def test_a_choice_of_parameters_is_a_block(problem):
    exact = problem.hessian()
    whole = HessianOperator(problem.model, per_sample, in_batches(problem))
    names = problem.names[1:3]
    rows = torch.cat([torch.arange(whole.shape[0])[whole.blocks[name]] for name in names])
    block = exact[rows][:, rows]
    tensors = [dict(problem.model.named_parameters())[name] for name in names]
    torch.testing.assert_close(
        dense(HessianOperator(problem.model, per_sample, in_batches(problem), tensors)), block
    )
    torch.testing.assert_close(dense(whole.block(names)), block)
    assert all(p.requires_grad for p in problem.model.parameters())


def exact_jacobian(problem):
    jacobian = torch.autograd.functional.jacobian(
        lambda t: problem.loss_of(lambda z, y: z, t), problem.flat()
    )
    logits = problem.model(problem.x).detach()
    return jacobian, logits


@pytest.mark.parametrize("loss", [per_sample, focal])
def test_gauss_newton_is_jacobian_hessian_jacobian(problem, loss):
    jacobian, logits = exact_jacobian(problem)
    total = 0
    for j, z, y in zip(jacobian, logits, problem.y):
        inner = torch.autograd.functional.hessian(lambda z, y=y: loss(z[None], y[None]).sum(), z)
        total = total + j.T @ inner @ j
    operator = GGNOperator(problem.model, loss, in_batches(problem))
    torch.testing.assert_close(dense(operator), total / len(problem.y))


def test_true_fisher_is_the_mean_over_the_models_labels(problem):
    jacobian, logits = exact_jacobian(problem)
    q = logits.softmax(1)
    total = 0
    for j, p in zip(jacobian, q):
        for k in range(len(p)):
            score = j.T @ (torch.eye(len(p), dtype=torch.float64)[k] - p)
            total = total + p[k] * torch.outer(score, score)
    operator = FisherOperator(problem.model, in_batches(problem))
    torch.testing.assert_close(dense(operator), total / len(problem.y))
    name = problem.names[0]
    s = operator.blocks[name]
    torch.testing.assert_close(dense(operator.block(name)), total[s, s] / len(problem.y))


def test_empirical_fisher_is_the_mean_of_gradients_squared(problem):
    weight = torch.linspace(0, 1, len(problem.y), dtype=torch.float64)
    parameters = list(problem.model.parameters())
    problem.model.eval()
    total = 0
    for i, w in enumerate(weight):
        value = focal(problem.model(problem.x[i : i + 1]), problem.y[i : i + 1]).sum()
        g = torch.cat([p.reshape(-1) for p in torch.autograd.grad(value, parameters)])
        total = total + w * torch.outer(g, g)
    operator = FisherOperator(
        problem.model, in_batches(problem, weight=weight), kind="empirical", loss=focal
    )
    torch.testing.assert_close(dense(operator), total / weight.sum())
    name = problem.names[0]
    s = operator.blocks[name]
    torch.testing.assert_close(dense(operator.block(name)), total[s, s] / weight.sum())


def test_losses_by_name(mlp):
    for name, loss in [("ce", per_sample), ("fl-3", focal)]:
        operator = HessianOperator(mlp.model, name, in_batches(mlp))
        torch.testing.assert_close(
            dense(operator), mlp.hessian(lambda z, y, f=loss: f(z, y).mean())
        )


def test_float32_networks_are_summed_in_float64(mlp):
    mlp.model.float()
    batches = [(x.float(), y) for x, y in in_batches(mlp)]
    product = HessianOperator(mlp.model, per_sample, batches) @ torch.ones(mlp.n_parameters)
    assert product.dtype == torch.float64
    mlp.model.double()
    exact = mlp.hessian().sum(1)
    torch.testing.assert_close(product, exact, rtol=1e-4, atol=1e-6)


def test_modes_and_flags_are_restored(conv):
    conv.model.train()
    conv.model[1].eval()
    conv.model[0].weight.requires_grad_(False)
    statistics = conv.model[4].running_mean.clone()
    before = [m.training for m in conv.model.modules()]
    operator = HessianOperator(conv.model, per_sample, in_batches(conv))
    assert "0.weight" not in operator.blocks
    operator @ torch.ones(operator.shape[0])
    assert [m.training for m in conv.model.modules()] == before
    assert not conv.model[0].weight.requires_grad
    torch.testing.assert_close(conv.model[4].running_mean, statistics)

    class Failing(nn.Module):
        def forward(self, x):
            raise RuntimeError("no")

    broken = nn.Sequential(nn.Linear(5, 3), Failing()).train()
    with pytest.raises(RuntimeError, match="no"):
        HessianOperator(broken, per_sample, [(torch.ones(1, 5), torch.zeros(1, dtype=int))])
    assert broken.training


class AlwaysDropout(nn.Module):
    def forward(self, x):
        return F.dropout(x, 0.5, training=True)


def test_dropout_in_eval_mode_is_fine_and_elsewhere_an_error(mlp):
    batches = in_batches(mlp)
    HessianOperator(nn.Sequential(mlp.model, nn.Dropout(0.5)).train(), per_sample, batches)
    with pytest.raises(InputError, match="same gradient from two passes"):
        HessianOperator(nn.Sequential(mlp.model, AlwaysDropout()), per_sample, batches)


def test_random_data_is_an_error(mlp):
    class Augmented:
        def __iter__(self):
            yield mlp.x + torch.randn_like(mlp.x), mlp.y

    with pytest.raises(InputError, match="augmentation"):
        HessianOperator(mlp.model, per_sample, Augmented())


def test_a_loss_without_curvature_gives_zeros():
    model = nn.Linear(2, 2)
    data = [(torch.ones(3, 2), torch.zeros(3, dtype=int))]
    operator = HessianOperator(model, lambda z, y: z.sum(1), data)
    assert not (operator @ torch.ones(6)).any()
    assert not (GGNOperator(model, lambda z, y: z.sum(1), data) @ torch.ones(6)).any()


def test_products_leave_no_tensors_behind(conv):
    operator = HessianOperator(conv.model, per_sample, in_batches(conv))
    v = torch.ones(operator.shape[0], 3)
    operator @ v
    gc.collect()
    gc.disable()
    try:
        before = sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects())
        for _ in range(3):
            operator @ v
        after = sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects())
    finally:
        gc.enable()
    assert after == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batches": []}, "at least one batch"),
        ({"batches": iter([])}, "one-shot iterator"),
        ({"batches": [torch.ones(2)]}, "batches of"),
        ({"parameters": ["nope"]}, "parameters of the model"),
        ({"parameters": []}, "at least one parameter"),
        ({"loss": 3}, "loss name or a callable"),
        ({"loss": lambda z, y: z.T}, "one value per sample"),
        ({"loss": nn.CrossEntropyLoss(reduction="sum")}, "got 'sum'"),
        ({"loss": "fl-x"}, "unknown loss"),
        ({"loss": "mmce"}, "a value per sample, got 'mmce'"),
        ({"loss": "ce+curvature"}, "without a curvature term"),
        ({"loss": lambda z, y: (z * torch.nan).sum(1)}, "finite gradient"),
    ],
)
def test_refuses_what_it_cannot_use(mlp, change, message):
    settings = {"batches": in_batches(mlp), "loss": per_sample, **change}
    with pytest.raises(InputError, match=message):
        HessianOperator(mlp.model, **settings)


def test_refuses_bad_weights_and_vectors(mlp):
    for weight, loss, message in [
        (torch.zeros(24), per_sample, "positive sum"),
        (-torch.ones(24), per_sample, "weights >= 0"),
        (torch.ones(24), F.cross_entropy, "weighted batches need"),
    ]:
        with pytest.raises(InputError, match=message):
            HessianOperator(mlp.model, loss, in_batches(mlp, weight=weight))
    operator = HessianOperator(mlp.model, per_sample, in_batches(mlp))
    for bad in (torch.ones(3), torch.ones(operator.shape[0], 1, 1), [1.0]):
        with pytest.raises(InputError, match="expected a tensor of shape"):
            operator @ bad


def test_fisher_refuses_unclear_requests(mlp):
    batches = in_batches(mlp)
    with pytest.raises(InputError, match="'true' or 'empirical'"):
        FisherOperator(mlp.model, batches, kind="other")
    with pytest.raises(InputError, match="expected no loss"):
        FisherOperator(mlp.model, batches, loss=per_sample)
    operator = FisherOperator(mlp.model, batches, kind="empirical", loss=F.cross_entropy)
    with pytest.raises(InputError, match="one value per sample"):
        operator @ torch.ones(operator.shape[0])
