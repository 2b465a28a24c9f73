"""The record of a curvature measurement, and the figures drawn from it."""

import json

import pytest
import torch
from matplotlib.figure import Figure

from focalcal.curvature import HessianOperator, figures, summarise_curvature
from focalcal.curvature.logit import binary_logit_curvature


@pytest.fixture
def summary(mlp):
    operator = HessianOperator(mlp.model, "ce", [(mlp.x, mlp.y)])
    seen = []
    found = summarise_curvature(operator, top=2, density=True, progress=seen.append)
    assert seen[-1] == 1.0
    assert seen == sorted(seen)
    for start in (0, 0.25, 0.5, 0.75):  # four parts, each of which is heard
        assert any(start < fraction <= start + 0.25 for fraction in seen)
    return found


def test_record_is_strict_json_of_what_was_found(summary, mlp):
    h = mlp.hessian()
    record = json.loads(json.dumps(summary.record(), allow_nan=False))
    assert record["n"] == 24
    assert record["n_parameters"] == len(h)
    assert record["trace"]["low"] < h.trace().item() < record["trace"]["high"]
    values = torch.linalg.eigvalsh(h)
    assert record["top"]["values"] == pytest.approx(values.flip(0)[:2].tolist(), rel=1e-3)
    assert record["bottom"]["values"] == pytest.approx([values[0].item()], rel=1e-2)
    assert sum(record["density"]["weights"][0]) == pytest.approx(1.0)


def test_parts_can_be_left_out(mlp):
    operator = HessianOperator(mlp.model, "ce", [(mlp.x, mlp.y)])
    found = summarise_curvature(operator, trace=False, top=0)
    assert found.record() == {"n": 24, "n_parameters": mlp.n_parameters}


def test_figures_draw_the_numbers_they_are_given(summary):
    density, traces, logit = Figure().subplots(1, 3)
    assert figures.plot_density({"ce": summary.density}, density) is density
    x, y = density.lines[0].get_data()
    shown = torch.as_tensor(y).isfinite()
    nodes = summary.density.nodes
    expected = summary.density.at(torch.as_tensor(x), 0.005 * float(nodes.max() - nodes.min()))
    torch.testing.assert_close(torch.as_tensor(y)[shown], expected[shown])
    assert shown.any()
    figures.plot_traces({0: summary.trace, 1: summary.trace}, traces)
    assert traces.lines[0].get_ydata().tolist() == [summary.trace.value] * 2
    figures.plot_logit_curvature(logit, gammas=(0, 3))
    p, curve = (torch.as_tensor(v) for v in logit.lines[1].get_data())
    torch.testing.assert_close(curve, binary_logit_curvature(p, 3))
    assert [t.get_text() for t in logit.get_legend().texts] == ["γ = 0 (cross-entropy)", "γ = 3"]
