"""Folds for cross-validation that do not depend on the order of samples or classes.

A sample's fold is a hash of its label's distance to the largest logit and of two means over the
distances of all logits. Adding a constant to all logits of a sample does not change it, and
rounding to float32 hardly ever does.
"""

from __future__ import annotations

import numpy as np

RESOLUTION = 2.0**-14
"""Numbers that differ by less, in units of the mean distance, are equal up to rounding."""
MOST_UNITS = 1000
"""Larger groups of equal samples are divided into this many parts."""


def fold_shares(
    logits: np.ndarray, labels: np.ndarray, weights: np.ndarray, folds: int, salt: int = 0
) -> np.ndarray:
    """The share (folds, N) of each sample that each fold leaves out; columns sum to 1.

    Equal samples are merged into one with their total weight. Each unit of weight is assigned to a
    fold at random, so that weights equal repetition, and so that for classifiers with few distinct
    outputs (nearest neighbours, small forests) folds resemble the data. Folds are not stratified:
    with equal class shares, fitting the shares of a small sample would look better than it is.
    salt: another number gives other folds.

    >>> z = np.array([[0.0, 1.0], [2.0, 0.0], [0.0, 1.0]])
    >>> fold_shares(z, np.array([0, 0, 0]), np.ones(3), 2).sum(axis=0)
    array([1., 1., 1.])
    """
    top = logits.max(axis=1, keepdims=True)
    below = np.minimum(top - logits, 1e6)  # −∞ stands for a probability of zero
    # A power of two, which small changes of the mean do not affect.
    unit = 2.0 ** np.rint(np.log2(max(float(below.mean()), 1e-30)))
    own = np.take_along_axis(below, labels[:, None], axis=1)[:, 0]
    ratio = below / unit
    means = np.log1p(ratio).mean(axis=1), (ratio / (1 + ratio)).mean(axis=1)
    content = np.stack([*means, own / unit], axis=1)
    # An arbitrary offset keeps multiples of round numbers away from the edges.
    cells = np.floor(content / RESOLUTION + 0.3779).astype(np.int64)
    distinct, group = np.unique(cells, axis=0, return_inverse=True)
    group = group.ravel()
    total = np.bincount(group, weights)
    units = np.clip(np.ceil(total), 1, MOST_UNITS).astype(np.int64)
    owner = np.repeat(np.arange(len(units)), units)
    number = np.arange(len(owner)) - np.repeat(np.cumsum(units) - units, units)
    seeds = np.full(len(distinct), salt, np.uint64)
    for column in distinct.T:
        seeds = _mixed(seeds ^ column.astype(np.uint64))
    fold = _mixed(seeds[owner] + number.astype(np.uint64)) % np.uint64(folds)
    # The last unit of a fractional total is a fraction.
    size = np.minimum(1.0, np.maximum(total, 1e-300)[owner] - number)
    size = np.where(units[owner] == MOST_UNITS, 1.0, size)
    shares = np.zeros((folds, len(units)))
    np.add.at(shares, (fold.astype(np.int64), owner), size)
    shares /= shares.sum(axis=0)
    return shares[:, group]


def _mixed(x: np.ndarray) -> np.ndarray:
    """splitmix64, a 64-bit hash (Steele et al., OOPSLA 2014)."""
    with np.errstate(over="ignore"):
        x = x + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))
