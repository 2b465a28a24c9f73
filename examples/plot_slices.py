"""
Which groups are miscalibrated?
===============================

Calibrated on average can mean over-confident for one group and under-confident for another.
`evaluate_by` tests every slice and corrects for their number.
"""

# %%
# Five countries; the model has seen little of one of them.
import matplotlib.pyplot as plt
import numpy as np

from focalcal.metrics import evaluate, evaluate_by

rng = np.random.default_rng(0)
n = 8000
country = rng.choice(["DE", "FR", "IT", "PL", "SE"], n, p=[0.4, 0.3, 0.15, 0.1, 0.05])
z = 1.5 * rng.normal(size=(n, 3))
truth = np.where((country == "PL")[:, None], 0.5 * z, 1.05 * z)
labels = np.argmax(truth + rng.gumbel(size=z.shape), axis=1)
probs = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)

together = evaluate(labels, probs, resamples=200)
print(f"all: ECE {together['ece'].value:.2%}, p = {together.test.p_value:.3f}")
found = evaluate_by(labels, probs, by={"country": country}, resamples=200)
for s in found.slices:
    print(f"{s.name}: n = {s.n}, ECE {s.ece:.2%}, p = {s.p_value:.4f}")
print(f"worst: {found.worst.name}")

# %%
# Confidence minus accuracy, with intervals that hold simultaneously for all slices.
fig, ax = plt.subplots(figsize=(6, 3.5), layout="constrained")
gaps = [s.metrics["confidence_gap"] for s in found.slices]
y = np.arange(len(gaps))
ax.errorbar(
    [g.value for g in gaps],
    y,
    xerr=[[g.value - g.low for g in gaps], [g.high - g.value for g in gaps]],
    fmt="o",
)
ax.axvline(0, color="0.7", linewidth=0.8)
ax.set_yticks(y, [f"{s.name} (n = {s.n})" for s in found.slices])
ax.set_xlabel("confidence − accuracy")
