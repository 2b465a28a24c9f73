"""The fused kernel against the reference: on a GPU, or interpreted on the CPU where triton is."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from unittest.mock import patch

import pytest
import torch

from losses.conftest import waiting_raises

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def compare(device: str, shapes: list[tuple[int, int]]) -> None:
    from focalcal.losses._base import Problem
    from focalcal.losses._triton import fused_focal

    torch.manual_seed(0)
    for n, n_classes in shapes:
        weight = torch.rand(n_classes, device=device)
        per_row = torch.rand(n, device=device) * 5
        gammas = (0.0, 0.05, 3.0, -0.99, per_row, ((0.2, 5.0), (0.5, 3.0), (1.0, 2.0)))
        plain = itertools.product(gammas, (0.0,), ("none", "mean", "sum"), (None, weight))
        smooth = itertools.product((0.0, 3.0, *gammas[4:]), (0.2,), ("none", "mean"), (weight,))
        for gamma, smoothing, reduction, w in (*plain, *smooth):
            dtype = (torch.float32, torch.bfloat16, torch.float16)[torch.randint(3, ()).item()]
            labels = torch.randint(n_classes, (n,), device=device)
            labels[1] = -100
            start = 5 * torch.randn(n, n_classes, device=device)
            start[0] = 0
            start[0, labels[0]] = 40.0
            start[2, 0], start[2, 1], labels[2] = -1e4, 1e4, 0
            grad = torch.rand(n, device=device)
            outer = grad if reduction == "none" else grad[0]
            logits = start.to(dtype).requires_grad_()
            options = {"weight": w, "smoothing": smoothing, "reduction": reduction}
            # The first launch of a kernel compiles it, the second one is direct.
            for _ in range(2 if device == "cuda" else 1):
                value = fused_focal(logits, labels, gamma, **options)
                (got,) = torch.autograd.grad(value, logits, outer)
            wide = logits.detach().float().requires_grad_()
            problem = Problem(wide, labels, None, w, -100, smoothing)
            # The kernel's cross-entropy is that of log_softmax: γ < 0 is not sent to it.
            with patch("focalcal.losses._base.diverges", lambda gamma: False):
                expected = problem.focal(gamma, reduction)
            (wanted,) = torch.autograd.grad(expected, wide, outer)
            torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-5)
            assert got.dtype == dtype
            # At γ near −1 the slope blows up ce's own rounding where p is near 1.
            steep = isinstance(gamma, float) and gamma < 0
            tolerance = (1e-3 if steep else 1e-4) if dtype == torch.float32 else 1e-2
            atol = tolerance * float(wanted.abs().max())
            torch.testing.assert_close(got.float(), wanted, rtol=tolerance, atol=atol)
            assert (got[1] == 0).all()


def dispatch() -> None:
    """The losses through the interpreted kernels: as if the CPU were a GPU."""
    from focalcal.losses import LinearFocalLoss, make_loss

    torch.manual_seed(0)
    x, weight = torch.randn(200, 6), torch.randn(40, 6, requires_grad=True)
    labels = torch.randint(40, (200,))
    labels[7] = -100
    fuse = patch("focalcal.losses.focal.can_fuse", lambda *_: True)
    fuse_linear = patch("focalcal.losses.linear.can_fuse", lambda *_: True)
    for name, smoothing in itertools.product(("fl-2", "fla-53"), (0.0, 0.1)):
        plain = make_loss(name, label_smoothing=smoothing)
        linear = LinearFocalLoss(plain.gamma, label_smoothing=smoothing)
        results = []
        for kind in ("plain", "fused", "linear"):
            with fuse, fuse_linear:
                if kind == "linear":
                    value = linear(x, weight, labels)
                elif kind == "fused":
                    value = plain(x @ weight.T, labels)
            if kind == "plain":
                value = plain(x @ weight.T, labels)
            results.append((value.detach(), *torch.autograd.grad(value, weight)))
        for other in results[1:]:
            torch.testing.assert_close(other, results[0], rtol=1e-4, atol=1e-6)


SCRIPT = (
    "from losses.test_triton import compare, dispatch; dispatch(); "
    "compare('cpu', [(5, 10), (3, 1000), (3, 9000)])"
)


def test_interpreted_kernel_equals_the_reference() -> None:
    pytest.importorskip("triton")
    path = os.pathsep.join([os.path.dirname(os.path.dirname(__file__)), *sys.path])  # noqa: PTH120
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": path}
    subprocess.run([sys.executable, "-c", SCRIPT], check=True, env=environment, timeout=300)


@pytest.mark.gpu
@needs_gpu
def test_kernel_equals_the_reference() -> None:
    compare("cuda", [(5, 10), (300, 1000), (3, 50_257)])


def step(logits, labels, gamma=2.0, **settings):
    """Value and gradient of the second of two calls, on the CPU: the first may compile."""
    from focalcal.losses import focal_loss

    for _ in range(2):
        z = logits.detach().requires_grad_()
        value = focal_loss(z, labels, gamma, **settings)
        value.backward(torch.linspace(0.5, 2, len(z), device=z.device) if value.ndim else None)
    return value.detach().cpu(), z.grad.cpu()


def rows(n: int = 70, n_classes: int = 12):
    torch.manual_seed(0)
    return 3 * torch.randn(n, n_classes, device="cuda"), torch.randint(n_classes, (n,)).cuda()


def shifted(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers, contiguous, at an address that no vector load may use."""
    place = torch.empty(tensor.numel() + 1, dtype=tensor.dtype, device=tensor.device)[1:]
    return place.view(tensor.shape).copy_(tensor)


