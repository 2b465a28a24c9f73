"""DenseNet-121, MobileNet-V2, VGG-19: the counts of their usual CIFAR implementations."""

import pytest
import torch

from focalcal.errors import InputError
from focalcal_papers.models import make_model, parameter_count


@pytest.mark.parametrize(
    ("name", "published"),
    [("densenet121", 6_956_298), ("mobilenet_v2", 2_296_922), ("vgg19", 20_040_522)],
)
def test_published_counts(name, published):
    with torch.device("meta"):
        assert parameter_count(make_model(name, 10)) == published


def test_densenet_has_its_121_layers():
    with torch.device("meta"):
        model = make_model("densenet121", 10)
    layers = [m for m in model.modules() if isinstance(m, torch.nn.Conv2d | torch.nn.Linear)]
    assert len(layers) == 121


def test_vgg_has_its_convolutions_and_refuses_small_images():
    with torch.device("meta"):
        model = make_model("vgg19", 10)
    # 16 convolutions; the original's three linear layers are one here.
    assert sum(isinstance(m, torch.nn.Conv2d) for m in model.modules()) == 16
    with pytest.raises(InputError, match=r"at least 32×32 for VGG-19, got \(1, 28, 28\)"):
        make_model("vgg19", 10, input_shape=(1, 28, 28))
