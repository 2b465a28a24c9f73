"""
Reliability before and after
============================

A real ResNet-18, trained on CIFAR-10 with cross-entropy, is over-confident: of the predictions
made with 90 % confidence, far fewer than 90 % are right. One parameter, the temperature, corrects
most of this. The predictions come with the package.
"""

# %%
# Measure first. Every metric has an interval, and a test shows whether chance explains the gap.
import matplotlib.pyplot as plt

from focalcal import calibrators, metrics
from focalcal.examples import resnet18
from focalcal.figures import plot_reliability, reliability_panel

val, test = resnet18()
before = test.probabilities()
found = metrics.evaluate(test.labels, before, resamples=200)
print(f"ECE {found['ece'].value:.2%}, p = {found.test.p_value:.3f}")

# %%
# Fit on the validation set, check on the test set.
temperature = calibrators.make("temperature").fit(val.logits, val.labels)
structured = calibrators.make("structured-vector").fit(val.logits, val.labels)
print(f"T = {temperature.temperature_:.2f}")

shown = {
    "uncalibrated": before,
    "temperature scaling": temperature.predict_proba(test.logits),
    "structured vector scaling": structured.predict_proba(test.logits),
}
fig, axes = plt.subplots(1, 3, figsize=(11, 3.6), layout="constrained")
for ax, (name, probs) in zip(axes, shown.items()):
    ece = metrics.ece(test.labels, probs)
    plot_reliability(
        reliability_panel(metrics.reliability(test.labels, probs), f"{name}: {ece:.2%}"), ax
    )
