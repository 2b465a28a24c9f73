"""Post-hoc calibrators: fit(logits, y), predict_proba(logits), saved as JSON.

>>> "temperature" in METHODS
True
"""

from __future__ import annotations

from typing import Any

from focalcal.calibrators import persistence as _persistence
from focalcal.calibrators.affine import (
    DirichletScaling,
    MatrixScaling,
    StructuredMatrixScaling,
    StructuredVectorScaling,
    VectorScaling,
)
from focalcal.calibrators.auto import AutoCalibrator
from focalcal.calibrators.base import Calibrator, Diagnostics
from focalcal.calibrators.binary import BetaCalibration, PlattScaling, QuadraticScaling
from focalcal.calibrators.binning import (
    BayesianBinning,
    HistogramBinning,
    IsotonicCalibration,
    VennAbers,
)
from focalcal.calibrators.focal import FocalCalibration, FocalTemperatureScaling
from focalcal.calibrators.focal_structured import FocalStructuredScaling
from focalcal.calibrators.improvement import Improvement, improvement
from focalcal.calibrators.prior import PriorCorrection
from focalcal.calibrators.spline import SplineCalibration
from focalcal.calibrators.temperature import (
    EnsembleTemperatureScaling,
    Identity,
    TemperatureScaling,
)
from focalcal.calibrators.to_onnx import attach_to_onnx
from focalcal.calibrators.wrappers import CalibratedClassifier
from focalcal.errors import InputError

METHODS: dict[str, type[Calibrator]] = {
    kind.method: kind
    for kind in (
        Identity,
        TemperatureScaling,
        FocalCalibration,
        FocalTemperatureScaling,
        EnsembleTemperatureScaling,
        VectorScaling,
        MatrixScaling,
        DirichletScaling,
        StructuredVectorScaling,
        StructuredMatrixScaling,
        FocalStructuredScaling,
        PlattScaling,
        BetaCalibration,
        QuadraticScaling,
        IsotonicCalibration,
        HistogramBinning,
        BayesianBinning,
        SplineCalibration,
        VennAbers,
        AutoCalibrator,
        PriorCorrection,
    )
}
"""Every calibrator by its name on the command line and in saved files."""

__all__ = [
    "METHODS",
    "AutoCalibrator",
    "BayesianBinning",
    "BetaCalibration",
    "CalibratedClassifier",
    "Calibrator",
    "Diagnostics",
    "DirichletScaling",
    "EnsembleTemperatureScaling",
    "FocalCalibration",
    "FocalStructuredScaling",
    "FocalTemperatureScaling",
    "HistogramBinning",
    "Identity",
    "Improvement",
    "IsotonicCalibration",
    "MatrixScaling",
    "PlattScaling",
    "PriorCorrection",
    "QuadraticScaling",
    "SplineCalibration",
    "StructuredMatrixScaling",
    "StructuredVectorScaling",
    "TemperatureScaling",
    "VectorScaling",
    "VennAbers",
    "attach_to_onnx",
    "improvement",
    "load",
    "make",
]


def make(name: str, **params: Any) -> Calibrator:
    """An unfitted calibrator by its registered name.

    name: a key of METHODS; params: its settings.

    >>> make("temperature", objective="ece")
    TemperatureScaling(objective='ece')
    """
    if name not in METHODS:
        raise InputError(f"expected a method of {', '.join(METHODS)}; got {name!r}")
    kind = METHODS[name]
    known = kind().get_params(deep=False)
    unknown = [p for p in params if p not in known]
    if unknown:
        raise InputError(
            f"expected settings of {name} ({', '.join(known)}), got {', '.join(unknown)}"
        )
    return kind(**params)


def load(path: Any) -> Calibrator:
    """A fitted calibrator from a file that `save` wrote; FileFormatError for any other content.

    path: of the JSON file.
    """
    return _persistence.load(path, METHODS)


def __getattr__(name: str) -> Any:
    if name == "CalibratedModule":  # needs torch, so it is imported on access only
        from focalcal.calibrators.to_torch import CalibratedModule

        return CalibratedModule
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
