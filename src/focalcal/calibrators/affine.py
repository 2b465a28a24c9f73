"""Affine maps of the logits by penalised NLL: vector, matrix, Dirichlet and structured scaling."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np
from scipy.optimize import OptimizeResult
from threadpoolctl import threadpool_limits

from focalcal._arrays import Array, like, log_softmax, namespace
from focalcal.calibrators._focal_affine import FocalAffine, groups, minimise, prior, weight_of
from focalcal.calibrators._newton import fit_inverse_temperature
from focalcal.calibrators.base import Calibrator, FitData, solved
from focalcal.calibrators.sums import SampledData, best_temperature
from focalcal.calibrators.temperature import check_temperature, scaled
from focalcal.errors import InputError

MAX_ITERATIONS = 1000
LARGE = 2**22
"""Elements of x from which products are in float32."""
MAX_WHITENED = 1200
"""Up to this many parameters the Hessian of a sample is formed; above, only its diagonal."""
_HESSIAN_ROWS = 20_000
DIAGONAL_SD = 1 / math.sqrt(2)
OFF_DIAGONAL_SD = 0.2
"""Standard deviations of the priors, to be divided by √K."""
BIAS_SD = 0.3
ENOUGH_PER_CLASS = 40
"""With fewer calibration samples per class the off-diagonal prior narrows in proportion."""


class Penalty(NamedTuple):
    """λ of λ/2·‖·‖² on the deviations of diagonal, off-diagonal and bias; mean NLL is added.

    `off_diagonal` None: the off-diagonal stays zero.
    """

    diagonal: float
    bias: float
    off_diagonal: float | None = None


class AffineScaling(Calibrator):
    """softmax(W f(z) + b), fitted by penalised NLL starting from the best temperature; convex."""

    state: ClassVar[dict[str, str | None]] = {"weight_": "KK", "bias_": "K"}

    def _features(self, logits: Array) -> Array:
        """f(z), unchanged when a constant is added to all logits of a row: here z − mean(z)."""
        return centred(logits)

    def _penalty(self, n: float, k: int) -> Penalty:
        """The penalties added to the mean NLL of n samples of k classes."""
        raise NotImplementedError

    def _check_params(self) -> None:
        for name, value in self.get_params().items():  # all but the task are penalties
            if name != "task" and not (np.isreal(value) and 0 <= value < np.inf):
                raise InputError(f"expected {name} as a finite number >= 0, got {value!r}")

    def _fit(self, data: FitData) -> dict[str, Any]:
        logits, labels, weights = data.numpy()
        beta = fit_inverse_temperature(logits, labels, weights).beta
        # In units where the best temperature is 1 the problem is well scaled for any logits.
        if beta == 0:  # worse than chance
            size = np.average(np.square(centred(logits)).mean(axis=1), weights=weights)
            beta = 1.0 / max(float(np.sqrt(size)), 1e-150)
        penalty = self._penalty(*logits.shape)
        found = fit_affine(self._features(logits) * beta, labels, weights, penalty)
        self.weight_, self.bias_ = found.weight * beta, found.bias
        return solved(found.nfev, found.success)

    def _log_proba(self, logits: Array) -> Array:
        return log_softmax(apply_affine(self._features(logits), self.weight_, self.bias_))


class VectorScaling(AffineScaling):
    """p = softmax(w ∘ z + b): one weight and one bias per class.

    Logits are centred first, so that adding a constant to a row changes nothing.

    penalty: λ of λ/2·‖b‖² added to the mean NLL; task: as in `Calibrator`.

    Fitted: `weight_` (K,), `bias_` (K,).

    >>> from focalcal.examples import resnet18
    >>> val, _ = resnet18()
    >>> VectorScaling().fit(val.logits, val.labels).weight_.round(1)[:4].tolist()
    [0.5, 0.5, 0.5, 0.3]

    Guo et al. 2017, Sec. 4.2.
    """

    method: ClassVar[str] = "vector"
    summary: ClassVar[str] = "a weight and a bias per class, by NLL"
    state: ClassVar[dict[str, str | None]] = {"weight_": "K", "bias_": "K"}

    def __init__(self, penalty: float = 0.0, task: str = "auto") -> None:
        self.penalty = penalty
        self.task = task

    def _penalty(self, n: float, k: int) -> Penalty:
        return Penalty(diagonal=0.0, bias=self.penalty)


class MatrixScaling(AffineScaling):
    """p = softmax(Wz + b) with a full matrix.

    Logits are centred first, so that adding a constant to a row changes nothing.

    penalty: λ of λ/2·(‖off-diagonal of W‖² + ‖b‖²), in units where the best temperature is 1; K²
    parameters over-fit without it. task: as in `Calibrator`.

    Fitted: `weight_` (K, K), `bias_` (K,).

    >>> z, y = 2 * np.eye(3)[[0, 1, 2] * 9], [0, 1, 2, 0, 2, 1, 0, 1, 2] * 3
    >>> MatrixScaling().fit(z, y).weight_.shape
    (3, 3)

    Guo et al. 2017, Sec. 4.2; the penalty is ODIR of Kull et al. 2019.
    """

    method: ClassVar[str] = "matrix"
    summary: ClassVar[str] = "a full matrix and a bias per class, by NLL, off-diagonal penalised"

    def __init__(self, penalty: float = 0.03, task: str = "auto") -> None:
        self.penalty = penalty
        self.task = task

    def _penalty(self, n: float, k: int) -> Penalty:
        return Penalty(diagonal=0.0, bias=self.penalty, off_diagonal=self.penalty)


class DirichletScaling(AffineScaling):
    """p = softmax(W log softmax(z) + b): Dirichlet calibration with ODIR.

    λ/2·‖off-diagonal of W‖² + μ/2·‖b‖² is added to the mean NLL, in units where the best
    temperature is 1.

    off_diagonal: λ; bias: μ; task: as in `Calibrator`.

    Fitted: `weight_` (K, K), `bias_` (K,).

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

    def _penalty(self, n: float, k: int) -> Penalty:
        return Penalty(diagonal=0.0, bias=self.bias, off_diagonal=self.off_diagonal)


