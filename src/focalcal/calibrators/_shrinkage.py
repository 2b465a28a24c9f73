"""Fitting with shrinkage that the calibration data choose: cross-validation along a path.

Every group of parameters has a Gaussian prior around temperature scaling. Two numbers set their
widths: the strength for the vectors δ, b, e, chosen without matrix, then that for the matrix. Each
path goes from strong to weak, warm-started, and ends where the log-loss of samples left out rises.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import scipy.optimize
from threadpoolctl import threadpool_limits

from focalcal.calibrators._focal_affine import FocalAffine, Layout

SCALE_PRECISION = 1.0
GAMMA_PRECISION = 4.0
"""Weak priors on log α and on γ, worth a few samples: they decide only where data are silent."""
VECTOR_PRECISIONS = (30.0, 3.0, 30.0)
"""Of δ, b and e·m at vector strength 1; the last in units of the mean square of m."""
VECTOR_PATH = (100.0, 10.0, 1.0, 0.1)
MATRIX_PATH = (1e4, 2e3, 450.0, 100.0, 30.0)
FOLDS = 4
FEW = 100
"""With fewer samples nothing is chosen: the strongest priors hold, without matrix."""
MANY = 2**18
"""Elements of x past which one fold chooses the strengths, not all: so many choose well enough."""
TOO_MANY = 2**24
"""Elements of x past which choosing costs too much: a strong prior holds, without matrix."""


@dataclasses.dataclass(frozen=True)
class Strength:
    """Vector strength, and the precision of the matrix entries or None for no matrix."""

    vector: float
    matrix: float | None = None


@dataclasses.dataclass(frozen=True)
class Shrunken:
    """The fitted parameters, and predictions for samples that a fit had not seen.

    `held_out`: indices (n,) of these samples and their log-probabilities (n, K).
    """

    theta: np.ndarray
    layout: Layout
    strength: Strength
    iterations: int
    converged: bool
    held_out: tuple[np.ndarray, np.ndarray]


@dataclasses.dataclass(frozen=True)
class _Step:
    """A strength, the log-loss of the folds left out, and the fit without each of them."""

    strength: Strength
    loss: float
    thetas: list[np.ndarray]


class ShrunkenFit:
    """Fits of one data set under priors of chosen strength.

    model: with the full layout, or without matrix where it is not wanted. log_scale: the log α at
    which the map is the identity, where its prior has its mean. folds: (N,) in 0..FOLDS−1.
    """

    def __init__(self, model: FocalAffine, log_scale: float, folds: np.ndarray) -> None:
        self.model, self.log_scale = model, log_scale
        squares = model.mean.astype(np.float64) ** 2
        self.mean_square = float(np.average(squares, weights=model.weights))
        self.iterations = 0
        self.groups = [np.flatnonzero(folds == f) for f in np.unique(folds)]
        self.inside: list[FocalAffine] = []
        self.outside: list[FocalAffine] = []

    def fit(self) -> Shrunken:
        with threadpool_limits(1, "blas"):  # the blocks already run on all cores
            return self._fit()

    def _fit(self) -> Shrunken:
        k, n = self.model.x.shape
        enough = float(self.model.weights.sum()) >= FEW and len(self.groups) == FOLDS
        if enough and n * k <= TOO_MANY:
            return self._fit_chosen(FOLDS if n * k <= MANY else 1)
        strength = Strength(VECTOR_PATH[1 if enough else 0])
        start = self._minimise(self.model, np.zeros(self.model.layout.size), None).x
        found = self._minimise(self.model, start, strength, final=True)
        return self._result(found, strength, (np.arange(n), self.model.log_proba(found.x)))

    def _fit_chosen(self, folds: int) -> Shrunken:
        everything = np.arange(self.model.x.shape[1])
        self.inside = [self.model.subset(np.setdiff1d(everything, rows)) for rows in self.groups]
        self.outside = [self.model.subset(rows) for rows in self.groups]
        best = self._choose(folds)
        found = self._minimise(self.model, np.mean(best.thetas, axis=0), best.strength, final=True)
        # For the other folds from the fit to all the data: near, and convex enough to forget it.
        thetas = best.thetas + [
            self._minimise(part, found.x, best.strength).x for part in self.inside[folds:]
        ]
        log_p = [part.log_proba(theta) for part, theta in zip(self.outside, thetas)]
        held_out = np.concatenate(self.groups), np.concatenate(log_p)
        return self._result(found, best.strength, held_out)

    def _result(
        self,
        found: scipy.optimize.OptimizeResult,
        strength: Strength,
        held_out: tuple[np.ndarray, np.ndarray],
    ) -> Shrunken:
        converged = bool(found.success)
        layout = self.model.layout
        return Shrunken(found.x, layout, strength, self.iterations, converged, held_out)

    def _choose(self, folds: int) -> _Step:
        zero = np.zeros(self.model.layout.size)
        starts = [self._minimise(part, zero, None).x for part in self.inside[:folds]]
        # α and γ alone are as good as the strongest prior
        best = _Step(Strength(VECTOR_PATH[0]), self._loss(starts), starts)
        best = self._walk([Strength(v) for v in VECTOR_PATH], best)
        if self.model.layout.full:
            vector = best.strength.vector
            best = self._walk([Strength(vector, m) for m in MATRIX_PATH], best)
        return best

    def _walk(self, path: list[Strength], best: _Step) -> _Step:
        """From the second step of the path on until the log-loss of the folds rises.

        The first and strongest step is looked at only where the second gains nothing.
        """
        start = best
        for strength in path[1:]:
            step = self._step(strength, best.thetas)
            if step.loss >= best.loss:
                break
            best = step
        if best is start:
            step = self._step(path[0], best.thetas)
            best = step if step.loss < best.loss else best
        return best

    def _step(self, strength: Strength, starts: list[np.ndarray]) -> _Step:
        thetas = [self._minimise(p, s, strength).x for p, s in zip(self.inside, starts)]
        return _Step(strength, self._loss(thetas), thetas)

    def _loss(self, thetas: list[np.ndarray]) -> float:
        return sum(part.nll(theta, False)[0] for part, theta in zip(self.outside, thetas))

    def _minimise(
        self, model: FocalAffine, start: np.ndarray, strength: Strength | None, final: bool = False
    ) -> scipy.optimize.OptimizeResult:
        """NLL + ½ Σ ρ(θ − origin)² by L-BFGS; without strength only α and γ are free.

        Each parameter is measured in its posterior standard deviation: without that, hundreds of
        iterations go by before the scale and the matrix move together.
        """
        layout = model.layout
        origin, precision = np.zeros((2, layout.size))
        origin[0], precision[:2] = self.log_scale, (SCALE_PRECISION, GAMMA_PRECISION)
        free = np.arange(layout.size) < 2
        if strength is not None:
            units = (1.0, 1.0, max(self.mean_square, 1e-12))
            for group, rho, unit in zip(layout.groups, VECTOR_PRECISIONS, units):
                precision[group], free[group] = strength.vector * rho * unit, True
            if strength.matrix is not None:
                free[1] = False  # a matrix can imitate γ, and the two together run away
                precision[layout.groups[3]] = strength.matrix
                free[layout.groups[3]] = ~np.eye(layout.n_classes, dtype=bool).ravel()
        full = strength is not None and strength.matrix is not None
        scale = 1.0 / np.sqrt(model.curvature(start, full) + precision + 1e-3)[free]

        def objective(v: np.ndarray) -> tuple[float, np.ndarray]:
            theta = start.copy()
            theta[free] = v * scale
            loss, gradient = model.nll(theta, full)
            away = theta - origin
            loss += 0.5 * float(precision @ away**2)
            gradient += precision * away
            return loss, gradient[free] * scale

        exact = model.x.dtype == np.float64
        tolerance = (1e-14 if exact else 1e-7) if final else (1e-11 if exact else 3e-6)
        most = 300 if final or exact else 40  # a choice between strengths needs no last digits
        options = {
            "maxiter": most,
            "maxcor": 10,
            "ftol": tolerance,
            "gtol": 1e-6 if exact else 1e-3,
        }
        found = scipy.optimize.minimize(
            objective, start[free] / scale, jac=True, method="L-BFGS-B", options=options
        )
        self.iterations += int(found.nit)
        theta = start.copy()
        theta[free] = found.x * scale
        found.x = theta
        return found


def folds_by_content(logits: np.ndarray, folds: int = FOLDS) -> np.ndarray:
    """Fold (N,) of each sample; samples with equal logits go together.

    Depends on the logits and not on their order, nor on what is added to all of a sample's logits,
    so that a weight equals repetition and shuffled data, or log-probabilities, give the same fit.
    Labels have no say: folds of equal class shares would make fitting the shares of a small sample
    look better than it is.
    """
    direction = np.random.default_rng(0).normal(size=logits.shape[1])
    direction -= direction.mean()
    values, which = np.unique(np.sum(logits * direction, axis=1), return_inverse=True)
    return np.random.default_rng(1).permutation(len(values))[which] % folds
