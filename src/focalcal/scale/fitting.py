"""Fitting out of core: merged sums over samples, in few passes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from operator import add
from typing import Any

import numpy as np

from focalcal import calibrators
from focalcal._arrays import two_columns
from focalcal.calibrators import Calibrator
from focalcal.calibrators.sums import SampledData, fit_sums
from focalcal.errors import InputError
from focalcal.scale.engines import Engine, Progress, StreamEngine
from focalcal.scale.source import Partition, Source

METHODS = tuple(name for name, kind in calibrators.METHODS.items() if kind.takes_sums)
"""The methods whose fit needs only sums over samples; fit the others in memory, to a sample."""
SAMPLE_ROWS = 2**17


@dataclasses.dataclass(frozen=True)
class ScaledFit:
    """A fitted calibrator and the number of passes over the predictions (besides the sample)."""

    calibrator: Calibrator
    passes: int
    n: int


def fit(
    source: Source,
    method: str = "temperature",
    engine: Engine | None = None,
    *,
    floor: float | None = None,
    sample_rows: int = SAMPLE_ROWS,
    progress: Progress | None = None,
    **params: Any,
) -> ScaledFit:
    """Fit a calibrator (see METHODS; `params` as in memory) to all predictions of a source.

    floor: for probabilities of exactly zero, as in `Predictions.as_logits`; learnt from the sample
        if it has some and none is given.
    sample_rows: size of the sample that the search starts from; the result does not depend on it,
        except that a learnt floor does, and that focal temperature may end at another local
        optimum after a small sample.

    The temperature is that of a fit in memory to 1e-9. Focal temperature and structured scaling
    reach the same NLL to 3e-8. Searches by ECE find the same grid point; those by equal-mass ECE
    one whose error is within its histogram's bound of the best.
    """
    if method not in METHODS:
        raise InputError(
            f"expected a method of {', '.join(METHODS)}; got {method!r}, which is fitted in memory:"
            " leave out the engine and give one file, for example a sample of the predictions"
        )
    engine = engine or StreamEngine()
    calibrator = calibrators.make(method, **params)
    sample = source.sample(sample_rows)

    def total(function: Callable[..., np.ndarray], **settings: Any) -> np.ndarray:
        work = partial(partition_sums, function=function, floor=floor, settings=settings)
        return engine.map_reduce(work, source.partitions, add, progress)

    logits = two_columns(sample.as_logits(floor))
    started = engine.passes
    fit_sums(calibrator, SampledData(logits, sample.labels, None, source.n, total))
    return ScaledFit(calibrator, engine.passes - started, source.n)


def partition_sums(
    partition: Partition,
    function: Callable[..., np.ndarray],
    floor: float | None,
    settings: dict[str, Any],
) -> np.ndarray:
    """Sums of one row group."""
    total: Any = 0.0
    for batch in partition.batches():
        total = total + function(two_columns(batch.as_logits(floor)), batch.labels, **settings)
    return total
