"""Appendix G's claims, as its figure and the mathematics have them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

PATH = Path(__file__).resolve().parents[2] / "examples" / "appendix_g.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("appendix_g", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules["appendix_g"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["appendix_g"]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_same_boundary_smaller_weights_humbler_mistakes(example, seed) -> None:
    points, labels = example.square(n_per_cluster=250, seed=seed)
    ce, focal = (example.train(points, labels, gamma) for gamma in (0.0, 1.0))
    assert abs(ce.angle - focal.angle) < 1.0
    assert ce.accuracy == focal.accuracy == pytest.approx(0.9, abs=0.005)
    assert focal.norm < 0.9 * ce.norm
    assert focal.mean_logit_size < 0.9 * ce.mean_logit_size
    assert focal.confidence_when_wrong < ce.confidence_when_wrong - 0.03


def test_training_ended_at_a_stationary_point(example) -> None:
    points, labels = example.square(n_per_cluster=100)
    fit = example.train(points, labels, 1.0)
    weights = fit.weights.clone().requires_grad_()
    score = points @ weights
    p = torch.sigmoid(torch.where(labels == 1, score, -score))
    ((1 - p) * -p.log()).mean().backward()  # the definition, not the library
    assert weights.grad.norm() < 1e-4


def test_it_prints_both_rows(example, capsys) -> None:
    example.main()
    out = capsys.readouterr().out
    assert "cross-entropy" in out
    assert "focal, γ = 1" in out
