"""
What ECE does and does not tell
===============================

A calibrated model has an ECE above zero on any finite sample, and a useless one can have an ECE of
zero. This example shows why.
"""

# %%
# **The noise floor.** A model that is calibrated by construction, measured on samples of increasing
# size: its ECE falls with the sample size and is never 0.
import matplotlib.pyplot as plt
import numpy as np

from focalcal import metrics

rng = np.random.default_rng(0)


def calibrated(n, k=5):
    z = 1.5 * rng.normal(size=(n, k))
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    return np.argmax(z + rng.gumbel(size=z.shape), axis=1), p


sizes = (100, 300, 1000, 3000, 10_000, 30_000)
fig, ax = plt.subplots(figsize=(6, 4), layout="constrained")
errors = {
    "ECE": metrics.ece,
    "equal-mass": metrics.adaptive_ece,
    "smooth": metrics.smooth_ece,
    "debiased": metrics.debiased_ece,
}
for name, metric in errors.items():
    mean = [np.mean([metric(*calibrated(n)) for _ in range(10)]) for n in sizes]
    ax.loglog(sizes, mean, "o-", label=name)
ax.set(xlabel="samples", ylabel="mean error of a calibrated model")
ax.legend(frameon=False)

# %%
# **The bins.** The same predictions, measured with different numbers of bins.
y, p = calibrated(2000)
sharp = p**2 / (p**2).sum(axis=1, keepdims=True)
bins = range(2, 61)
fig, ax = plt.subplots(figsize=(6, 4), layout="constrained")
ax.plot(bins, [metrics.ece(y, sharp, bins=m) for m in bins], label="over-confident model")
ax.plot(bins, [metrics.ece(y, p, bins=m) for m in bins], label="calibrated model")
ax.set(xlabel="number of bins", ylabel="ECE", ylim=(0, None))
ax.legend(frameon=False)

# %%
# **Knowing nothing.** Predicting the class frequencies is calibrated and useless. The log-loss
# measures both calibration and knowledge.
frequencies = np.tile(np.bincount(y, minlength=5) / len(y), (len(y), 1))
for name, probs in {"frequencies": frequencies, "over-confident": sharp, "calibrated": p}.items():
    print(f"{name:15} ECE {metrics.ece(y, probs):6.2%}  log-loss {metrics.nll(y, probs):.3f}")
