"""What every image network must allow: shapes, second derivatives, torch.func, channels last."""

import pytest
import torch
from torch.func import functional_call, grad, vmap

from focalcal_papers.models import MODELS, make_model

# Narrow versions where a setting allows it: the same code, less waiting.
SMALL = {
    "resnet18": {"width": 1 / 16},
    "resnet50": {"width": 1 / 16},
    "resnet110": {"width": 1 / 64},
    "resnet20": {},
    "wrn26_10": {"depth": 8, "width": 1},
    "densenet121": {"growth": 4, "blocks": (2, 2, 2, 2)},
    "mobilenet_v2": {},
    "vgg19": {},
    "vit": {"depth": 2, "width": 24, "heads": 3},
    "mlp": {"hidden": 8},
    "logistic": {},
}


@pytest.fixture(params=SMALL)
def model(request):
    torch.manual_seed(0)
    return make_model(request.param, 7, **SMALL[request.param]).eval()


@pytest.fixture
def images():
    return torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def loss_of(model, images, labels):
    return torch.nn.functional.cross_entropy(model(images), labels)


def test_all_image_networks_are_covered():
    same_class = {"resnet32", "resnet44", "resnet56"}
    text = {"text_cnn", "tree_lstm"}
    assert set(MODELS) == set(SMALL) | same_class | text


def test_logits_are_per_sample(model, images):
    logits = model(images)
    assert logits.shape == (3, 7)
    assert torch.isfinite(logits).all()
    # In evaluation one image does not see the others.
    torch.testing.assert_close(model(images[1:2]), logits[1:2], atol=1e-4, rtol=1e-4)


def test_layout_in_memory_does_not_matter(model, images):
    expected = model(images)
    last = torch.channels_last
    actual = model.to(memory_format=last)(images.contiguous(memory_format=last))
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)


def test_double_backward(model, images):
    parameters = list(model.parameters())
    loss = loss_of(model, images, torch.tensor([0, 1, 2]))
    gradient = torch.autograd.grad(loss, parameters, create_graph=True)
    product = torch.autograd.grad(sum((g * g.detach()).sum() for g in gradient), parameters)
    assert all(torch.isfinite(p).all() for p in product)
    assert any(p.abs().max() > 0 for p in product)


def test_per_sample_gradients_with_torch_func(model, images):
    labels = torch.tensor([0, 1, 2])
    parameters = {k: v.detach() for k, v in model.named_parameters()}
    buffers = dict(model.named_buffers())

    def loss(parameters, image, label):
        logits = functional_call(model, (parameters, buffers), (image[None],))
        return torch.nn.functional.cross_entropy(logits, label[None])

    each = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, images, labels)
    mean = torch.autograd.grad(loss_of(model, images, labels), list(model.parameters()))
    for name, whole in zip(parameters, mean):
        torch.testing.assert_close(each[name].mean(0), whole, atol=1e-4, rtol=1e-3)


def test_no_operation_in_place(model, images):
    """A forward pass leaves its input alone, and modules keep ReLU out of place."""
    before = images.clone()
    model(images)
    assert torch.equal(images, before)
    assert not any(getattr(m, "inplace", False) for m in model.modules())


@pytest.mark.parametrize(
    "name", ["resnet18", "resnet20", "densenet121", "mobilenet_v2", "vit", "mlp"]
)
def test_other_image_sizes(name):
    settings = SMALL[name] | {"input_shape": (1, 28, 28)}
    assert make_model(name, 10, **settings)(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_forward_and_backward_in_a_cuda_graph(model, images):
    model = model.cuda().train().to(memory_format=torch.channels_last)
    images = images.cuda().contiguous(memory_format=torch.channels_last)
    labels = torch.tensor([0, 1, 2], device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            model.zero_grad()
            loss_of(model, images, labels).backward()
    torch.cuda.current_stream().wait_stream(stream)
    model.zero_grad()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = loss_of(model, images, labels)
        loss.backward()
    graph.replay()
    assert torch.isfinite(loss)
