"""The same statistics for data larger than memory: merged partial sums of parquet files.

>>> from focalcal import scale
>>> scale.fit(scale.Source.open("preds/*.parquet"), "temperature")  # doctest: +SKIP
ScaledFit(calibrator=TemperatureScaling(), passes=2, n=100000000)
"""

from __future__ import annotations

from focalcal.scale.application import apply
from focalcal.scale.engines import DaskEngine, Engine, StreamEngine, open_engine
from focalcal.scale.evaluation import statistics, statistics_by
from focalcal.scale.fitting import METHODS, ScaledFit, fit
from focalcal.scale.source import Partition, Source

__all__ = [
    "METHODS",
    "DaskEngine",
    "Engine",
    "Partition",
    "ScaledFit",
    "Source",
    "StreamEngine",
    "apply",
    "fit",
    "open_engine",
    "statistics",
    "statistics_by",
]
