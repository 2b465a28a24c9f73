"""
Several labels per sample
=========================

A picture can show people *and* text. Each label is a binary problem with its own probability, so
each gets its own map.
"""

# %%
# Three labels, each too sharp by its own factor.
import matplotlib.pyplot as plt
import numpy as np

from focalcal.calibrators import PlattScaling
from focalcal.metrics import brier

NAMES = ("indoor", "people", "text")
rng = np.random.default_rng(0)
s = 1.5 * rng.normal(size=(6000, 3))
labels = (rng.random(s.shape) < 1 / (1 + np.exp(-s))).astype(int)
logits = s * [1.5, 2.0, 3.0]

# %%
cal = PlattScaling(task="multilabel").fit(logits[:3000], labels[:3000])
before = 1 / (1 + np.exp(-logits[3000:]))
after = cal.predict_proba(logits[3000:])
truth = labels[3000:]
fig, axes = plt.subplots(1, 3, figsize=(11, 3.6), layout="constrained", sharey=True)
edges = np.linspace(0, 1, 11)
for k, (name, ax) in enumerate(zip(NAMES, axes)):
    for probs, label in ((before, "before"), (after, "after")):
        at = np.clip(np.digitize(probs[:, k], edges) - 1, 0, 9)
        some = np.unique(at)
        x = [probs[at == i, k].mean() for i in some]
        ax.plot(x, [truth[at == i, k].mean() for i in some], "o-", markersize=4, label=label)
    ax.axline((0, 0), slope=1, color="0.7", linewidth=0.8)
    ax.set(title=name, xlabel="probability of the label")
    print(f"{name:7} Brier {brier(truth[:, k], before[:, k]):.4f} → "
          f"{brier(truth[:, k], after[:, k]):.4f}")  # fmt: skip
axes[0].set_ylabel("frequency of the label")
axes[0].legend(frameon=False)
