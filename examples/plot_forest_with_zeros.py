"""
A random forest says zero
=========================

The probability that a forest gives is a share of votes, so it is often exactly 0. The log-loss of a
single such mistake is infinite, and temperature scaling cannot fix it: 0 to any power is 0. A
floor under the probabilities can.
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
forest = RandomForestClassifier(50, max_depth=8, random_state=0).fit(X, y)
probs = forest.predict_proba(X_test)
print(f"{np.mean(probs == 0):.0%} of all probabilities are exactly 0")
print(f"error {metrics.error(y_test, probs):.1%}, ECE {metrics.ece(y_test, probs):.1%}")

# %%
# Forests are *under*-confident: averaging trees pulls every probability away from 1.
val = Predictions(probs=forest.predict_proba(X_val), labels=y_val)
test = Predictions(probs=probs, labels=y_test)
fig, ax = plt.subplots(figsize=(6, 4), layout="constrained")
for floor in (1e-12, 1e-6, 1e-4, 1e-3, 1e-2):
    for method, mark in (("temperature", "o"), ("structured-vector", "s")):
        cal = calibrators.make(method).fit(val.as_logits(floor), val.labels)
        loss = metrics.nll(test.labels, cal.predict_proba(test.as_logits(floor)))
        ax.semilogx(floor, loss, mark, color="C0" if mark == "o" else "C1",
                    label=method if floor == 1e-2 else None)  # fmt: skip
ax.set(xlabel="floor under the probabilities", ylabel="log-loss on the test set")
ax.legend(frameon=False)
