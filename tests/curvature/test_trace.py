"""Trace estimates against matrices whose trace is known; the algorithms never see a network."""

import numpy as np
import pytest
import torch

from focalcal.curvature import HessianOperator, block_traces, group_blocks, hessian_trace
from focalcal.errors import InputError


@pytest.mark.parametrize(
    ("matrix", "method", "rtol"),
    [
        ("mlp", "hutchinson", 0.1),
        ("mlp", "hutch++", 0.1),
        ("conv", "hutchinson", 0.1),
        ("conv", "hutch++", 0.05),
        ("flat", "hutchinson", 0.03),
        ("outliers", "hutchinson", 0.1),
    ],
)
def test_the_stated_interval_covers_the_trace(matrix, method, rtol, request, symmetric):
    # 400 seeded runs of a 95 % interval: 92–98 % is ±2.75 standard deviations of the count.
    if matrix in ("mlp", "conv"):
        a = request.getfixturevalue(matrix).hessian()
    else:
        low = torch.linspace(-0.2, 1, 60)
        a = symmetric(low if matrix == "flat" else [50.0, 20.0, 10.0, *low.tolist()])
    exact = a.trace().item()
    covered = probes = 0
    for seed in range(400):
        g = torch.Generator().manual_seed(seed)
        estimate = hessian_trace(a, method, rtol=rtol, max_probes=400, generator=g)
        low, high = estimate.interval()
        covered += low <= exact <= high
        probes += estimate.probes
        assert estimate.converged or estimate.probes == 400
    assert 0.92 <= covered / 400 <= 0.98, (covered / 400, probes / 400)


def test_stops_when_its_standard_error_is_small_enough(symmetric):
    a = symmetric(torch.linspace(0.5, 2, 50))
    seen = []
    estimate = hessian_trace(a, rtol=0.01, progress=seen.append)
    assert estimate.converged
    assert estimate.standard_error <= 0.01 * estimate.value
    assert seen[-1] == 1.0
    assert all(0 < fraction < 1 for fraction in seen[:-1])
    hard = hessian_trace(a, rtol=1e-9, max_probes=50)
    assert not hard.converged
    assert hard.probes == 50


def test_the_same_generator_gives_the_same_estimate(symmetric):
    a = symmetric(torch.linspace(0.5, 2, 50))
    assert hessian_trace(a) == hessian_trace(a)
    g = torch.Generator().manual_seed(1)
    assert hessian_trace(a, generator=g) != hessian_trace(a)


def test_chunks_of_probes_do_not_change_the_estimate(monkeypatch, symmetric):
    from focalcal.curvature import trace

    a = symmetric(torch.linspace(0.5, 2, 50))
    whole = hessian_trace(a)
    monkeypatch.setattr(trace, "BLOCK_NUMBERS", 3 * 50)
    assert hessian_trace(a).value == pytest.approx(whole.value, rel=1e-12)


def test_hutch_pp_is_exact_on_low_rank_and_spends_less_on_outliers(symmetric):
    low_rank = symmetric([9.0, -4.0, 1.0] + [0.0] * 40)
    estimate = hessian_trace(low_rank, "hutch++")
    assert estimate.value == pytest.approx(6.0, abs=1e-9)
    assert estimate.standard_error < 1e-9
    outliers = symmetric([100.0, 50.0, 30.0] + [0.1] * 100)
    spent = {m: hessian_trace(outliers, m, rtol=0.01).probes for m in ("hutchinson", "hutch++")}
    assert spent["hutch++"] < spent["hutchinson"] / 4


def test_interval_uses_students_quantile(symmetric):
    estimate = hessian_trace(symmetric(torch.linspace(0, 1, 9)), max_probes=5)
    low, high = estimate.interval()
    assert (high - low) / 2 == pytest.approx(2.7764451 * estimate.standard_error)
    assert estimate.interval(0.5)[0] > low


def test_blocks_share_probes_and_each_covers_its_own_trace(mlp):
    operator = HessianOperator(mlp.model, torch.nn.functional.cross_entropy, [(mlp.x, mlp.y)])
    exact = mlp.hessian()
    layers = group_blocks(operator.blocks)
    assert list(layers) == ["0", "2"]
    for blocks in (operator.blocks, layers):
        estimates = block_traces(operator, None if blocks is operator.blocks else blocks, rtol=0.05)
        for name, estimate in estimates.items():
            s = blocks[name]
            true = exact[s, s].trace().item()
            assert abs(estimate.value - true) < 4 * estimate.standard_error
            assert estimate.converged
    total = sum(e.value for e in estimates.values())
    assert total == pytest.approx(exact.trace().item(), rel=0.2)


def test_group_blocks_by_depth():
    blocks = {"a.x.weight": slice(0, 2), "a.y.weight": slice(2, 3), "b": slice(3, 4)}
    assert group_blocks(blocks, 1) == {"a": slice(0, 3), "b": slice(3, 4)}
    assert list(group_blocks(blocks)) == ["a.x", "a.y", "b"]
    with pytest.raises(InputError, match="adjacent parameters"):
        group_blocks({"a.w": slice(0, 1), "b.w": slice(1, 2), "a.b": slice(2, 3)})


def test_refuses_bad_settings():
    a = torch.eye(3)
    with pytest.raises(InputError, match="square operator"):
        hessian_trace(torch.ones(3, 2))
    for matrix in (torch.eye(3).long(), np.eye(3)):  # of integers: eigenvalues of 0
        with pytest.raises(InputError, match="floating-point tensors, got"):
            hessian_trace(matrix)
    with pytest.raises(InputError, match="'hutchinson' or"):
        hessian_trace(a, "exact")
    with pytest.raises(InputError, match="rtol > 0"):
        hessian_trace(a, rtol=0)
    with pytest.raises(InputError, match="max_probes"):
        hessian_trace(a, max_probes=2)
    with pytest.raises(InputError, match="expected blocks"):
        block_traces(a)
    with pytest.raises(InputError, match="level between"):
        hessian_trace(a).interval(1.0)


def test_a_second_derivative_that_does_not_exist_is_named():
    model = torch.nn.Linear(2, 3, bias=False).double()
    batches = [(torch.zeros(4, 2).double(), torch.zeros(4))]
    operator = HessianOperator(model, lambda z, _: z.square().sum(1).pow(1.5), batches)
    with pytest.raises(InputError, match="finite products"):
        hessian_trace(operator)