def strided(tensor: torch.Tensor) -> torch.Tensor:
    return torch.stack([tensor, tensor], -1)[..., 0]


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("place", [lambda t: t, shifted, strided])
def test_every_layout_and_option_equals_the_cpu(place, reduction) -> None:
    logits, labels = rows()
    labels[5] = 3
    weight, gammas = torch.rand(12, device="cuda"), 4 * torch.rand(70, device="cuda")
    for ignore, w, gamma in itertools.product((-100, 3, 2**40), (None, weight), (2.0, gammas)):
        options = {"ignore_index": ignore, "reduction": reduction}
        per_row = isinstance(gamma, torch.Tensor)
        got = step(
            place(logits),
            place(labels),
            place(gamma) if per_row else gamma,
            weight=None if w is None else place(w),
            **options,
        )
        wanted = step(
            logits.cpu(),
            labels.cpu(),
            gamma.cpu() if per_row else gamma,
            weight=None if w is None else w.cpu(),
            **options,
        )
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.gpu
@needs_gpu
def test_autocast_and_half_precision() -> None:
    logits, labels = rows()
    for dtype in (torch.float16, torch.bfloat16):
        wanted = step(logits.to(dtype).float(), labels)
        with torch.autocast("cuda", dtype=dtype):
            value, gradient = step(logits.to(dtype), labels)
        assert value.dtype == torch.float32
        assert gradient.dtype == dtype
        torch.testing.assert_close((value, gradient.float()), wanted, rtol=1e-2, atol=1e-4)


@pytest.mark.gpu
@needs_gpu
def test_backward_twice_and_a_gradient_that_is_a_view() -> None:
    from focalcal.losses import focal_loss

    logits, labels = rows()
    logits.requires_grad_()
    value = focal_loss(logits, labels, 2.0)
    first, second = (torch.autograd.grad(value, logits, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)
    each = focal_loss(logits, labels, 2.0, reduction="none")
    (mean,) = torch.autograd.grad(each.mean(), logits)  # an expanded scalar arrives
    torch.testing.assert_close(mean, first)


@pytest.mark.gpu
@needs_gpu
def test_empty_batches_and_ignored_ones_follow_pytorch() -> None:
    from focalcal.losses import focal_loss

    logits, labels = rows()
    assert focal_loss(logits[:0], labels[:0], 2.0).isnan()
    assert focal_loss(logits[:0], labels[:0], 2.0, reduction="sum") == 0
    ignored = torch.full_like(labels, -100)
    assert focal_loss(logits, ignored, 2.0).isnan()
    value, gradient = step(logits, ignored, reduction="sum")
    assert value == 0
    assert (gradient == 0).all()


@pytest.mark.gpu
@needs_gpu
def test_labels_on_another_device_are_an_error() -> None:
    from focalcal.losses import focal_loss

    logits, labels = rows()
    with pytest.raises(RuntimeError, match="device"):
        focal_loss(logits, labels.cpu(), 2.0)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("most", [2, 2**17])
def test_many_sums_and_many_steps_of_the_reduction(most, monkeypatch) -> None:
    from focalcal.losses import _kernels

    monkeypatch.setattr(_kernels, "MOST_SUMS", most)
    logits, labels = rows(100_000, 600)
    weight = torch.rand(600, device="cuda")
    for reduction in ("mean", "sum"):
        got = step(logits, labels, weight=weight, reduction=reduction)
        wanted = step(logits.double(), labels, weight=weight.double(), reduction=reduction)
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-6, check_dtype=False)


