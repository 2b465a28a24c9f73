"""A published ResNet-20 on real CIFAR-10 images, against torch's plain double backward."""

import pytest
import torch
import torch.nn.functional as F

from focalcal.curvature import HessianOperator
from focalcal_papers.data import IMAGENET_MEAN, IMAGENET_STD, load, normalise
from focalcal_papers.models import load_weights, make_model


def test_product_equals_plain_double_backward(shared_data, real_cifar10):
    path = shared_data / "weights" / "resnet20-12fca82f.th"
    model = load_weights(make_model("resnet20", 10), path).eval()
    test = load("cifar10", real_cifar10).test
    x = normalise(test.inputs[:16], torch.tensor(IMAGENET_MEAN), torch.tensor(IMAGENET_STD))
    y = test.labels[:16]
    operator = HessianOperator(model, "fl-3", [(x[:9], y[:9]), (x[9:], y[9:])])
    v = torch.randn(operator.shape[0], generator=torch.Generator().manual_seed(0))

    log_p = F.log_softmax(model(x), 1).gather(1, y[:, None])
    value = (-((1 - log_p.exp()) ** 3) * log_p).mean()
    thetas = list(model.parameters())
    gradients = torch.autograd.grad(value, thetas, create_graph=True)
    dot = sum((g * v[s].view_as(g)).sum() for g, s in zip(gradients, operator.blocks.values()))
    exact = torch.cat([g.reshape(-1) for g in torch.autograd.grad(dot, thetas)]).double()
    assert ((operator @ v) - exact).norm() < 1e-4 * exact.norm()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_gpu_equals_cpu():
    torch.manual_seed(0)
    model = make_model("resnet20", 10)
    x, y = torch.randn(8, 3, 32, 32), torch.randint(0, 10, (8,))
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        v = None
        products = []
        for device in ("cpu", "cuda"):
            operator = HessianOperator(model.to(device), "fl-3", [(x, y)])
            v = torch.randn(operator.shape[0], 3) if v is None else v
            products.append((operator @ v).cpu())
    finally:
        torch.backends.cudnn.allow_tf32 = before
    assert (products[0] - products[1]).norm() < 1e-3 * products[0].norm()
