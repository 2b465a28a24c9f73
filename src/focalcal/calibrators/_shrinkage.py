"""Fitting with shrinkage chosen by cross-validation along a path.

Every group of parameters has a Gaussian prior around temperature scaling. Two numbers set their
widths: the strength for the vectors δ, b, e, chosen without a matrix, then that for the matrix.
Each path goes from strong to weak, warm-started, and ends where the held-out log-loss rises; a
weaker prior must be better by more than chance.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.optimize import OptimizeResult
from threadpoolctl import threadpool_limits

from focalcal.calibrators._focal_affine import FocalAffine, minimise, prior

SCALE_PRECISION = 1.0
GAMMA_PRECISION = 8.0
"""Weak priors on log α and on u of γ, worth a few samples: they decide if the data do not."""
VECTOR_PRECISIONS = (30.0, 0.3, 30.0)
"""Of δ, b and e·m at vector strength 1; the last in units of the mean square of m."""
VECTOR_PATH = (100.0, 10.0, 1.0, 0.1)
MATRIX_PATH = (1e4, 2e3, 450.0, 100.0, 30.0)
ENOUGH_PER_CLASS = 30
"""With fewer samples per class only the two strongest vector priors are tried."""
FOLDS = 4
TOLERANCE = 1.0
"""A weaker prior must be better by more than this many standard errors."""
FEW = 100
"""With fewer samples nothing is chosen: FEW_STRENGTH is used, without a matrix."""
FEW_STRENGTH = 30.0
MANY = 2**18
"""Elements of x past which one fold is enough to choose the strengths."""
VERY_MANY = 2**21
"""Elements past which a quarter is fitted, another scored, and the last curve sees one fold."""
TOO_MANY = 2**24
"""Elements of x past which choosing is too slow: a strong prior is used, without a matrix."""


class Strength(NamedTuple):
    """Vector strength, and precision of the matrix entries; None for no vectors, no matrix."""

    vector: float | None = None
    matrix: float | None = None


class Shrunken(NamedTuple):
    """The fitted parameters and held-out predictions.

    log_p: (n, K) for samples `rows` (n,), by fits without the `shares` (n,) of them.
    """

    theta: np.ndarray
    iterations: int
    converged: bool
    log_p: np.ndarray
    rows: np.ndarray
    shares: np.ndarray


class _Step(NamedTuple):
    """A strength, the held-out losses, their weights, and the fit without each fold."""

    strength: Strength
    losses: np.ndarray
    sizes: np.ndarray
    thetas: list[np.ndarray]

    def loss(self) -> float:
        return float(self.sizes @ self.losses)


class ShrunkenFit:
    """Fits of one data set under priors of chosen strength.

    matrix: whether there may be one; log_scale: the log α at which the map is the identity, the
    mean of its prior; shares: (folds, N), what each fold leaves out of each sample.
    """

    def __init__(
        self, model: FocalAffine, matrix: bool, log_scale: float, shares: np.ndarray
    ) -> None:
        self.model, self.matrix, self.log_scale = model, matrix, log_scale
        squares = model.mean.astype(np.float64) ** 2
        self.mean_square = float(np.average(squares, weights=model.weights))
        self.iterations = 0
        self.curvatures: dict[tuple[bool, int], np.ndarray] = {}
        self.shares = shares[(shares > 0).any(axis=1) & (shares < 1).any(axis=1)]
        self.start = np.zeros(2 + 3 * model.x.shape[1])

    def fit(self) -> Shrunken:
        with threadpool_limits(1, "blas"):  # the blocks already run on all cores
            enough = float(self.model.weights.sum()) >= FEW and len(self.shares) > 0
            if enough and self.model.x.size <= TOO_MANY:
                return self._fit_chosen()
            start = self._minimise(self.model, self.start, Strength()).x
            strength = Strength(VECTOR_PATH[1] if enough else FEW_STRENGTH)
            found = self._minimise(self.model, start, strength, final=True)
            n, log_p = len(self.model.labels), self.model.log_proba(found.x)
            return self._result(found, log_p, np.arange(n), np.ones(n))

    def _fit_chosen(self) -> Shrunken:
        model, shares = self.model, self.shares
        from_parts = model.x.size > VERY_MANY and len(shares) > 1
        if from_parts:
            self.inside, shares = [model.part(shares[1])], shares[:1]
        else:
            self.inside = [model.part(1 - share) for share in shares]
        self.outside = [model.part(share) for share in shares]
        best = self._choose(len(self.inside) if model.x.size <= MANY else 1)
        found = self._minimise(model, np.mean(best.thetas, axis=0), best.strength, final=True)
        # The other folds start from the fit to all data: it is close, and the start is forgotten.
        known = [] if from_parts else best.thetas
        others = [model.part(1 - shares[0])] if from_parts else self.inside[len(known) :]
        thetas = known + [self._minimise(part, found.x, best.strength).x for part in others]
        log_p = [part.log_proba(theta) for part, theta in zip(self.outside, thetas)]
        fold, rows = np.nonzero(shares > 0)
        return self._result(found, np.concatenate(log_p), rows, shares[fold, rows])

    def _result(self, found: OptimizeResult, *held_out: np.ndarray) -> Shrunken:
        return Shrunken(found.x, self.iterations, bool(found.success), *held_out)

    def _choose(self, folds: int) -> _Step:
        starts = [self._minimise(p, self.start, Strength()).x for p in self.inside[:folds]]
        # α and γ alone are as good as the strongest prior
        best = self._scored(Strength(VECTOR_PATH[0]), starts)
        enough = self.model.weights.sum() >= ENOUGH_PER_CLASS * self.model.x.shape[1]
        path = VECTOR_PATH if enough else VECTOR_PATH[:2]
        best = self._walk([Strength(v) for v in path], best)
        if self.matrix:
            vector = best.strength.vector
            best = self._walk([Strength(vector, m) for m in MATRIX_PATH], best)
        return best

    def _walk(self, path: list[Strength], start: _Step) -> _Step:
        """The strongest step of the path whose log-loss is within TOLERANCE of the best.

        The walk ends where the log-loss rises. Its first step is tried only if the second gains
        nothing.
        """
        steps = [start]
        for strength in path[1:]:
            steps.append(self._step(strength, steps[-1].thetas))
            if steps[-1].loss() >= steps[-2].loss():
                break
        best = min(steps, key=_Step.loss)
        if best is start:
            steps.insert(1, self._step(path[0], best.thetas))
            best = min(steps, key=_Step.loss)
        return next(step for step in steps if not_worse(step.losses - best.losses, best.sizes))

    def _step(self, strength: Strength, starts: list[np.ndarray]) -> _Step:
        thetas = [self._minimise(p, s, strength).x for p, s in zip(self.inside, starts)]
        return self._scored(strength, thetas)

    def _scored(self, strength: Strength, thetas: list[np.ndarray]) -> _Step:
        parts = list(zip(self.outside, thetas))
        losses = np.concatenate([part.losses(theta) for part, theta in parts])
        return _Step(strength, losses, np.concatenate([p.weights for p, _ in parts]), thetas)

    def _minimise(
        self, model: FocalAffine, start: np.ndarray, strength: Strength, final: bool = False
    ) -> OptimizeResult:
        """The fit under priors of a strength; α is always free, and γ without a matrix."""
        k, vectors = model.x.shape[1], [None] * 3
        if strength.vector is not None:
            units = (1.0, 1.0, max(self.mean_square, 1e-12))
            vectors = [strength.vector * rho * u for rho, u in zip(VECTOR_PRECISIONS, units)]
        # A matrix can imitate γ, and the two together run away.
        gamma = GAMMA_PRECISION if strength.matrix is None else None
        free, precision = prior(k, SCALE_PRECISION, gamma, *vectors, strength.matrix)
        start = np.pad(start, (0, len(free) - len(start)))
        origin = np.zeros(len(start))
        origin[0] = self.log_scale
        # One curvature serves a whole path: solutions are near, and it need not be exact.
        total, stage = float(model.weights.sum()), (strength.vector is None, len(start))
        if stage not in self.curvatures:
            self.curvatures[stage] = model.curvature(start) / total
        root = np.sqrt(total * self.curvatures[stage] + precision + 1e-3)[free]
        exact = model.x.dtype == np.float64
        # float32 means many samples, whose noise is far above these shares of the loss.
        options = {
            "maxiter": 300 if final or exact else 40,
            "ftol": (1e-14 if exact else 3e-6) if final else (1e-11 if exact else 1e-4),
            "gtol": 1e-6 if exact else 1e-3,
        }
        found = minimise(model.nll, start, free, (origin, precision), root, **options)
        self.iterations += int(found.nit)
        return found


def not_worse(excess: np.ndarray, sizes: np.ndarray) -> bool:
    """Whether the mean excess loss (n,) is within TOLERANCE standard errors of zero."""
    total = sizes.sum()
    mean = sizes @ excess / total
    return float(mean) <= TOLERANCE * float(np.sqrt(sizes @ (excess - mean) ** 2) / total)
