"""The loss behind a linear layer equals the loss of all its logits, whatever the chunks."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing import spawn
from torch.nn import functional as F

from focalcal.errors import InputError
from focalcal.losses import LinearFocalLoss, focal_loss, linear_focal_loss
from losses.conftest import waiting_raises
from processes import leave

STEPS = ((0.2, 5.0), (0.5, 3.0), (1.0, 2.0))


def layer(n: int = 300, d: int = 8, v: int = 50, dtype=torch.float64, device="cpu"):
    """Hidden states, weight, bias and labels; 300 rows are three chunks of the smallest size."""
    generator = torch.Generator().manual_seed(0)
    shapes = (n, d), (v, d), (v,)
    tensors = [torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes]
    labels = torch.randint(v, (n,), generator=generator)
    labels[3] = -100
    x, weight, bias = (tensor.to(device, dtype).requires_grad_() for tensor in tensors)
    return x, weight, bias, labels.to(device)


def gradients(value, *inputs, outer=None):
    return torch.autograd.grad(value, inputs, outer)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("gamma", [0.0, 0.4, 3.0, "per row", STEPS], ids=str)
def test_equals_the_loss_of_the_logits(gamma, smoothing, reduction) -> None:
    x, weight, bias, labels = layer()
    gamma = torch.linspace(0, 5, 300, dtype=torch.float64) if gamma == "per row" else gamma
    for b, w in itertools.product((None, bias), (None, torch.rand(50, dtype=torch.float64))):
        options = {"label_smoothing": smoothing, "reduction": reduction}
        value = linear_focal_loss(
            x, weight, labels, gamma, bias=b, class_weight=w, chunk_bytes=1, **options
        )
        expected = focal_loss(F.linear(x, weight, b), labels, gamma, weight=w, **options)
        torch.testing.assert_close(value, expected)
        outer = torch.rand_like(value)
        inputs = (x, weight) if b is None else (x, weight, bias)
        got, wanted = (gradients(v, *inputs, outer=outer) for v in (value, expected))
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_token_weights_scale_each_token(reduction) -> None:
    x, weight, _, labels = layer()
    tokens, classes = (torch.rand(n, dtype=torch.float64) for n in (300, 50))
    tokens[::3] *= -0.5  # as the advantages of policy gradients are
    options = {"class_weight": classes, "token_weight": tokens, "reduction": reduction}
    value = linear_focal_loss(x, weight, labels, 2.0, chunk_bytes=1, **options)
    each = focal_loss(F.linear(x, weight), labels, 2.0, weight=classes, reduction="none") * tokens
    kept = labels != -100
    total = (classes[labels.where(kept, 0)] * tokens * kept).sum()
    expected = {"none": each, "sum": each.sum(), "mean": each.sum() / total}[reduction]
    torch.testing.assert_close(value, expected)
    got, wanted = (gradients(v.sum(), x, weight) for v in (value, expected))
    torch.testing.assert_close(got, wanted)


def test_ones_as_token_weights_and_any_leading_shape_change_nothing() -> None:
    x, weight, _, labels = layer()
    plain = linear_focal_loss(x, weight, labels)
    x3, labels3 = x.reshape(3, 100, 8), labels.reshape(3, 100)
    assert torch.equal(
        linear_focal_loss(x3, weight, labels3, token_weight=torch.ones(3, 100)), plain
    )
    each = linear_focal_loss(x3, weight, labels3, torch.full((3, 100), 2.0), reduction="none")
    assert each.shape == (3, 100)
    torch.testing.assert_close(each.sum() / 299, plain)


def test_frozen_inputs_get_no_gradient() -> None:
    x, weight, bias, labels = layer()
    linear_focal_loss(x.detach(), weight, labels, bias=bias.detach()).backward()
    assert weight.grad is not None
    assert x.grad is bias.grad is None
    with torch.no_grad():
        assert not linear_focal_loss(x, weight, labels).requires_grad


def test_autograd_keeps_the_buffer_and_adds_to_it() -> None:
    x, weight, _, labels = layer()
    value = linear_focal_loss(x, weight, labels)
    buffer = value.grad_fn.gradients[1].data_ptr()
    value.backward()
    assert weight.grad.data_ptr() == buffer  # no copy: memory of the largest gradient once
    once = weight.grad.clone()
    linear_focal_loss(x, weight, labels).backward()
    torch.testing.assert_close(weight.grad, 2 * once)


def test_a_second_backward_pass_is_an_error_with_a_reason() -> None:
    x, weight, _, labels = layer()
    value = linear_focal_loss(x, weight, labels)
    value.backward(retain_graph=True)
    with pytest.raises(InputError, match="one backward pass"):
        value.backward()
    each = linear_focal_loss(x, weight, labels, reduction="none")  # computes them there
    first, second = (torch.autograd.grad(each.sum(), x, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)
    with pytest.raises(InputError, match="second derivatives"):
        torch.autograd.grad(each.sum(), x, create_graph=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32_on_the_cpu(dtype) -> None:
    x, weight, _, labels = layer(dtype=dtype)
    value = linear_focal_loss(x, weight, labels, chunk_bytes=1)
    wide, wide_weight = (t.detach().float().requires_grad_() for t in (x, weight))
    expected = focal_loss(F.linear(wide, wide_weight), labels)
    torch.testing.assert_close(value, expected)
    got, wanted = gradients(value, x, weight), gradients(expected, wide, wide_weight)
    assert got[0].dtype == got[1].dtype == dtype
    torch.testing.assert_close([g.float() for g in got], list(wanted), rtol=1e-2, atol=1e-6)


def test_autocast_keeps_a_float32_weight_and_its_gradient() -> None:
    x, weight, _, labels = layer(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = linear_focal_loss(x, weight, labels)
    assert value.dtype == torch.float32
    dx, dw = gradients(value, x, weight)
    assert dx.dtype == dw.dtype == torch.float32
    narrow = x.detach().bfloat16().float().requires_grad_()
    expected = focal_loss(F.linear(narrow, weight), labels)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(dw, gradients(expected, weight)[0])


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_inside_torch_compile() -> None:
    x, weight, _, labels = layer(dtype=torch.float32)
    body = nn.Linear(8, 8)
    loss = LinearFocalLoss(3.0)

    def step(x):
        return 2 * loss(torch.tanh(body(x)), weight, labels)

    torch._dynamo.reset()
    results = []
    for function in (step, torch.compile(step, backend="aot_eager")):
        value = function(x)
        results.append((value.detach(), gradients(value, x, weight, body.weight)))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_empty_and_ignored_batches_follow_pytorch(reduction) -> None:
    x, weight, _, labels = layer()
    ignored = torch.full_like(labels, -100)
    for rows, target in ((x[:0], labels[:0]), (x, ignored)):
        value = linear_focal_loss(rows, weight, target, reduction=reduction)
        assert value.isnan() if reduction == "mean" else value == 0
        (dw,) = gradients(value, weight)
        assert (dw == 0).all()


@pytest.mark.parametrize("gamma", [0.3, 3.0])
def test_finite_where_the_label_is_certain_or_impossible(gamma) -> None:
    x, weight, _, labels = layer(dtype=torch.float32)
    value = linear_focal_loss(1e4 * x, weight, labels, gamma)
    assert value.isfinite()
    assert all(g.isfinite().all() for g in gradients(value, x, weight))


def test_module_shows_its_settings_and_passes_them_on() -> None:
    x, weight, bias, labels = layer()
    loss = LinearFocalLoss(STEPS, class_weight=torch.ones(50), reduction="sum", label_smoothing=0.1)
    expected = linear_focal_loss(
        x, weight, labels, STEPS, bias=bias, label_smoothing=0.1, reduction="sum"
    )
    torch.testing.assert_close(loss(x, weight, labels, bias=bias), expected)
    with pytest.raises(InputError, match="class weights as class_weight="):
        LinearFocalLoss(weight=torch.ones(50))
    text = repr(LinearFocalLoss(class_weight=torch.ones(50), accumulate=torch.float32))
    assert "gamma=2.0, accumulate=torch.float32, weight=(50,), reduction='mean'" in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight": nn.Linear(8, 50)}, "weight as a tensor, got Linear"),
        ({"weight": torch.zeros(50, 7)}, r"expected x \(\.\.\., 7\)"),
        ({"weight": torch.zeros(0)}, "whole weight"),
        ({"weight": torch.zeros(50, 8, dtype=torch.float16)}, "one floating-point dtype"),
        ({"x": torch.zeros(300, 8, dtype=torch.float64)}, "one floating-point dtype"),
        ({"target": torch.zeros(2, dtype=torch.long)}, "labels of shape"),
        ({"target": torch.full((300,), 50)}, "expected labels in 0..49"),
        ({"target": torch.zeros(300)}, "integer labels only"),
        ({"bias": torch.zeros(3)}, "expected bias"),
        ({"token_weight": torch.zeros(3)}, "token_weight"),
        ({"class_weight": torch.zeros(3)}, "one weight per class"),
        ({"accumulate": torch.int32}, "accumulate"),
        ({"reduction": "average"}, "reduction"),
        ({"gamma": -1.0}, "gamma"),
        ({"gamma": torch.zeros(7)}, "gamma"),
        ({"gamma": ((0.5, 1.0),)}, "the last 1"),
        ({"label_smoothing": 2.0}, "label_smoothing"),
    ],
)
def test_errors_say_what_was_expected(change, message) -> None:
    x, weight, _, labels = layer(dtype=torch.float32)
    with pytest.raises(InputError, match=message):
        linear_focal_loss(**{"x": x, "weight": weight, "target": labels, **change})


class Head(nn.Module):
    """A model that owns its output layer and computes the loss in `forward`."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(8, 8, dtype=torch.float64)
        self.out = nn.Linear(8, 50, bias=False, dtype=torch.float64)
        self.loss = LinearFocalLoss(3.0)

    def forward(self, x, labels):
        return self.loss(torch.tanh(self.body(x)), self.out.weight, labels)


