"""Over-confident predictions in memory, and the same in parquet files of several spellings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

ROWS, CLASSES, FILES, GROUP = 12_000, 4, 3, 900


@pytest.fixture(scope="session")
def memory() -> tuple[np.ndarray, np.ndarray]:
    """Logits (N, K) float32 whose best temperature is about 2, and labels."""
    rng = np.random.default_rng(7)
    z = 3 * rng.normal(size=(ROWS, CLASSES))
    z[:, 1] += 0.7
    y = np.argmax(z / 2 + rng.gumbel(size=z.shape), axis=1)
    return z.astype(np.float32), y


def spell(name: str, values: np.ndarray, kind: str) -> dict:
    """A matrix as parquet columns: `fixed` lists, `list`s, or `wide`, a column per class."""
    n, k = values.shape
    if kind == "wide":
        return {f"{name}_{j}": values[:, j] for j in range(k)}
    flat = pa.array(values.reshape(-1))
    if kind == "fixed":
        return {name: pa.FixedSizeListArray.from_arrays(flat, k)}
    return {name: pa.ListArray.from_arrays(pa.array(np.arange(n + 1, dtype=np.int32) * k), flat)}


def write(folder: Path, z: np.ndarray, y: np.ndarray, kind="fixed", name="logits", files=FILES):
    folder.mkdir(exist_ok=True, parents=True)
    for i, rows in enumerate(np.array_split(np.arange(len(y)), files)):
        table = {"id": rows, **spell(name, z[rows], kind), "labels": y[rows]}
        pq.write_table(pa.table(table), folder / f"part-{i}.parquet", row_group_size=GROUP)
    return str(folder / "*.parquet")


@pytest.fixture(scope="session")
def pattern(memory, tmp_path_factory) -> str:
    return write(tmp_path_factory.mktemp("preds"), *memory)
