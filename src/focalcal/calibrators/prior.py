"""Prior shift: the same classifier where the class proportions differ from those in training."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from focalcal._arrays import Array, like, log_softmax, namespace, to_numpy
from focalcal.calibrators.base import Calibrator, FitData, combined
from focalcal.errors import FitWarning, InputError

Prior = float | Sequence[float] | None
TOLERANCE = 1e-9
MAX_STEPS = 10_000
UNSURE = 0.1
"""Standard error of a class's share above which `adapt` warns."""
_LEAST = 1e-12  # the smallest estimate of a prior: log 0 could not be exported as a bias


class PriorCorrection(Calibrator):
    """log p = log p_cal + log(target prior / train prior), normalised, after any calibrator.

    Exact under label shift: the class proportions change, p(x | y) does not, and p_cal is
    calibrated for the old proportions. The correction is a bias on the log-probabilities and is
    exported as such. It also undoes resampling of the training data: the train prior is then the
    one after resampling, the target prior the true one.

    train_prior: the class proportions that the calibrated probabilities are for, by default those
    of the labels given to `fit`; target_prior: the proportions to correct for, or None for no
    correction until `adapt` estimates them from logits without labels; calibrator: the name of the
    method that `fit` fits first (`wrap` takes a fitted one); task: "auto" or "multilabel", as in
    `Calibrator`. A prior has K entries with sum 1; for two classes the share of class 1 is enough.

    Fitted: `calibrator_`, `train_prior_` and `target_prior_` (K,).

    >>> z = np.log([[0.5, 0.5], [0.2, 0.8]] * 10)
    >>> undo = PriorCorrection(train_prior=0.5, target_prior=0.1).fit(z, [0, 1] * 10)
    >>> undo.predict_proba(z[:2])[:, 1].round(3).tolist()
    [0.1, 0.308]

    Saerens, Latinne & Decaestecker (2002), "Adjusting the outputs of a classifier to new a priori
    probabilities", equations 2.4 and 2.9.
    """

    method: ClassVar[str] = "prior-correction"
    summary: ClassVar[str] = "correction for other class proportions, after any calibrator"
    state: ClassVar[dict[str, str | None]] = {
        "calibrator_": None,
        "train_prior_": "K",
        "target_prior_": "K",
    }
    calibrator_: Calibrator

    def __init__(
        self,
        train_prior: Prior = None,
        target_prior: Prior = None,
        calibrator: str = "identity",
        task: str = "auto",
    ) -> None:
        self.train_prior = train_prior
        self.target_prior = target_prior
        self.calibrator = calibrator
        self.task = task

    def wrap(self, calibrator: Calibrator) -> Self:
        """Correct a fitted calibrator; nothing else is learnt.

        `train_prior` defaults to the class proportions of its calibration labels.
        """
        check_is_fitted(calibrator, "n_classes_")
        if calibrator.task == "multilabel" or self.task == "multilabel":
            raise InputError("expected a calibrator of one problem, got a multi-label one")
        self.n_classes_ = calibrator.n_classes_
        self._correct(calibrator, np.array(calibrator.diagnostics_.n_per_class, dtype=float))
        self.diagnostics_ = calibrator.diagnostics_
        self._forget()
        if hasattr(calibrator, "class_names_"):
            self.class_names_ = calibrator.class_names_
        return self

    def adapt(self, logits: Any) -> Self:
        """Estimate the target prior from logits (N, K) without labels, by EM, and correct for it.

        Warns if EM does not converge, or if the share of a class has a standard error above 0.1,
        as with classes that are hard to distinguish.
        """
        check_is_fitted(self, "n_classes_")
        if self.task == "multilabel":
            for j, one in enumerate(self.labels_):
                one.adapt(self._checked(logits)[:, j])
            return self
        log_proba = self.calibrator_.predict_log_proba(self._floored(self._checked(logits)))
        proba = to_numpy(namespace(log_proba).exp(log_proba)).astype(np.float64)
        self.target_prior_, converged = estimate_prior(proba, self.train_prior_)
        if not converged:
            warnings.warn(
                f"PriorCorrection: EM did not converge in {MAX_STEPS} steps; the estimate is "
                "uncertain, use more samples or a better classifier",
                FitWarning,
                stacklevel=2,
            )
        elif (error := _largest_error(proba, self.train_prior_, self.target_prior_)) > UNSURE:
            warnings.warn(
                "PriorCorrection: the classes are hard to distinguish: a share of the estimated "
                f"prior has a standard error of {min(error, 1):.2g}; use more samples or a better "
                "classifier",
                FitWarning,
                stacklevel=2,
            )
        return self

    def _check_params(self) -> None:
        from focalcal.calibrators import METHODS

        known = [name for name in METHODS if name != self.method]
        if self.calibrator not in known:
            raise InputError(
                f"expected calibrator as one of {', '.join(known)}; got {self.calibrator!r}"
            )

    def _floor_loss(self, data: FitData) -> float:
        from focalcal.calibrators import make

        return make(self.calibrator)._floor_loss(data)

    def _check_state(self) -> None:
        inner = self.calibrator_
        if not isinstance(inner, Calibrator) or inner.n_classes_ != self.n_classes_:
            raise InputError(f"expected a calibrator for {self.n_classes_} classes inside")
        check_prior(self.train_prior_, self.n_classes_, "train_prior_")
        check_prior(self.target_prior_, self.n_classes_, "target_prior_")

    def _fit(self, data: FitData) -> dict[str, Any]:
        from focalcal.calibrators import make

        # Repeated below, under this name.
        with warnings.catch_warnings(action="ignore", category=FitWarning):
            inner = make(self.calibrator).fit(data.logits, data.labels, data.weights)
        _, labels, weights = data.numpy()
        self._correct(inner, np.bincount(labels, weights, minlength=data.n_classes))
        return combined({inner.method: inner.diagnostics_})

    def _correct(self, calibrator: Calibrator, counts: np.ndarray) -> None:
        """Set the calibrator and both priors; label counts (K,) are the default train prior."""
        k = self.n_classes_
        if self.train_prior is None:
            counts = np.where(counts > 0, counts, counts.sum() / (counts.sum() + 1))
            self.train_prior_ = counts / counts.sum()
        else:
            self.train_prior_ = check_prior(self.train_prior, k, "train_prior")
        self.target_prior_ = self.train_prior_
        if self.target_prior is not None:
            self.target_prior_ = check_prior(self.target_prior, k, "target_prior")
        self.calibrator_ = calibrator

    def _log_proba(self, logits: Array) -> Array:
        log_proba = self.calibrator_._calibrated(logits)
        xp = namespace(log_proba)
        target, train = like(self.target_prior_, log_proba), like(self.train_prior_, log_proba)
        return log_softmax(log_proba + (xp.log(target) - xp.log(train)))