def worker(rank: int, folder: str) -> None:
    from torch.distributed.fsdp import fully_shard

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    x, _, _, labels = layer()
    labels[3] = 0
    half = slice(150 * rank, 150 * rank + 150)
    replicated = nn.parallel.DistributedDataParallel(Head())
    replicated(x[half], labels[half]).backward()
    sharded = fully_shard(Head(), mesh=dist.device_mesh.init_device_mesh("cpu", (2,)))
    sharded(x[half], labels[half]).backward()
    results = {
        "ddp": replicated.module.out.weight.grad,
        "fsdp": sharded.out.weight.grad.full_tensor(),
    }
    try:
        sharded.loss(x[half], sharded.out.weight, labels[half])
    except InputError as error:
        results["outside"] = str(error)
    torch.save(results, f"{folder}/{rank}.pt")
    leave()


@pytest.mark.filterwarnings("ignore")
def test_ddp_and_fsdp_take_the_step_of_one_process(tmp_path) -> None:
    spawn(worker, args=(str(tmp_path),), nprocs=2)
    x, _, _, labels = layer()
    labels[3] = 0
    alone = Head()
    alone(x, labels).backward()
    for rank in range(2):
        got = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        torch.testing.assert_close(got["ddp"], alone.out.weight.grad)
        torch.testing.assert_close(got["fsdp"], alone.out.weight.grad)
        assert "inside the forward" in got["outside"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("gamma", [0.0, 0.4, "per row", STEPS], ids=str)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cuda_equals_float64(gamma, dtype, smoothing) -> None:
    x, weight, bias, labels = layer(n=700, d=64, v=5000, dtype=dtype, device="cuda")
    gamma = torch.linspace(0, 5, 700, device="cuda") if gamma == "per row" else gamma
    wide = [t.detach().double().requires_grad_() for t in (x, weight, bias)]
    for reduction, accumulate in (("mean", None), ("mean", torch.float32), ("none", None)):
        options = {"label_smoothing": smoothing, "reduction": reduction}
        value = linear_focal_loss(
            *(x, weight, labels, gamma), bias=bias, accumulate=accumulate, chunk_bytes=1, **options
        )
        expected = focal_loss(F.linear(*wide), labels, gamma, **options)
        half = dtype != torch.float32
        torch.testing.assert_close(value.double(), expected, rtol=1e-2 if half else 1e-4, atol=1e-2)
        # float16 needs a loss scale, as ever.
        outer = (torch.rand_like(value) + 0.5) * (1024 if dtype == torch.float16 else 1)
        got = gradients(value, x, weight, bias, outer=outer)
        for a, b in zip(got, gradients(expected, *wide, outer=outer.double())):
            assert a.dtype == dtype
            error = torch.linalg.norm(a.double() - b) / torch.linalg.norm(b)
            # TF32 is off by default: float32 products are exact to about 1e-6.
            assert error < (2e-2 if half else 1e-4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_memory_stays_near_the_gradients_and_never_waits() -> None:
    x, weight, _, labels = layer(n=4096, d=256, v=50_000, dtype=torch.bfloat16, device="cuda")
    for _ in range(2):
        x.grad = weight.grad = None
        linear_focal_loss(x, weight, labels, chunk_bytes=2**24).backward()
    x.grad = weight.grad = None
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with waiting_raises():
        (3 * linear_focal_loss(x, weight, labels, chunk_bytes=2**24)).backward()
    above = torch.cuda.max_memory_allocated() - before
    gradients_alone = 2 * (x.numel() + weight.numel())
    assert above < gradients_alone + 1.3 * 2**24
    reference = focal_loss(F.linear(x.detach(), weight), labels)
    torch.testing.assert_close(
        weight.grad, 3 * torch.autograd.grad(reference, weight)[0], rtol=5e-2, atol=1e-5
    )
