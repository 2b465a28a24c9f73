"""The evidence for every erratum that numbers can show."""

from __future__ import annotations

import doctest

import numpy as np
import pytest
import torch

import focalcal_papers.errata as module
from focalcal.maps import focal_loss_derivative, focal_map, gamma_for_probability
from focalcal_papers.errata import errata, logit_curvature, smallest_lowered


@pytest.fixture(scope="module")
def evidence():
    return {(entry.paper, entry.where): entry.evidence for entry in errata()}


def of(evidence, paper, start):
    (found,) = [v for (p, w), v in evidence.items() if p == paper and w.startswith(start)]
    return found


def test_geo_eq_30_the_gradient_vanishes_for_every_positive_gamma(evidence):
    assert len(of(evidence, "Kimura", "Eq. 30")) == 2
    for gamma in (0.01, 0.25, 0.5, 3.0):
        slopes = np.abs(focal_loss_derivative(1 - 10.0 ** -np.arange(1, 15), gamma))
        assert (np.diff(slopes) < 0).all()
        ratio = slopes[-1] / slopes[-2]
        assert ratio == pytest.approx(10**-gamma, rel=1e-2)  # falls as (1−p)^γ: limit 0


def test_geo_eq_28_curvature_rises_at_low_p_and_falls_at_high_p(evidence):
    found = of(evidence, "Kimura", "Eq. 28")
    assert found["curvature at p=0.27, gamma=0"] == pytest.approx(0.197, abs=5e-4)
    assert found["curvature at p=0.27, gamma=3"] == pytest.approx(0.570, abs=5e-4)
    assert found["curvature at p=0.9, gamma=3"] < found["curvature at p=0.9, gamma=0"]


def test_logit_curvature_equals_double_backward():
    s = torch.tensor(-0.9946, dtype=torch.float64, requires_grad=True)
    p = torch.sigmoid(s)
    (first,) = torch.autograd.grad((1 - p) ** 3 * -torch.log(p), s, create_graph=True)
    (second,) = torch.autograd.grad(first, s)
    assert logit_curvature(p.item(), 3.0) == pytest.approx(second.item(), rel=1e-12)


def test_geo_lemma_1_step_fails_but_the_inequality_holds(evidence):
    found = of(evidence, "Kimura", "Lemma 1")
    assert found["(1-q)^.5 at q=.5"] < found["1-.5q at q=.5"]
    assert found["least slack"] >= 0


def test_geo_cor_1_holds_with_probability_at_least_one_minus_epsilon(evidence):
    found = of(evidence, "Kimura", "Cor. 1")
    assert found["share of samples where the bound holds"] >= found["1 - epsilon"]


def test_geo_theorem_1_maximises_entropy_and_the_mean_runs_from_max_to_min(evidence):
    found = of(evidence, "Kimura", "Theorem 1")
    assert found["mean loss at beta near -inf"] == pytest.approx(1.0, abs=1e-6)
    assert found["mean loss at beta near +inf"] == pytest.approx(0.2, abs=1e-6)
    neighbour = found["entropy of a neighbour of equal mean loss"]
    assert found["entropy of the distribution"] > neighbour


def test_fts_prop_5_is_false_from_four_classes_on(evidence):
    found = of(evidence, "Komisarenko", "Prop. 5")
    assert found["top after"] == pytest.approx(0.1221, abs=5e-5)
    expected = {0.1: 4, 1: 4, 2: 5, 3: 5, 5: 7}
    assert {g: smallest_lowered(g) for g in expected} == expected
    for gamma, n_classes in expected.items():
        rare = 1e-6  # K − 1 classes tied at the top and one rare class
        q = np.full(n_classes, (1 - rare) / (n_classes - 1))
        q[-1] = rare
        assert focal_map(q, gamma)[0] < q[0]


