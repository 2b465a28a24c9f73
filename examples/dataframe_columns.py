"""
pandas and polars
=================

Evaluate the columns of a table directly.

::

    pip install pandas polars
    python examples/dataframe_columns.py
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl

from focalcal.metrics import evaluate


def main() -> tuple[float, float]:
    """The same ECE from pandas and from polars."""
    rng = np.random.default_rng(0)
    p = rng.beta(2, 2, size=2000)
    table = {"churned": (rng.random(2000) < p).astype(int), "score": p}
    found = []
    for frame in (pd.DataFrame(table), pl.DataFrame(table)):
        found.append(evaluate(frame["churned"], frame["score"], resamples=100)["ece"].value)
    return found[0], found[1]


if __name__ == "__main__":
    for name, error in zip(("pandas", "polars"), main()):
        print(f"{name:8} ECE {100 * error:.2f} %")

# sphinx_gallery_thumbnail_path = '_build/cards/dataframe_columns.png'