class _StructuredScaling(AffineScaling):
    """softmax(W log softmax(z/T) + b): T is fitted first, then W and b, shrunk to I and 0."""

    state: ClassVar[dict[str, str | None]] = {"temperature_": "", "weight_": "KK", "bias_": "K"}
    takes_sums: ClassVar[bool] = True
    full: ClassVar[bool]

    def __init__(self, strength: float = 1.0, task: str = "auto") -> None:
        self.strength = strength
        self.task = task

    def _check_state(self) -> None:
        check_temperature(self.temperature_)

    def _features(self, logits: Array) -> Array:
        return log_softmax(scaled(logits, self.temperature_))

    def _penalty(self, n: float, k: int) -> Penalty:
        off = None
        if self.full:
            sd = OFF_DIAGONAL_SD / math.sqrt(k) * min(1.0, n / (ENOUGH_PER_CLASS * k))
            off = self.strength / (n * sd**2)
        diagonal, bias = self.strength * k / (n * DIAGONAL_SD**2), self.strength / (n * BIAS_SD**2)
        return Penalty(diagonal, bias, off)

    def _fit(self, data: FitData) -> dict[str, Any]:
        plain = best_temperature(data)
        self.temperature_ = plain.temperature
        logits, labels, weights = data.numpy()
        # Weights count samples: doubling them all halves the shrinkage.
        n = max(1e-9, float(data.n if data.weights is None else data.weights.sum()))
        nll = None
        if isinstance(data, SampledData):
            n = data.size

            def nll(theta: np.ndarray) -> tuple[float, np.ndarray]:
                total = data.total(affine_sums, temperature=self.temperature_, theta=theta)
                return float(total[0]) / n, total[1:] / n

        penalty = self._penalty(n, data.n_classes)
        found = fit_affine(self._features(logits), labels, weights, penalty, nll)
        self.weight_, self.bias_ = found.weight, found.bias
        measured = {} if nll is None else {"after": found.loss}
        measured["at_edge"] = plain.at_edge
        return solved(found.nfev, found.success, plain.notes, **measured)


class StructuredVectorScaling(_StructuredScaling):
    """p = softmax(w ∘ log softmax(z/T) + b), w shrunk to 1 and b to 0.

    T is fitted first; then w and b minimise the NLL with Gaussian priors around temperature
    scaling (standard deviations 1/√(2K) and 0.3).

    strength: factor of the shrinkage, 0 for none; large values give temperature scaling. task: as
    in `Calibrator`.

    Fitted: `temperature_`, `weight_` (K,), `bias_` (K,).

    >>> from focalcal.examples import resnet18
    >>> val, _ = resnet18()
    >>> StructuredVectorScaling().fit(val.logits, val.labels).weight_.round(1)[:4].tolist()
    [1.1, 1.2, 1.0, 0.8]

    After Berta et al. 2025, Structured Matrix Scaling, with their prior of w; that of b is our own.
    """

    method: ClassVar[str] = "structured-vector"
    summary: ClassVar[str] = "vector scaling that shrinks to temperature scaling"
    full: ClassVar[bool] = False
    state: ClassVar[dict[str, str | None]] = {"temperature_": "", "weight_": "K", "bias_": "K"}


class StructuredMatrixScaling(_StructuredScaling):
    """p = softmax(W log softmax(z/T) + b), W shrunk to I level by level and b to 0.

    T is fitted first; then the diagonal of W, its off-diagonal and b minimise the NLL with
    Gaussian priors around temperature scaling. The off-diagonal, with K² numbers, is shrunk most,
    and more so the fewer samples there are per class.

    strength: factor of all shrinkage; task: as in `Calibrator`.

    Fitted: `temperature_`, `weight_` (K, K), `bias_` (K,).

    After Berta et al. 2025, Structured Matrix Scaling; the priors of b and of the off-diagonal are
    our own.
    """

    method: ClassVar[str] = "structured-matrix"
    summary: ClassVar[str] = "matrix scaling that shrinks to temperature scaling, level by level"
    full: ClassVar[bool] = True


