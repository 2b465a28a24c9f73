"""
A thousand classes
==================

With as many classes as ImageNet, methods with a parameter per class need far more data than a
single temperature, and class-wise errors are based on a handful of samples per class.
"""

# %%
# A stand-in for an ImageNet network: over-confident, and more so for half of the classes.
import matplotlib.pyplot as plt
import numpy as np

from focalcal import calibrators, metrics

K = 1000
rng = np.random.default_rng(0)


def sample(n):
    truth = rng.normal(size=(n, K)).astype(np.float32)
    truth[np.arange(n), rng.integers(0, K, n)] += 9
    labels = np.argmax(truth + rng.gumbel(size=truth.shape), axis=1)
    return truth * np.where(np.arange(K) < K // 2, 1.3, 1.6).astype(np.float32), labels


logits, labels = sample(4000)
z_test, y_test = sample(8000)
uncalibrated = calibrators.make("identity").fit(logits, labels).predict_proba(z_test)
print(
    f"error {metrics.error(y_test, uncalibrated):.1%}, ECE {metrics.ece(y_test, uncalibrated):.1%}"
)

# %%
# How many samples does a method need? Structured vector scaling shrinks towards one temperature.
sizes = (250, 500, 1000, 2000, 4000)
fig, ax = plt.subplots(figsize=(6, 4), layout="constrained")
for method in ("temperature", "structured-vector"):
    losses = []
    for n in sizes:
        cal = calibrators.make(method).fit(logits[:n], labels[:n])
        losses.append(metrics.nll(y_test, cal.predict_proba(z_test)))
    ax.semilogx(sizes, losses, "o-", label=method)
ax.axhline(metrics.nll(y_test, uncalibrated), color="0.6", label="uncalibrated")
ax.set(xlabel="calibration samples", ylabel="log-loss on the test set")
ax.set_xticks(sizes, sizes)
ax.minorticks_off()
ax.legend(frameon=False)
