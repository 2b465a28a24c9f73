"""
Is B better than A?
===================

Two models measured on the same samples make mostly the same mistakes. Comparing them sample by
sample is far more sensitive than checking whether two intervals overlap.
"""

# %%
# The ResNet-18 trained with cross-entropy, with temperature scaling, and with a structured map.
import matplotlib.pyplot as plt
import numpy as np

from focalcal import calibrators, metrics
from focalcal.examples import resnet18

val, test = resnet18()
a = calibrators.make("temperature").fit(val.logits, val.labels).predict_proba(test.logits)
b = calibrators.make("structured-vector").fit(val.logits, val.labels).predict_proba(test.logits)
found = metrics.compare(test.labels, a, b, resamples=500)
for name in ("accuracy", "nll", "brier", "ece"):
    d = found[name]
    verdict = d.better or "cannot be told apart"
    print(f"{name:9} {d.first:.4f} → {d.second:.4f}, p = {d.p_value:.3f}: {verdict}")

# %%
# The interval of each model is wide; that of the difference is not.
alone = [metrics.evaluate(test.labels, p, resamples=500)["nll"] for p in (a, b)]
fig, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
left.errorbar(
    [0, 1],
    [e.value for e in alone],
    yerr=np.array([[e.value - e.low, e.high - e.value] for e in alone]).T,
    fmt="o",
)
left.set_xticks([0, 1], ["temperature", "structured"])
left.set(ylabel="log-loss", xlim=(-0.5, 1.5))
d = found["nll"].difference
right.errorbar([0], [d.value], yerr=[[d.value - d.low], [d.high - d.value]], fmt="o")
right.axhline(0, color="0.7", linewidth=0.8)
right.set_xticks([0], ["difference"])
right.set_xlim(-0.5, 0.5)
