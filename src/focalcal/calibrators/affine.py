"""Affine maps of the logits: vector, matrix and Dirichlet scaling."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from focalcal._arrays import Array, like, log_softmax, namespace
from focalcal.calibrators._newton import fit_inverse_temperature
from focalcal.calibrators._softmax_fit import AffineFit, Penalty, fit_affine
from focalcal.calibrators.base import Calibrator, FitData
from focalcal.errors import InputError


class AffineScaling(Calibrator):
    """softmax(W f(z) + b), fitted by penalised NLL from the best temperature on; convex."""

    state: ClassVar[dict[str, str | None]] = {"weight_": "KK", "bias_": "K"}

    def _features(self, logits: Array) -> Array:
        """f(z), unchanged when a constant is added to all logits of a row: here z − mean(z)."""
        return logits - namespace(logits).mean(logits, axis=1, keepdims=True)

    def _penalty(self) -> Penalty:
        raise NotImplementedError

    def _check_params(self) -> None:
        for name, value in self.get_params().items():  # all but the task are penalties
            if name != "task" and not (np.isreal(value) and 0 <= value < np.inf):
                raise InputError(f"expected {name} as a finite number >= 0, got {value!r}")

    def _fit(self, data: FitData) -> dict[str, Any]:
        logits, labels, weights = data.numpy()
        beta = fit_inverse_temperature(logits, labels, weights).beta
        # In units where the best temperature is 1 the problem is well scaled for any logits.
        beta = beta if beta > 0 else 1.0 / max(float(np.std(logits)), 1e-300)
        found = fit_affine(self._features(logits) * beta, labels, weights, self._penalty())
        self.weight_, self.bias_ = found.weight * beta, found.bias
        return affine_outcome(found)

    def _log_proba(self, logits: Array) -> Array:
        return log_softmax(apply_affine(self._features(logits), self.weight_, self.bias_))


class VectorScaling(AffineScaling):
    """p = softmax(w ∘ z + b): one weight and one bias per class.

    Logits are centred first, so that adding a constant to a row changes nothing.

    penalty: λ of λ/2·‖b‖² added to the mean NLL; task: "auto" or "multilabel", as in `Calibrator`.

    Fitted: `weight_` (K,), `bias_` (K,).

    >>> rng = np.random.default_rng(0)
    >>> z = rng.normal(size=(3000, 3))
    >>> y = np.argmax(z + [0, 0, 1] + rng.gumbel(size=z.shape), axis=1)
    >>> bias = VectorScaling().fit(z, y).bias_
    >>> bool(abs(bias[2] - bias[0] - 1) < 0.2)
    True

    Guo et al. 2017, Sec. 4.2.
    """

    method: ClassVar[str] = "vector"
    summary: ClassVar[str] = "a weight and a bias per class, by NLL"
    state: ClassVar[dict[str, str | None]] = {"weight_": "K", "bias_": "K"}

    def __init__(self, penalty: float = 0.0, task: str = "auto") -> None:
        self.penalty = penalty
        self.task = task

    def _penalty(self) -> Penalty:
        return Penalty(diagonal=0.0, bias=self.penalty)


class MatrixScaling(AffineScaling):
    """p = softmax(Wz + b) with a full matrix.

    Logits are centred first, so that adding a constant to a row changes nothing.

    penalty: λ of λ/2·(‖off-diagonal of W‖² + ‖b‖²), in units where the best temperature is 1; K²
    parameters over-fit without it. task: "auto" or "multilabel", as in `Calibrator`.

    Fitted: `weight_` (K, K), `bias_` (K,).

    >>> rng = np.random.default_rng(0)
    >>> z = 2 * rng.normal(size=(2000, 3))
    >>> y = np.argmax(z + rng.gumbel(size=z.shape), axis=1)
    >>> MatrixScaling().fit(2 * z, y).weight_.shape
    (3, 3)

    Guo et al. 2017, Sec. 4.2; the penalty is ODIR of Kull et al. 2019.
    """

    method: ClassVar[str] = "matrix"
    summary: ClassVar[str] = "a full matrix and a bias per class, by NLL, off-diagonal penalised"

    def __init__(self, penalty: float = 0.03, task: str = "auto") -> None:
        self.penalty = penalty
        self.task = task

    def _penalty(self) -> Penalty:
        return Penalty(diagonal=0.0, bias=self.penalty, off_diagonal=self.penalty)


class DirichletScaling(AffineScaling):
    """p = softmax(W log softmax(z) + b): Dirichlet calibration with ODIR.

    λ/2·‖off-diagonal of W‖² + μ/2·‖b‖² is added to the mean NLL, in units where the best
    temperature is 1.

    off_diagonal: λ; bias: μ; task: "auto" or "multilabel", as in `Calibrator`.

    Fitted: `weight_` (K, K), `bias_` (K,).

    >>> rng = np.random.default_rng(0)
    >>> z = 2 * rng.normal(size=(2000, 3))
    >>> y = np.argmax(z + rng.gumbel(size=z.shape), axis=1)
    >>> DirichletScaling().fit(2 * z, y).weight_.shape
    (3, 3)

    Kull et al. 2019.
    """

    method: ClassVar[str] = "dirichlet"
    summary: ClassVar[str] = "a full matrix on log-probabilities (Dirichlet) with ODIR"

    def __init__(self, off_diagonal: float = 0.03, bias: float = 0.01, task: str = "auto") -> None:
        self.off_diagonal = off_diagonal
        self.bias = bias
        self.task = task

    def _features(self, logits: Array) -> Array:
        return log_softmax(logits)

    def _penalty(self) -> Penalty:
        return Penalty(diagonal=0.0, bias=self.bias, off_diagonal=self.off_diagonal)


def apply_affine(x: Array, weight: np.ndarray, bias: np.ndarray) -> Array:
    """Wx + b for rows x (N, K); W is (K,) for a diagonal matrix."""
    w = like(weight, x)
    return (x @ w.T if weight.ndim == 2 else x * w) + like(bias, x)


def affine_outcome(found: AffineFit, *notes: str) -> dict[str, Any]:
    """Fields for `Diagnostics`; non-convergence is said."""
    if not found.converged:
        notes += (
            f"the solver did not converge in {found.iterations} iterations; "
            "raise the penalty or use more data",
        )
    return {"iterations": found.iterations, "converged": found.converged, "warnings": notes}
