"""Networks by name: counts against published ones or an independent formula."""

import doctest

import pytest
import torch

import focalcal_papers.models.registry
import focalcal_papers.models.simple
from focalcal.errors import InputError
from focalcal_papers.models import MODELS, make_model, model_settings, parameter_count


@pytest.mark.parametrize("module", [focalcal_papers.models.registry, focalcal_papers.models.simple])
def test_examples(module):
    result = doctest.testmod(module)
    assert result.attempted
    assert result.failed == 0


def test_same_seed_same_weights():
    states = []
    for _ in range(2):
        torch.manual_seed(5)
        states.append(make_model("mlp", 10).state_dict())
    assert all(torch.equal(states[0][k], states[1][k]) for k in states[0])


def test_bad_requests_say_what_was_expected():
    with pytest.raises(InputError, match=r"expected a model of .*resnet18.*; got 'resnet19'"):
        make_model("resnet19", 10)
    with pytest.raises(InputError, match="expected a model of"):
        model_settings("resnet19")
    with pytest.raises(InputError, match="at least 2 classes, got 1"):
        make_model("mlp", 1)
    with pytest.raises(InputError, match=r"settings of mlp among \['hidden', .*got \['width'\]"):
        make_model("mlp", 10, width=3)
    with pytest.raises(InputError, match=r"got \['depth'\]"):
        make_model("resnet20", 10, depth=32)


def test_every_model_lists_its_settings():
    for name in MODELS:
        assert model_settings(name), name


def test_mlp_counts():
    # 2 layers on 3·32·32 inputs: (3072 + 1)·100 + (100 + 1)·10.
    assert parameter_count(make_model("mlp", 10)) == 3073 * 100 + 101 * 10
    assert parameter_count(make_model("mlp", 10, layers=1)) == 30730
    assert parameter_count(make_model("logistic", 10)) == 30730
    assert parameter_count(make_model("logistic", 2, input_shape=(2,), bias=False)) == 4
    with pytest.raises(InputError, match="at least 1 layer, got 0"):
        make_model("mlp", 10, layers=0)
