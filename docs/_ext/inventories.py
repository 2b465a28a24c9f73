"""Links to other projects' documentation without a network at build time.

Sphinx reads where their objects are documented from an inventory. The ones here hold only the
objects that our docstrings name; `PAGES` is all there is to keep.
"""

from __future__ import annotations

import zlib
from pathlib import Path

# project: (address, {object: (role, page)})
PAGES = {
    "python": (
        "https://docs.python.org/3/",
        {
            "pathlib.Path": ("py:class", "library/pathlib.html#$"),
            "json": ("py:module", "library/json.html#module-$"),
        },
    ),
    "numpy": (
        "https://numpy.org/doc/stable/",
        {
            "numpy.ndarray": ("py:class", "reference/generated/$.html#$"),
            "numpy.random.Generator": ("py:class", "reference/random/generator.html#$"),
        },
    ),
    "sklearn": (
        "https://scikit-learn.org/stable/",
        {
            "sklearn.calibration.CalibratedClassifierCV": (
                "py:class",
                "modules/generated/$.html#$",
            ),
            "sklearn.base.clone": ("py:function", "modules/generated/$.html#$"),
        },
    ),
    "torch": (
        "https://docs.pytorch.org/docs/stable/",
        {
            "torch.Tensor": ("py:class", "tensors.html#$"),
            "torch.nn.Module": ("py:class", "generated/$.html#$"),
            "torch.nn.CrossEntropyLoss": ("py:class", "generated/$.html#$"),
        },
    ),
}


def write_inventories(folder: Path) -> dict[str, tuple[str, str]]:
    """The inventories as files, and the mapping that intersphinx wants."""
    folder.mkdir(parents=True, exist_ok=True)
    mapping = {}
    for project, (address, objects) in PAGES.items():
        lines = "".join(f"{name} {role} 1 {page} -\n" for name, (role, page) in objects.items())
        head = f"# Sphinx inventory version 2\n# Project: {project}\n# Version: 0\n"
        head += "# The remainder of this file is compressed using zlib.\n"
        path = folder / f"{project}.inv"
        path.write_bytes(head.encode() + zlib.compress(lines.encode()))
        mapping[project] = (address, str(path))
    return mapping
