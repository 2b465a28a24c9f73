"""
Random forests with zero probabilities
======================================

The probability from a forest is a share of votes, so it is often exactly 0. The log-loss of a
single such mistake is infinite, and temperature scaling cannot fix it: 0 to any power is 0. A
floor under the probabilities can, and every calibrator learns one from data with zeros.
"""

# %%
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import train_test_split

from focalcal import calibrators, metrics
from focalcal.predictions import Predictions

X, y = load_digits(return_X_y=True)
X, X_test, y, y_test = train_test_split(X, y, test_size=0.4, random_state=0)
X, X_val, y, y_val = train_test_split(X, y, test_size=0.4, random_state=0)
forest = RandomForestClassifier(10, random_state=0).fit(X, y)
probs = forest.predict_proba(X_test)
print(f"{np.mean(probs == 0):.0%} of all probabilities are exactly 0")
print(f"error {metrics.error(y_test, probs):.1%}, ECE {metrics.ece(y_test, probs):.1%}")

# %%
# Forests are *under*-confident: averaging trees pulls every probability away from 1. The loss after
# calibration depends on the floor: with a tiny one, a single wrong zero costs so much that the
# temperature rises for all samples. For the dashed lines, the calibrators received the zeros
# unchanged (logits of −∞) and learnt the floor.
val = Predictions(probs=forest.predict_proba(X_val), labels=y_val)
test = Predictions(probs=probs, labels=y_test)


def fitted(method, floor):
    cal = calibrators.make(method).fit(val.as_logits(floor), val.labels)
    proba = cal.predict_proba(test.as_logits(floor))
    return metrics.nll(test.labels, proba), cal.floor_


floors = np.geomspace(1e-12, 9e-2, 24)
fig, ax = plt.subplots(figsize=(6, 4), layout="constrained")
for color, method in (("C0", "temperature"), ("C1", "structured-vector")):
    ax.semilogx(floors, [fitted(method, f)[0] for f in floors], color=color, label=method)
    loss, floor = fitted(method, None)
    ax.axhline(loss, color=color, linestyle="--", linewidth=1)
    print(f"{method}: floor {floor:.2g}, log-loss {loss:.3f}")
ax.set(xlabel="floor under the probabilities", ylabel="log-loss on the test set")
ax.legend(frameon=False)
