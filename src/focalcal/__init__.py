"""focalcal: classifier confidences you can trust."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_PARTS = (
    "bins",
    "calibrators",
    "curvature",
    "decisions",
    "figures",
    "integrations",
    "losses",
    "maps",
    "metrics",
    "predictions",
    "report",
    "scale",
)


def __getattr__(name: str) -> Any:
    """Import subpackages on first use, as in `focalcal.metrics.ece`."""
    if name in _PARTS:
        return importlib.import_module(f"focalcal.{name}")
    if name == "Predictions":
        return importlib.import_module("focalcal.predictions").Predictions
    raise AttributeError(f"module 'focalcal' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_PARTS, "Predictions"])
