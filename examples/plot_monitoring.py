"""
Is it still right?
==================

A model in production is checked every week. A test at the 5 % level, repeated fifty times, raises
repeated false alarms; the tests of a `Monitor` are valid however often one checks.
"""

# %%
# A calibrated model; from week 20 on, the data change and the model is over-confident.
import matplotlib.pyplot as plt
import numpy as np

from focalcal.metrics import Monitor

rng = np.random.default_rng(0)


def week(drifted, n=400):
    z = 1.5 * rng.normal(size=(n, 4))
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    truth = 0.6 * z if drifted else z
    return p, np.argmax(truth + rng.gumbel(size=z.shape), axis=1)


probs, labels = week(False, n=5000)
monitor = Monitor(labels, probs)
for number in range(1, 31):
    probs, labels = week(number >= 20)
    monitor.update(f"week {number}", probs, labels)
print(monitor.verdict)

# %%
# Accuracy as measured, and as expected by the model, which needs no labels.
x = np.arange(1, len(monitor.results) + 1)
measured = [r.accuracy for r in monitor.results]
expected = [r.expected_accuracy for r in monitor.results]
fig, (top, bottom) = plt.subplots(2, 1, figsize=(7, 6), layout="constrained", sharex=True)
for values, name in ((measured, "measured"), (expected, "expected by the model")):
    top.plot(x, [e.value for e in values], label=name)
    top.fill_between(x, [e.low for e in values], [e.high for e in values], alpha=0.2)
top.set_ylabel("accuracy")
top.legend(frameon=False)
for test in monitor.results[0].p_values:
    bottom.semilogy(x, [r.p_values[test] for r in monitor.results], label=test)
bottom.axhline(monitor.threshold, color="0.5", linestyle="--")
bottom.set(xlabel="week", ylabel="p-value, valid at any time")
bottom.legend(frameon=False)

# %%
# The state is a small file, so next week's job can continue from it.
print(f"{len(monitor.to_json()) / 1000:.0f} kB after {len(monitor.results)} weeks")
