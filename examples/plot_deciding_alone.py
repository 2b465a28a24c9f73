"""
At what confidence may it decide alone?
=======================================

A model that is right 95 % of the time can be right 99 % of the time on the samples it is sure of.
`decisions.threshold` finds the confidence threshold for this, with a guarantee.
"""

# %%
# Calibrate on the first half of the validation set, choose on the second, check on the test set.
import matplotlib.pyplot as plt
import numpy as np

from focalcal import calibrators, decisions
from focalcal.examples import resnet18

val, test = resnet18()
cal = calibrators.make("temperature").fit(val.logits[:2500], val.labels[:2500])
held_out = cal.predict_proba(val.logits[2500:])
found = decisions.threshold(val.labels[2500:], held_out, target_accuracy=0.99)
print(f"from {found.threshold:.3f} on, which decides {found.decided.value:.1%} alone")

# %%
probs = cal.predict_proba(test.logits)
confidence, right = probs.max(axis=1), probs.argmax(axis=1) == test.labels
alone = confidence >= found.threshold
print(f"test set: {alone.mean():.1%} decided alone, {right[alone].mean():.2%} of them right")

order = np.argsort(-confidence)
coverage = np.arange(1, len(order) + 1) / len(order)
fig, ax = plt.subplots(figsize=(6, 4), layout="constrained")
ax.plot(coverage, np.cumsum(right[order]) / np.arange(1, len(order) + 1))
ax.axvline(alone.mean(), color="C1", linestyle="--", label="chosen threshold")
ax.axhline(0.99, color="0.7", linewidth=0.8)
ax.set(xlabel="share decided alone", ylabel="accuracy of those", ylim=(0.94, 1.002))
ax.legend(frameon=False)
