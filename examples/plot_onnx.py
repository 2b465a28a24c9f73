"""
To ONNX and back
================

A calibrator is a small JSON file. It can also be exported as an ONNX graph that maps
logits to probabilities in any runtime, and the results agree.
"""

# %%
import json
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import onnxruntime

from focalcal import calibrators

rng = np.random.default_rng(0)
truth = 1.5 * rng.normal(size=(4000, 6))
labels = np.argmax(truth + rng.gumbel(size=truth.shape), axis=1)
logits = (2 * truth).astype(np.float32)
cal = calibrators.make("focal-temperature").fit(logits, labels)

# %%
# The human-readable file.
folder = Path(tempfile.mkdtemp())
cal.save(folder / "cal.json")
record = json.loads((folder / "cal.json").read_text())
print(json.dumps({k: record[k] for k in list(record)[:6]}, indent=2)[:600])

# %%
# The graph, run by a runtime.
cal.to_onnx(folder / "cal.onnx")
session = onnxruntime.InferenceSession(folder / "cal.onnx")
(from_onnx,) = session.run(None, {session.get_inputs()[0].name: logits})
back = calibrators.load(folder / "cal.json").predict_proba(logits)
print(f"largest difference to ONNX {np.abs(from_onnx - back).max():.1e}")

fig, ax = plt.subplots(figsize=(5, 4), layout="constrained")
ax.loglog(back.ravel(), from_onnx.ravel(), ".", markersize=1)
ax.set(xlabel="probability in NumPy", ylabel="probability in ONNX Runtime")
