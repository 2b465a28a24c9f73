"""
Choosing a calibrator
=====================

The validation set determines which method suits a model. `auto` chooses by cross-validation; this
example shows the scores that such a choice is based on.
"""

# %%
# Cross-validated log-loss of the candidates, on validation data only.
import matplotlib.pyplot as plt
import numpy as np
from sklearn.model_selection import KFold

from focalcal import calibrators, metrics
from focalcal.examples import resnet18

val, test = resnet18()

METHODS = ("identity", "temperature", "focal-temperature", "ensemble-temperature",
           "structured-vector", "isotonic", "histogram")  # fmt: skip


def cross_validated(method):
    losses = []
    for fit, held_out in KFold(5, shuffle=True, random_state=0).split(val.logits):
        cal = calibrators.make(method).fit(val.logits[fit], val.labels[fit])
        losses.append(metrics.nll(val.labels[held_out], cal.predict_proba(val.logits[held_out])))
    return np.mean(losses)


scores = {method: cross_validated(method) for method in METHODS}
for method, loss in sorted(scores.items(), key=lambda item: item[1]):
    print(f"{method:22} {loss:.4f}")

# %%
# Does the choice carry over? Compare with the log-loss on the test set, not used for choosing:
on_test = {
    m: metrics.nll(
        test.labels,
        calibrators.make(m).fit(val.logits, val.labels).predict_proba(test.logits),
    )
    for m in METHODS
}
order = sorted(METHODS, key=scores.get, reverse=True)
fig, ax = plt.subplots(figsize=(6, 3.6), layout="constrained")
ax.hlines(order, [scores[m] for m in order], [on_test[m] for m in order], color="0.7")
ax.plot([scores[m] for m in order], order, "o", label="cross-validated on the validation set")
ax.plot([on_test[m] for m in order], order, "s", label="on the test set")
ax.set(xlabel="log-loss", xlim=(0.15, None))
ax.legend()
