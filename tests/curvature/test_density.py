"""Quadrature against exact moments tr(A^m)/n of dense matrices."""

import math

import pytest
import torch

from focalcal.curvature import HessianOperator, spectral_density
from focalcal.errors import InputError


def test_moments_lie_within_their_standard_errors(problem):
    h = problem.hessian()
    operator = HessianOperator(
        problem.model, torch.nn.functional.cross_entropy, [(problem.x, problem.y)]
    )
    density = spectral_density(operator, probes=40, steps=12)
    assert density.moment(0)[0] == pytest.approx(1.0)
    for power in range(1, 7):
        exact = torch.linalg.matrix_power(h, power).trace().item() / len(h)
        value, error = density.moment(power)
        assert abs(value - exact) < 4 * error


def test_each_row_is_the_gauss_quadrature_of_its_probe(symmetric):
    # Exact up to degree 2·steps − 1 for vᵀAᵐv/n with the very same probe.
    a = symmetric(torch.linspace(-1, 2, 30))
    signs = torch.randint(0, 2, (3, 30), generator=torch.Generator().manual_seed(7)) * 2.0 - 1
    v = signs.double().T
    density = spectral_density(a, probes=3, steps=5, generator=torch.Generator().manual_seed(7))
    image = v
    for power in range(1, 10):
        image = a @ image
        torch.testing.assert_close(
            (density.weights * density.nodes**power).sum(1), (v * image).sum(0) / 30
        )


def test_nodes_stay_inside_the_spectrum_and_cover_it(symmetric):
    a = symmetric([-4.0, *torch.linspace(0, 1, 80).tolist(), 9.0])
    density = spectral_density(a, probes=4, steps=30)
    assert density.nodes.min().item() == pytest.approx(-4.0, abs=1e-8)
    assert density.nodes.max().item() == pytest.approx(9.0, abs=1e-8)
    assert density.share_above(5.0) == pytest.approx(1 / 82, rel=0.9)


def test_more_steps_than_dimensions(symmetric):
    # A Krylov space of dimension 3: exhausted after three steps, the rest gets no weight.
    a = symmetric([1.0] * 5 + [2.0] * 5 + [-1.0] * 5)
    density = spectral_density(a, probes=3, steps=40)
    assert density.weights.sum(1).tolist() == pytest.approx([1.0] * 3)
    heavy = density.nodes[density.weights > 1e-12]
    assert {round(x, 6) for x in heavy.tolist()} == {1.0, 2.0, -1.0}


def test_density_integrates_to_one_and_chunks_agree(symmetric):
    a = symmetric(torch.linspace(-1, 2, 40))
    density = spectral_density(a, probes=5, steps=20)
    grid = torch.linspace(-2, 3, 4001, dtype=torch.float64)
    for width in (None, 0.1):
        total = torch.trapezoid(density.at(grid, width), grid).item()
        assert total == pytest.approx(1.0, abs=1e-6)
    again = spectral_density(a, probes=5, steps=20, at_once=2)
    torch.testing.assert_close(again.nodes, density.nodes)
    assert spectral_density(torch.zeros(3, 3), probes=1).default_width() > 0
    assert spectral_density(a, probes=1).moment(1)[1] == math.inf


def test_refuses_bad_settings():
    for settings in ({"probes": 0}, {"steps": 2.5}, {"at_once": 0}):
        with pytest.raises(InputError, match=next(iter(settings))):
            spectral_density(torch.eye(3), **settings)
    with pytest.raises(InputError, match="width > 0"):
        spectral_density(torch.eye(3)).at(torch.zeros(1), width=0)
