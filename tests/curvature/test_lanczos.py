"""Lanczos against dense eigenvalues (LAPACK's, an independent algorithm)."""

import pytest
import torch

from focalcal.curvature import HessianOperator, block_eigenvalues, top_eigenvalues
from focalcal.errors import InputError


def order(values, which):
    key = {"largest": -values, "smallest": values, "magnitude": -values.abs()}[which]
    return values[key.argsort()]


@pytest.mark.parametrize("which", ["largest", "smallest", "magnitude"])
def test_top_five_of_a_network(problem, which):
    h = problem.hessian()
    operator = HessianOperator(
        problem.model, torch.nn.functional.cross_entropy, [(problem.x, problem.y)]
    )
    exact = order(torch.linalg.eigvalsh(h), which)[:5]
    found = top_eigenvalues(operator, 5, which=which)
    assert found.converged
    torch.testing.assert_close(found.values, exact, rtol=1e-6, atol=1e-9)
    error = (h @ found.vectors - found.vectors * found.values).norm(dim=0)
    torch.testing.assert_close(error, found.residuals, rtol=1e-3, atol=1e-10)
    torch.testing.assert_close(
        found.vectors.T @ found.vectors, torch.eye(5, dtype=torch.float64), rtol=0, atol=1e-10
    )


def test_negative_eigenvalues_come_back_negative(symmetric):
    a = symmetric([-10.0, -3.0, *torch.linspace(-1, 5, 60).tolist()])
    magnitude = top_eigenvalues(a, 2, which="magnitude").values
    torch.testing.assert_close(magnitude, torch.tensor([-10.0, 5.0], dtype=torch.float64))
    smallest = top_eigenvalues(a, 2, which="smallest").values
    torch.testing.assert_close(smallest, torch.tensor([-10.0, -3.0], dtype=torch.float64))


@pytest.mark.parametrize("block_size", [1, 3])
def test_multiplicities_and_exhausted_spaces(block_size, symmetric):
    identity = top_eigenvalues(torch.eye(6), 4, block_size=block_size)
    assert identity.values.tolist() == pytest.approx([1.0] * 4)
    triple = symmetric([7.0, 7.0, 7.0, *torch.linspace(0, 1, 50).tolist()])
    values = top_eigenvalues(triple, 4, block_size=block_size).values.tolist()
    if block_size == 3:
        assert values == pytest.approx([7.0, 7.0, 7.0, 1.0])
    assert top_eigenvalues(torch.zeros(4, 4), 2).values.tolist() == [0.0, 0.0]
    whole = symmetric([3.0, -2.0, 1.0, 0.5, 0.0])
    assert top_eigenvalues(whole, 5, block_size=block_size).values.tolist() == pytest.approx(
        [3.0, 1.0, 0.5, 0.0, -2.0], abs=1e-12
    )


def test_says_when_it_did_not_converge(symmetric):
    a = symmetric(torch.linspace(0, 1, 200))
    seen = []
    found = top_eigenvalues(a, 3, max_products=8, progress=seen.append)
    assert not found.converged
    assert found.products == 8
    assert seen == [i / 8 for i in range(1, 9)]
    exact = torch.linalg.eigvalsh(a)
    # An eigenvalue lies within each residual: the guarantee that makes a residual worth having.
    for value, residual in zip(found.values, found.residuals):
        assert (exact - value).abs().min() <= residual


def test_a_vast_bulk_near_zero_does_not_pass_for_the_smallest_eigenvalue():
    # As in trained networks: a few large eigenvalues, one negative, the rest close to zero. A
    # random vector is then almost an eigenvector (of zero) by any relative tolerance.
    class Diagonal:
        values = torch.cat([torch.tensor([400.0, 150.0, 60.0, -13.0]), torch.full((50_000,), 1e-3)])
        shape = (len(values), len(values))

        def __matmul__(self, vectors):
            return self.values.double()[:, None] * vectors

    found = top_eigenvalues(Diagonal(), which="smallest", tol=1e-3)
    assert found.values.item() == pytest.approx(-13.0, rel=1e-6)
    assert found.converged


def test_eigenvalues_of_blocks(mlp):
    operator = HessianOperator(mlp.model, torch.nn.functional.cross_entropy, [(mlp.x, mlp.y)])
    h = mlp.hessian()
    tops = block_eigenvalues(operator, 4)
    for name, s in operator.blocks.items():
        exact = torch.linalg.eigvalsh(h[s, s]).flip(0)[:4]
        torch.testing.assert_close(tops[name].values, exact, rtol=1e-6, atol=1e-9)
    assert len(tops["2.bias"].values) == 3


def test_refuses_bad_settings():
    a = torch.eye(3)
    with pytest.raises(InputError, match="'largest', 'smallest'"):
        top_eigenvalues(a, which="LM")
    for settings, message in [
        ({"k": 4}, "1 <= k <= 3"),
        ({"k": 2, "max_products": 1}, "max_products"),
        ({"block_size": 0}, "block_size"),
    ]:
        with pytest.raises(InputError, match=message):
            top_eigenvalues(a, **settings)
