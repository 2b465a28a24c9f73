"""A page per public object: `reference/` is written from the packages' `__all__` by every build."""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path

SECTIONS = {
    "focalcal.predictions": "Predictions",
    "focalcal.metrics": "Metrics",
    "focalcal.bins": "Bins",
    "focalcal.calibrators": "Calibrators",
    "focalcal.decisions": "Decisions",
    "focalcal.maps": "Maps",
    "focalcal.losses": "Losses",
    "focalcal.curvature": "Curvature",
    "focalcal.report": "Reports",
    "focalcal.figures": "Figures",
    "focalcal.scale": "Out of core and Dask",
    "focalcal.integrations.torchmetrics": "torchmetrics",
    "focalcal.integrations.lightning": "Lightning",
    "focalcal.integrations.huggingface": "Hugging Face",
    "focalcal.integrations.tracking": "Experiment trackers",
    "focalcal.integrations.segmentation": "Segmentation",
    "focalcal.errors": "Errors",
}


def public_names(module_name: str) -> list[str]:
    """`__all__`, or the functions and classes that the module itself defines."""
    module = importlib.import_module(module_name)
    listed = getattr(module, "__all__", None)
    if listed is None:
        listed = [
            name
            for name, value in vars(module).items()
            if not name.startswith("_") and getattr(value, "__module__", None) == module_name
        ]
    documented = [n for n in listed if callable(getattr(module, n))]
    return sorted(documented, key=lambda n: (n[0].islower(), n))


def write_pages(folder: Path) -> list[str]:
    """One index per package with a page per object behind it; the names of the files."""
    shutil.rmtree(folder, ignore_errors=True)  # pages of what has been renamed since
    folder.mkdir(parents=True)
    for module_name, title in SECTIONS.items():
        first = (importlib.import_module(module_name).__doc__ or "").strip().split("\n\n")[0]
        names = "\n".join(f"   {name}" for name in public_names(module_name))
        (folder / f"{module_name}.rst").write_text(
            f"{title}\n{'=' * len(title)}\n\n``{module_name}``: {first}\n\n"
            f".. currentmodule:: {module_name}\n\n"
            f".. autosummary::\n   :toctree: objects\n   :nosignatures:\n\n{names}\n"
        )
    return list(SECTIONS)
