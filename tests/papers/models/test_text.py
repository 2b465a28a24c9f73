"""The text network of 20 Newsgroups."""

import pytest
import torch

from focalcal.errors import InputError
from focalcal_papers.models import make_model, parameter_count


def test_count_by_hand_and_frozen_vectors():
    model = make_model("text_cnn", 20, vectors=torch.randn(50, 100))
    first = 100 * 5 * 128 + 128
    others = 2 * (128 * 5 * 128 + 128)
    assert parameter_count(model) == first + others + 129 * 128 + 129 * 20
    assert not model.embedding.weight.requires_grad
    free = make_model("text_cnn", 20, vectors=torch.randn(50, 100), freeze=False)
    assert parameter_count(free) == parameter_count(model) + 5000


def test_logits_and_word_order():
    torch.manual_seed(0)
    model = make_model("text_cnn", 20, vocabulary_size=50, dimension=16, channels=8).eval()
    words = torch.randint(0, 50, (3, 1000))
    logits = model(words)
    assert logits.shape == (3, 20)
    assert not torch.allclose(model(words.flip(1)), logits)
    assert model(words[:, :149]).shape == (3, 20)


def test_double_backward():
    torch.manual_seed(0)
    model = make_model("text_cnn", 4, vocabulary_size=50, dimension=8, channels=8).eval()
    loss = model(torch.randint(0, 50, (2, 150))).logsumexp(1).sum()
    parameters = list(model.parameters())
    gradient = torch.autograd.grad(loss, parameters, create_graph=True)
    second = torch.autograd.grad(sum((g * g).sum() for g in gradient), parameters)
    assert all(torch.isfinite(s).all() for s in second)


def test_needs_vectors_or_a_size():
    with pytest.raises(InputError, match="vectors or a vocabulary_size, got neither"):
        make_model("text_cnn", 20)
    with pytest.raises(InputError, match=r"word vectors \(words, D\), got \(3,\)"):
        make_model("text_cnn", 20, vectors=torch.zeros(3))
