"""A temperature for each slice, shrunk to the common one, if this helps on held-out samples.

Each slice has its own file beside that of the common calibrator, and every file is an ordinary
calibrator: `cal.json`, and `cal.country=PT.json` for the rows where country is PT.
"""

from __future__ import annotations

import copy
import dataclasses
import glob
import math
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import numpy as np

from focalcal._arrays import log_softmax, to_numpy, two_columns
from focalcal._labels import encode
from focalcal.calibrators._newton import fit_inverse_temperature, moment_sums
from focalcal.calibrators.base import Calibrator
from focalcal.calibrators.temperature import TemperatureScaling
from focalcal.errors import InputError
from focalcal.metrics.sample import slice_names

LEAST = 100
"""The fewest samples for a slice to have its own temperature."""
LONGEST = 211
"""Bytes of a file name; file systems allow 255, some of which a temporary name needs."""


@dataclasses.dataclass(frozen=True)
class SliceFit:
    """Calibrators by slice.

    common: fitted to all samples; slices: the calibrator of each slice with at least 100 samples,
    empty if the gain does not exceed its standard error; gain: the mean reduction of the held-out
    NLL; error: its standard error.
    """

    common: TemperatureScaling
    slices: dict[str, TemperatureScaling]
    gain: float
    error: float


def fit_by(logits: Any, y: Any, values: Any, *, folds: int = 5, seed: int = 0) -> SliceFit:
    """Temperatures of the slices of `values` (N,), if they help in cross-validation.

    ln T of a slice is shrunk to that of all samples by the share of its variance that is noise
    (empirical Bayes). The shrunk temperatures are compared with the common one on held-out folds.

    logits: (N, K); y: labels (N,); values: (N,), what defines the slices; folds: of the
    cross-validation; seed: of the folds.

    >>> rng = np.random.default_rng(0)
    >>> z = 2 * rng.normal(size=(4000, 3))
    >>> country = np.repeat(["FI", "PT"], 2000)
    >>> slope = np.where(country == "PT", 0.4, 1.0)[:, None]
    >>> y = np.argmax(slope * z + rng.gumbel(size=z.shape), axis=1)
    >>> found = fit_by(z, y, country)
    >>> {name: round(c.temperature_, 1) for name, c in found.slices.items()}
    {'FI': 1.0, 'PT': 2.5}

    Efron & Morris 1975.
    """
    z = to_numpy(two_columns(logits)).astype(np.float64)
    y, class_names = encode(y, z.shape[1], name="y")
    if np.shape(values) != (len(z),):
        raise InputError(f"expected a column of shape ({len(z)},), got {np.shape(values)}")
    names, index = np.unique(slice_names(values), return_inverse=True)
    enough = np.bincount(index) >= LEAST
    common = TemperatureScaling().fit(logits, y)
    if class_names is not None:
        common.class_names_ = class_names
    y = to_numpy(y)
    z = common._floored(z)  # where there are probabilities of zero
    fold = np.random.default_rng(seed).permutation(len(z)) % folds
    saved = np.zeros(len(z))
    for k in range(folds):
        rest, held = fold != k, fold == k
        one, own = _log_temperatures(z[rest], y[rest], index[rest], enough)
        at = own[index[held]]
        before = _losses(z[held], y[held], np.full(len(at), one))
        saved[held] = before - _losses(z[held], y[held], at)
    gain, error = float(saved.mean()), float(saved.std(ddof=1) / math.sqrt(len(z)))
    slices = {}
    if gain > error:
        one, own = _log_temperatures(z, y, index, enough)
        for name, t in zip(names[own != one].tolist(), own[own != one].tolist()):
            slices[name] = copy.deepcopy(common)
            slices[name].temperature_ = math.exp(t)
    return SliceFit(common, slices, gain, error)


def _log_temperatures(
    z: np.ndarray, y: np.ndarray, index: np.ndarray, enough: np.ndarray
) -> tuple[float, np.ndarray]:
    """ln T of all samples, and of each slice shrunk to it; small slices get the common one.

    All get it where it is infinite: logits worse than chance leave nothing to shrink to.
    """
    one = math.log(fit_inverse_temperature(z, y, None).temperature)
    logs, noise = np.full(len(enough), one), np.full(len(enough), np.inf)
    if math.isinf(one):
        return one, logs
    for i in np.flatnonzero(enough):
        data = (z[index == i], y[index == i], None)
        beta = fit_inverse_temperature(*data).beta
        information = float(beta**2 * moment_sums(*data, beta)[2])
        if information > 0:
            logs[i], noise[i] = -math.log(beta), 1 / information
    own = np.isfinite(noise)
    between = float(np.mean((logs[own] - one) ** 2 - noise[own])) if own.any() else 0.0
    between = max(between, 0.0)
    return one, one + (logs - one) * np.where(own, between / (between + noise), 0.0)


def _losses(z: np.ndarray, y: np.ndarray, log_temperature: np.ndarray) -> np.ndarray:
    return -log_softmax(z / np.exp(log_temperature)[:, None])[np.arange(len(y)), y]


def save_slices(found: SliceFit, path: Path, column: str) -> list[Path]:
    """Write the common calibrator and those of the slices; remove files of earlier slices."""
    written = {path: found.common}
    for value, calibrator in found.slices.items():
        name = f"{_stem(path, column)}{quote(value, safe=' ')}.json"
        if len(name.encode()) > LONGEST:
            raise InputError(
                f"expected values of {column} that fit into file names, got {value!r}; slice by a "
                "column of short codes"
            )
        written[path.with_name(name)] = calibrator
    for old in _files(path, column).values():
        old.unlink()
    for file, calibrator in written.items():
        calibrator.save(file)
    return list(written)


def load_slices(path: Path, column: str) -> dict[str, Calibrator]:
    """The calibrators of a column's slices, by value, found beside the common file."""
    from focalcal.calibrators import load

    return {value: load(file) for value, file in _files(path, column).items()}


def beside(path: Path) -> list[Path]:
    """The files of slices of any column beside the common file."""
    return sorted(path.parent.glob(f"{glob.escape(path.stem)}.*=*.json"))


def _stem(path: Path, column: str) -> str:
    return f"{path.stem}.{quote(column, safe=' ')}="


def _files(path: Path, column: str) -> dict[str, Path]:
    start = _stem(path, column)
    files = [file for file in beside(path) if file.name.startswith(start)]
    return {unquote(file.stem.removeprefix(start)): file for file in files}