@pytest.mark.gpu
@needs_gpu
def test_a_plain_call_never_waits_and_launches_four_kernels() -> None:
    from focalcal.losses import focal_loss

    logits, labels = rows()
    step(logits, labels)
    logits.requires_grad_()
    with waiting_raises():
        focal_loss(logits, labels, 2.0).backward()
    logits.grad = None
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, acc_events=True) as profile:
        focal_loss(logits, labels, 2.0).backward()
    kernels = [e.name for e in profile.events() if e.device_type.name == "CUDA"]
    assert 0 < len(kernels) <= 4, kernels


@pytest.mark.gpu
@needs_gpu
def test_other_streams_and_captured_graphs_see_their_own_launches() -> None:
    from focalcal.losses import focal_loss

    logits, labels = rows()
    wanted = step(logits, labels)
    z = logits.clone().requires_grad_()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            z.grad = None
            focal_loss(z, labels, 2.0).backward()
    torch.cuda.current_stream().wait_stream(stream)
    torch.testing.assert_close(z.grad.cpu(), wanted[1])
    graph = torch.cuda.CUDAGraph()
    z.grad = None
    with torch.cuda.graph(graph):
        value = focal_loss(z, labels, 2.0)
        value.backward()
    with torch.no_grad():
        z.mul_(0.5)
    graph.replay()
    torch.testing.assert_close((value.detach().cpu(), z.grad.cpu()), step(0.5 * logits, labels))


@pytest.mark.gpu
@needs_gpu
def test_double_backward_falls_back_to_the_reference() -> None:
    from focalcal.losses import focal_loss

    torch.manual_seed(0)
    logits = torch.randn(16, 10, device="cuda", requires_grad=True)
    labels = torch.randint(10, (16,), device="cuda")
    second = []
    for z in (logits, logits.detach().double().requires_grad_()):
        (first,) = torch.autograd.grad(focal_loss(z, labels, 0.5), z, create_graph=True)
        second.append(torch.autograd.grad(first.square().sum(), z)[0])
    torch.testing.assert_close(second[0].double(), second[1], rtol=1e-3, atol=1e-7)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("name", ["fl-3", "fla-53", "adafocal", "fl-0.5"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_losses_on_the_gpu_equal_the_cpu(name, reduction) -> None:
    from focalcal.losses import make_loss

    torch.manual_seed(0)
    logits, labels = torch.randn(50, 10, requires_grad=True), torch.randint(10, (50,))
    labels[3] = -100
    weight = torch.rand(10)
    results = []
    for device in ("cpu", "cuda"):
        loss = make_loss(name, reduction=reduction, weight=weight).to(device)
        z = logits.detach().to(device).requires_grad_()
        value = loss(z, labels.to(device))
        value.sum().backward()
        results.append((value.detach().cpu(), z.grad.cpu()))
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-6)


@pytest.mark.gpu
@needs_gpu
def test_forward_keeps_nothing_of_the_logits_size() -> None:
    from focalcal.losses import focal_loss

    logits = torch.randn(4096, 1000, device="cuda", requires_grad=True)
    labels = torch.randint(1000, (4096,), device="cuda")
    focal_loss(logits, labels, 2.0).backward()
    logits.grad = None
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    value = focal_loss(logits, labels, 2.0)
    assert torch.cuda.max_memory_allocated() - before < 0.05 * logits.numel() * 4
    value.backward()


@pytest.mark.gpu
@needs_gpu
def test_a_label_out_of_range_gives_nan_without_killing_the_device() -> None:
    from focalcal.losses import focal_loss

    value = focal_loss(torch.zeros(2, 3, device="cuda"), torch.tensor([0, 7], device="cuda"), 2.0)
    assert value.isnan()