def check_prior(prior: Any, n_classes: int, name: str) -> np.ndarray:
    """Class proportions (K,) > 0 with sum 1; for two classes the share of class 1 is enough."""
    try:
        values = np.asarray(to_numpy(prior), dtype=np.float64)
    except (TypeError, ValueError):  # no numbers
        values = np.empty(0)
    if values.ndim == 0 and n_classes == 2:
        values = np.array([1 - values, values])
    good = values.shape == (n_classes,) and bool(np.all(values > 0))
    if not good or abs(float(values.sum()) - 1) > 1e-3:
        raise InputError(
            f"expected {name} as {n_classes} numbers > 0 with sum 1, got {prior!r}; "
            "give a class that hardly occurs a small share, such as 1e-6"
        )
    return values / values.sum()


def estimate_prior(proba: np.ndarray, train_prior: np.ndarray) -> tuple[np.ndarray, bool]:
    """The class proportions (K,) of highest likelihood for unlabelled samples, by EM.

    proba: calibrated probabilities (N, K) for `train_prior` (K,). The likelihood of q is that of
    the mixture Σ_k q_k·p(x | k), p(x | k) ∝ p_k(x)/train_k. It is concave, so EM finds its maximum.

    >>> prior, _ = estimate_prior(np.array([[0.9, 0.1]] * 3 + [[0.1, 0.9]]), np.array([0.5, 0.5]))
    >>> prior.round(4).tolist()
    [0.8125, 0.1875]
    """
    likelihood = proba / train_prior
    prior = train_prior
    for _ in range(MAX_STEPS):
        following = prior * (likelihood.T @ (1 / (likelihood @ prior))) / len(proba)
        moved = float(np.abs(following - prior).max())
        prior = np.maximum(following, _LEAST)
        if moved < TOLERANCE:
            return prior / prior.sum(), True
    return prior / prior.sum(), False


def _largest_error(proba: np.ndarray, train_prior: np.ndarray, prior: np.ndarray) -> float:
    """The largest standard error of an estimated share, by the observed information."""
    likelihood = proba / train_prior
    score = likelihood / (likelihood @ prior)[:, None]
    k = len(prior)
    centre = np.eye(k) - 1 / k  # shares sum to 1
    values, vectors = np.linalg.eigh(centre @ (score.T @ score) @ centre)
    values, vectors = values[1:], vectors[:, 1:]  # the first belongs to the sum
    return float(np.sqrt((vectors**2 / np.maximum(values, 1e-12)).sum(axis=1).max()))
