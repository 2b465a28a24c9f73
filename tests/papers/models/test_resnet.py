"""Residual networks: published counts, an independent formula, and the published weights."""

import os

import numpy as np
import pytest
import torch

from focalcal.errors import InputError
from focalcal_papers.data import IMAGENET_MEAN, IMAGENET_STD, load, normalise
from focalcal_papers.models import load_weights, make_model, parameter_count

FILES = {
    "resnet20": "resnet20-12fca82f.th",
    "resnet32": "resnet32-d509ac18.th",
    "resnet44": "resnet44-014dd654.th",
    "resnet56": "resnet56-4bfd9763.th",
}
WRONG = {"resnet20": 827, "resnet32": 737, "resnet44": 690, "resnet56": 661}


@pytest.mark.parametrize(
    ("name", "classes", "published"),
    [
        ("resnet18", 10, 11_173_962),
        ("resnet18", 100, 11_220_132),
        ("resnet50", 10, 23_520_842),
        ("resnet20", 10, 269_722),
        ("resnet32", 10, 464_154),
        ("resnet44", 10, 658_586),
        ("resnet56", 10, 853_018),
    ],
)
def test_published_counts(name, classes, published):
    assert parameter_count(make_model(name, classes)) == published


def convolution_and_norm(c_in: int, c_out: int, size: int) -> int:
    return c_in * c_out * size**2 + 2 * c_out


def counted_by_hand(blocks, channels, stem, expansion, n_classes=10) -> int:
    """Weights layer by layer from the papers' tables, without building anything."""
    total, c_in = convolution_and_norm(3, stem, 3), stem
    for n_blocks, width in zip(blocks, channels):
        for i in range(n_blocks):
            c_out = width * expansion
            if expansion == 1:
                total += convolution_and_norm(c_in, width, 3) + convolution_and_norm(
                    width, width, 3
                )
            else:
                total += convolution_and_norm(c_in, width, 1) + convolution_and_norm(
                    width, width, 3
                )
                total += convolution_and_norm(width, c_out, 1)
            if i == 0 and c_in != c_out:
                total += convolution_and_norm(c_in, c_out, 1)
            c_in = c_out
    return total + (c_in + 1) * n_classes


@pytest.mark.parametrize(
    ("name", "settings", "shape"),
    [
        ("resnet18", {}, ((2, 2, 2, 2), (64, 128, 256, 512), 64, 1)),
        ("resnet18", {"width": 2}, ((2, 2, 2, 2), (128, 256, 512, 1024), 128, 1)),
        ("resnet50", {}, ((3, 4, 6, 3), (64, 128, 256, 512), 64, 4)),
        ("resnet110", {}, ((3, 4, 26, 3), (64, 128, 256, 512), 64, 4)),
        ("wrn26_10", {}, ((4, 4, 4), (160, 320, 640), 16, 1)),
    ],
)
def test_counts_by_hand(name, settings, shape):
    with torch.device("meta"):
        model = make_model(name, 10, **settings)
    assert parameter_count(model) == counted_by_hand(*shape)


def test_wrn_counts_its_layers():
    with torch.device("meta"):
        model = make_model("wrn26_10", 10)
    convolutions = [m for m in model.modules() if isinstance(m, torch.nn.Conv2d)]
    main = [m for m in convolutions if m.kernel_size == (3, 3)]
    assert len(main) + 1 == 26
    assert len(convolutions) + 1 == 29


def test_bad_settings():
    with pytest.raises(InputError, match="6n"):
        make_model("wrn26_10", 10, depth=28)
    with pytest.raises(InputError, match="width multiplier"):
        make_model("resnet18", 10, width=0)
    from focalcal_papers.models.resnet import BasicBlock, ResNet

    with pytest.raises(InputError, match="expected a shortcut"):
        ResNet(BasicBlock, [1], [4], 10, shortcut="none")


@pytest.mark.parametrize("name", FILES)
def test_published_weights_give_the_published_logits(name, shared_data, real_cifar10):
    """On 64 images; the logits were computed by their author's code, not by this one."""
    stored = np.load(shared_data / "logits" / "cifar10_test_logits_4resnets_akamaster.npz")
    # The published logits over all images carry the published error.
    assert (stored[name].argmax(1) != stored["labels"]).sum() == WRONG[name]
    images = np.fromfile(
        real_cifar10 / "cifar-10-batches-bin" / "test_batch.bin", np.uint8, count=64 * 3073
    ).reshape(64, 3073)[:, 1:]
    logits = _logits(_pretrained(name, shared_data), torch.tensor(images).view(-1, 3, 32, 32))
    torch.testing.assert_close(logits, torch.from_numpy(stored[name][:64]), atol=2e-3, rtol=1e-3)


ALL = pytest.mark.skipif(
    not os.environ.get("FOCALCAL_ALL_TESTS"),
    reason="a minute each on one core; set FOCALCAL_ALL_TESTS=1",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["resnet20", *(pytest.param(f"resnet{d}", marks=ALL) for d in (32, 44, 56))]
)
def test_published_weights_give_the_published_error(name, shared_data, real_cifar10):
    data = load("cifar10", real_cifar10)
    logits = _logits(_pretrained(name, shared_data), data.test.inputs)
    assert (logits.argmax(1) != data.test.labels).sum() == WRONG[name]


def _pretrained(name, shared_data):
    return load_weights(make_model(name, 10), shared_data / "weights" / FILES[name]).eval()


@torch.inference_mode()
def _logits(model, images):
    mean, std = torch.tensor(IMAGENET_MEAN), torch.tensor(IMAGENET_STD)
    return torch.cat([model(normalise(part, mean, std)) for part in images.split(250)])