def centred(logits: Array) -> Array:
    """Logits (N, K) whose rows have mean 0."""
    return logits - namespace(logits).mean(logits, axis=1, keepdims=True)


def apply_affine(x: Array, weight: np.ndarray, bias: np.ndarray) -> Array:
    """Wx + b for rows x (N, K); W is (K,) for a diagonal matrix."""
    w = like(weight, x)
    return (x @ w.T if weight.ndim == 2 else x * w) + like(bias, x)


def fit_affine(
    x: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray,
    penalty: Penalty,
    nll: Callable[[np.ndarray], tuple[float, np.ndarray]] | None = None,
) -> OptimizeResult:
    """Minimises the mean NLL of softmax(Wx + b), W − I and b penalised: `weight`, `bias`, `loss`.

    x: (N, K) float64; labels: (N,); weights: (N,) with mean 1; nll: mean NLL and its gradient as a
    function of the parameters of `FocalAffine`, over a larger set that contains x. W is (K,) for a
    diagonal, else (K, K) acting as x @ W.T. The problem is convex. L-BFGS with the exact gradient
    starts at W = I, b = 0, so the fitted NLL never exceeds that of softmax(x); over the larger set
    it continues from there, in coordinates in which a unit step is a Newton step.
    """
    large = x.size > LARGE
    x = x.astype(np.float32) if large else x
    k, model = x.shape[1], FocalAffine(x, None, labels, weights)
    free, shrink = prior(k, None, None, penalty.diagonal, penalty.bias, None, penalty.off_diagonal)
    origin = np.zeros(len(free))

    def mean_nll(theta: np.ndarray) -> tuple[float, np.ndarray]:
        loss, gradient = model.nll(theta)
        return loss / len(x), gradient / len(x)

    # The accuracy that float32 sums allow.
    options = {"maxiter": MAX_ITERATIONS, "ftol": 1e-5, "gtol": 1e-5}
    if not large:
        options |= {"ftol": 1e-11, "gtol": 1e-6}
    with threadpool_limits(1, "blas"):  # the blocks already run on all cores
        root = np.sqrt(model.curvature(origin) / len(x) + shrink + 1e-6)[free]
        found = minimise(mean_nll, origin, free, (origin, shrink), root, **options)
    if nll is not None:
        if len(root) <= MAX_WHITENED:
            root = _hessian_root(model, found.x, free, shrink)
        options |= {"ftol": 1e-13, "gtol": 1e-6}
        found = minimise(nll, found.x, free, (origin, shrink), root, **options)
    found.weight, found.bias = weight_of(found.x, k), found.x[groups(k)[1]]
    found.loss = float(found.fun) - 0.5 * float(shrink @ found.x**2)
    return found


def _hessian_root(
    model: FocalAffine, theta: np.ndarray, free: np.ndarray, shrink: np.ndarray
) -> np.ndarray:
    """Upper triangular R with RᵀR the Hessian."""
    x, p = (a[:_HESSIAN_ROWS] for a in (model.x, np.exp(model.log_proba(theta))))
    scales, biases, _, matrix = (np.arange(len(theta))[group] for group in model.groups)
    n, k = x.shape
    # The parameters of each class's score, and their factors in each sample.
    places, factors = np.stack([scales, biases], axis=1), np.stack([x, np.ones_like(x)], axis=2)
    if len(matrix):
        square = matrix.reshape(k, k).copy()
        np.fill_diagonal(square, scales)
        places = np.concatenate([square, biases[None]]).T
        factors = np.repeat(np.concatenate([x, np.ones((n, 1))], axis=1)[:, None], k, axis=1)
    weighted = p[:, :, None] * factors
    flat = weighted.reshape(n, -1)
    by_class = -flat.T @ flat
    for i, own in enumerate(np.arange(places.size).reshape(places.shape)):
        by_class[np.ix_(own, own)] += weighted[:, i].T @ factors[:, i]
    hessian = np.zeros((len(theta), len(theta)))
    hessian[np.ix_(places.ravel(), places.ravel())] = by_class / n
    hessian, shrink = hessian[np.ix_(free, free)], shrink[free]
    # Adding a constant to all logits changes nothing: a small ridge fixes those directions.
    ridge = 1e-8 * float(np.trace(hessian)) / len(shrink) + math.ulp(1.0)
    return np.linalg.cholesky(hessian + np.diag(shrink + ridge)).T


def affine_sums(
    logits: np.ndarray, labels: np.ndarray, temperature: float, theta: np.ndarray
) -> np.ndarray:
    """Total NLL of an affine map of log softmax(z/T), and its gradient."""
    x = log_softmax(scaled(logits.astype(np.float64), temperature))
    with threadpool_limits(1, "blas"):
        loss, gradient = FocalAffine(x, None, labels, np.ones(len(labels))).nll(theta)
    return np.concatenate([[loss], gradient])