@pytest.mark.parametrize("gamma", [0.1, 0.5, 1.0, 2.0, 5.0])
def test_fts_prop_5_has_no_counter_example_for_three_classes(gamma):
    rng = np.random.default_rng(0)
    q = np.concatenate([rng.dirichlet(np.full(3, a), size=20_000) for a in (0.3, 2.0, 20.0)])
    assert (focal_map(q, gamma).max(1) >= q.max(1) * (1 - 1e-13)).all()


@pytest.mark.parametrize(("gamma", "n_classes"), [(2.0, 4), (3.0, 4), (5.0, 6)])
def test_fts_prop_5_has_no_counter_example_below_the_smallest_count(gamma, n_classes):
    rng = np.random.default_rng(0)
    tops = rng.dirichlet(np.full(n_classes - 1, 50.0), size=20_000)
    rare = rng.uniform(0, 0.2, size=(20_000, 1)) ** 2
    q = np.concatenate([tops * (1 - rare), rare], axis=1)
    q = np.concatenate([q, rng.dirichlet(np.ones(n_classes), size=20_000)])
    assert (focal_map(q, gamma).max(1) >= q.max(1) * (1 - 1e-13)).all()


def test_fts_binary_fit(evidence):
    found = of(evidence, "Komisarenko", "binary fit")
    assert found["largest error of the best T"] == pytest.approx(1.21e-3, abs=5e-6)
    assert found["at gamma"] == pytest.approx(0.45)
    assert found["largest error of 1/T = .95 gamma + .85"] == pytest.approx(3.6e-2, abs=5e-4)
    assert found["T, gamma=.5"] == pytest.approx(0.731, abs=5e-4)
    assert found["T, gamma=3"] == pytest.approx(0.276, abs=5e-4)


def test_fts_lines_for_three_and_four_classes(evidence):
    found = of(evidence, "Komisarenko", "fits")
    assert found["slope, K=3"] == pytest.approx(0.644, abs=0.005)
    assert found["offset, K=3"] == pytest.approx(0.901, abs=0.025)
    assert found["largest error, K=3"] == pytest.approx(0.078, abs=1e-3)
    assert found["slope, K=4"] == pytest.approx(0.489, abs=0.005)
    assert found["offset, K=4"] == pytest.approx(0.960, abs=0.02)
    assert found["largest error, K=4"] == pytest.approx(0.127, abs=1e-3)
    assert found["T, K=3, gamma=.5"] == pytest.approx(0.81, abs=6e-3)
    assert found["T, K=3, gamma=2"] == pytest.approx(0.46, abs=6e-3)
    (entry,) = (e for e in errata() if e.where.startswith("fits for K = 3"))
    slope, offset = (f"{found[f'{x}, K=4']:.2f}".lstrip("0") for x in ("slope", "offset"))
    line = f"{slope}γ + {offset}, error {100 * found['largest error, K=4']:.1f} %"
    assert line in entry.true  # the page shows both side by side


def test_fts_prop_3_direction(evidence):
    low, psi, high = of(evidence, "Komisarenko", "Prop. 3").values()
    assert low < psi < high


def test_cpe_prints_78_where_7744_rounds_to_77(evidence):
    (value,) = of(evidence, "Charoenphakdee", "risk").values()
    assert round(value, 4) == 0.7744


def test_ie_gamma_at_one_half_is_zero_and_w0_gives_zero(evidence):
    found = of(evidence, "Mukhoti", "Prop. 2")
    assert found["gamma*(.5)"] == 0
    assert found["gamma from W0 at .2"] == pytest.approx(0, abs=1e-12)
    assert float(gamma_for_probability(0.2)) == pytest.approx(4.851, abs=5e-4)


def test_ie_app_g_the_norm_is_larger_for_cross_entropy(evidence):
    found = of(evidence, "Mukhoti", "App. G")
    assert found["norm of the CE minimiser"] > found["norm of the FL, gamma=1 minimiser"]


def test_examples():
    assert doctest.testmod(module).failed == 0
