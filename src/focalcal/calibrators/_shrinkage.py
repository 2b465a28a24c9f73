"""Fitting with shrinkage that the calibration data choose: cross-validation along a path.

Every group of parameters has a Gaussian prior around temperature scaling. Two numbers set their
widths: the strength for the vectors δ, b, e, chosen without matrix, then that for the matrix. Each
path goes from strong to weak, warm-started, and ends where the log-loss of samples left out rises;
a weaker prior must be better by more than chance.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import scipy.optimize
from threadpoolctl import threadpool_limits

from focalcal.calibrators._focal_affine import FocalAffine, Layout

SCALE_PRECISION = 1.0
GAMMA_PRECISION = 8.0
"""Weak priors on log α and on u of γ, worth a few samples: they decide where data are silent."""
VECTOR_PRECISIONS = (30.0, 0.3, 30.0)
"""Of δ, b and e·m at vector strength 1; the last in units of the mean square of m."""
VECTOR_PATH = (100.0, 10.0, 1.0, 0.1)
MATRIX_PATH = (1e4, 2e3, 450.0, 100.0, 30.0)
ENOUGH_PER_CLASS = 30
"""With fewer samples per class the two strongest priors of the vectors are all there is."""
FOLDS = 4
TOLERANCE = 1.0
"""Standard errors by which a weaker prior may be better and yet not be chosen."""
FEW = 100
"""With fewer samples nothing is chosen: the strongest priors hold, without matrix."""
MANY = 2**18
"""Elements of x past which one fold chooses the strengths, not all: so many choose well enough."""
VERY_MANY = 2**21
"""Elements past which a quarter is fitted, another scored, and the last curve sees one fold."""
TOO_MANY = 2**24
"""Elements of x past which choosing costs too much: a strong prior holds, without matrix."""


@dataclasses.dataclass(frozen=True)
class Strength:
    """Vector strength, and the precision of the matrix entries or None for no matrix."""

    vector: float
    matrix: float | None = None


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """Predictions (n, K) by fits without these rows (n,), and the shares (n,) left out."""

    rows: np.ndarray
    log_p: np.ndarray
    shares: np.ndarray


@dataclasses.dataclass(frozen=True)
class Shrunken:
    """The fitted parameters, and predictions for samples that a fit had not seen."""

    theta: np.ndarray
    layout: Layout
    strength: Strength
    iterations: int
    converged: bool
    held_out: HeldOut


@dataclasses.dataclass(frozen=True)
class _Step:
    """A strength, the losses of samples left out, their weights, and the fit without each fold."""

    strength: Strength
    losses: np.ndarray
    sizes: np.ndarray
    thetas: list[np.ndarray]

    @property
    def loss(self) -> float:
        return float(self.sizes @ self.losses)


class ShrunkenFit:
    """Fits of one data set under priors of chosen strength.

    model: with the full layout, or without matrix where it is not wanted. log_scale: the log α at
    which the map is the identity, where its prior has its mean. shares: (folds, N), what each
    fold leaves out of each sample.
    """

    def __init__(self, model: FocalAffine, log_scale: float, shares: np.ndarray) -> None:
        self.model, self.log_scale = model, log_scale
        squares = model.mean.astype(np.float64) ** 2
        self.mean_square = float(np.average(squares, weights=model.weights))
        self.iterations = 0
        self.curvatures: dict[tuple[bool, bool], np.ndarray] = {}
        self.shares = shares[(shares > 0).any(axis=1) & (shares < 1).any(axis=1)]
        self.inside: list[FocalAffine] = []
        self.outside: list[FocalAffine] = []

    def fit(self) -> Shrunken:
        with threadpool_limits(1, "blas"):  # the blocks already run on all cores
            return self._fit()

    def _fit(self) -> Shrunken:
        k, n = self.model.x.shape
        enough = float(self.model.weights.sum()) >= FEW and len(self.shares) > 0
        if enough and n * k <= TOO_MANY:
            return self._fit_chosen(len(self.shares) if n * k <= MANY else 1)
        strength = Strength(VECTOR_PATH[1 if enough else 0])
        start = self._minimise(self.model, np.zeros(self.model.layout.size), None).x
        found = self._minimise(self.model, start, strength, final=True)
        held_out = HeldOut(np.arange(n), self.model.log_proba(found.x), np.ones(n))
        return self._result(found, strength, held_out)

    def _fit_chosen(self, folds: int) -> Shrunken:
        if self.model.x.size > VERY_MANY and len(self.shares) > 1:
            return self._fit_from_parts()
        self.inside = [self.model.part(1 - share) for share in self.shares]
        self.outside = [self.model.part(share) for share in self.shares]
        best = self._choose(folds)
        found = self._minimise(self.model, np.mean(best.thetas, axis=0), best.strength, final=True)
        # For the other folds from the fit to all the data: near, and convex enough to forget it.
        thetas = best.thetas + [
            self._minimise(part, found.x, best.strength).x for part in self.inside[folds:]
        ]
        log_p = [part.log_proba(theta) for part, theta in zip(self.outside, thetas)]
        fold, rows = np.nonzero(self.shares > 0)
        held_out = HeldOut(rows, np.concatenate(log_p), self.shares[fold, rows])
        return self._result(found, best.strength, held_out)

    def _fit_from_parts(self) -> Shrunken:
        share = self.shares[0]
        self.inside, self.outside = [self.model.part(self.shares[1])], [self.model.part(share)]
        best = self._choose(1)
        found = self._minimise(self.model, best.thetas[0], best.strength, final=True)
        without = self._minimise(self.model.part(1 - share), found.x, best.strength).x
        rows = np.flatnonzero(share > 0)
        held_out = HeldOut(rows, self.outside[0].log_proba(without), share[rows])
        return self._result(found, best.strength, held_out)

    def _result(
        self,
        found: scipy.optimize.OptimizeResult,
        strength: Strength,
        held_out: HeldOut,
    ) -> Shrunken:
        converged = bool(found.success)
        layout = self.model.layout
        return Shrunken(found.x, layout, strength, self.iterations, converged, held_out)

    def _choose(self, folds: int) -> _Step:
        zero = np.zeros(self.model.layout.size)
        starts = [self._minimise(part, zero, None).x for part in self.inside[:folds]]
        # α and γ alone are as good as the strongest prior
        best = self._scored(Strength(VECTOR_PATH[0]), starts)
        enough = self.model.weights.sum() >= ENOUGH_PER_CLASS * self.model.layout.n_classes
        path = VECTOR_PATH if enough else VECTOR_PATH[:2]
        best = self._walk([Strength(v) for v in path], best)
        if self.model.layout.full:
            vector = best.strength.vector
            best = self._walk([Strength(vector, m) for m in MATRIX_PATH], best)
        return best

    def _walk(self, path: list[Strength], start: _Step) -> _Step:
        """The strongest step of the path whose log-loss is within TOLERANCE of the best.

        The walk ends where the log-loss rises. Its first step is looked at only where the second
        gains nothing.
        """
        steps = [start]
        for strength in path[1:]:
            steps.append(self._step(strength, steps[-1].thetas))
            if steps[-1].loss >= steps[-2].loss:
                break
        best = min(steps, key=lambda step: step.loss)
        if best is start:
            steps.insert(1, self._step(path[0], best.thetas))
            best = min(steps, key=lambda step: step.loss)
        return next(step for step in steps if not_worse(step.losses - best.losses, best.sizes))

    def _step(self, strength: Strength, starts: list[np.ndarray]) -> _Step:
        thetas = [self._minimise(p, s, strength).x for p, s in zip(self.inside, starts)]
        return self._scored(strength, thetas)

    def _scored(self, strength: Strength, thetas: list[np.ndarray]) -> _Step:
        parts = list(zip(self.outside, thetas))
        losses = np.concatenate([part.losses(theta) for part, theta in parts])
        return _Step(strength, losses, np.concatenate([p.weights for p, _ in parts]), thetas)

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
        # One curvature serves a whole path: solutions are near, and it need not be exact.
        total, stage = float(model.weights.sum()), (strength is None, full)
        if stage not in self.curvatures:
            self.curvatures[stage] = model.curvature(start, full) / total
        scale = 1.0 / np.sqrt(total * self.curvatures[stage] + precision + 1e-3)[free]

        def objective(v: np.ndarray) -> tuple[float, np.ndarray]:
            theta = start.copy()
            theta[free] = v * scale
            loss, gradient = model.nll(theta, full)
            away = theta - origin
            loss += 0.5 * float(precision @ away**2)
            gradient += precision * away
            return loss, gradient[free] * scale

        exact = model.x.dtype == np.float64
        # In float32 there are many samples, and noise is far above these shares of the loss.
        tolerance = (1e-14 if exact else 3e-6) if final else (1e-11 if exact else 1e-4)
        most = 300 if final or exact else 40
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


def not_worse(excess: np.ndarray, sizes: np.ndarray) -> bool:
    """Whether the mean excess loss (n,) is within TOLERANCE standard errors of zero."""
    total = sizes.sum()
    mean = sizes @ excess / total
    return float(mean) <= TOLERANCE * float(np.sqrt(sizes @ (excess - mean) ** 2) / total)
