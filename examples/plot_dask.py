"""
Predictions larger than memory
==============================

Parquet files are read in parts, by the threads of one machine or by a Dask cluster. All
statistics can be merged, so the result does not depend on how the work is divided.
"""

# %%
# Four files as written by a data pipeline.
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from focalcal import scale
from focalcal.figures import plot_reliability, reliability_panel

rng = np.random.default_rng(0)
folder = Path(tempfile.mkdtemp())
for i in range(4):
    truth = 1.5 * rng.normal(size=(20_000, 5))
    labels = np.argmax(truth + rng.gumbel(size=truth.shape), axis=1)
    columns = {f"logits_{k}": 2 * truth[:, k] for k in range(5)} | {"labels": labels}
    pq.write_table(pa.table(columns), folder / f"part-{i}.parquet")

# %%
# One pass for the metrics. `open_engine("dask", "tcp://host:8786")` uses a cluster instead.
source = scale.Source.open(folder)
with scale.open_engine("stream") as engine:
    before = scale.statistics(source, engine).compute()
    fitted = scale.fit(source, "temperature", engine)
    print(f"{before.n:,} rows in {len(source.paths)} files, {engine.passes} passes")
print(f"ECE {before['ece'].value:.2%}; T = {fitted.calibrator.temperature_:.3f}")

# %%
# Write calibrated files and evaluate them.
with scale.open_engine("stream") as engine:
    scale.apply(source, fitted.calibrator, folder / "calibrated", engine)
    after = scale.statistics(scale.Source.open(folder / "calibrated"), engine).compute()
fig, axes = plt.subplots(1, 2, figsize=(8, 3.6), layout="constrained")
for ax, name, found in zip(axes, ("before", "after"), (before, after)):
    plot_reliability(reliability_panel(found.reliability, f"{name}: {found['ece'].value:.2%}"), ax)
