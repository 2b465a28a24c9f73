"""
Rare positives and unequal costs
================================

One transaction in fifty is a fraud. Missing it costs 20, checking a good one costs 1, and asking an
expert costs 0.5. With calibrated probabilities, the best decision follows by arithmetic; with
over-confident ones, the arithmetic is wrong.
"""

# %%
# A classifier for an imbalanced problem, trained on resampled data: its probabilities are too high.
import matplotlib.pyplot as plt
import numpy as np

from focalcal import calibrators, decisions

rng = np.random.default_rng(0)


def transactions(n):
    s = rng.normal(-5.5, 2.2, size=n)
    y = (rng.random(n) < 1 / (1 + np.exp(-s))).astype(int)
    return s + 3.0, y  # the shift that training on balanced data leaves behind


s_val, y_val = transactions(20_000)
s_test, y_test = transactions(20_000)
print(f"{y_test.mean():.1%} are frauds")
cal = calibrators.make("platt").fit(s_val, y_val)
raw, calibrated = 1 / (1 + np.exp(-s_test)), cal.predict_proba(s_test)[:, 1]

# %%
# The expected cost according to the probabilities, and the actual cost.
COSTS = [[0, 1], [20, 0]]
results = {}
for name, p in {"raw": raw, "calibrated": calibrated}.items():
    cost = decisions.expected_cost(p, COSTS, abstain_cost=0.5, y_true=y_test)
    results[name] = cost
    print(
        f"{name:10} expected {cost.expected.value:.4f}, paid {cost.measured.value:.4f}, "
        f"decided alone {cost.decided.value:.1%}"
    )

fig, ax = plt.subplots(figsize=(5, 3.5), layout="constrained")
for i, cost in enumerate(results.values()):
    for offset, estimate, colour in ((-0.15, cost.expected, "C1"), (0.15, cost.measured, "C0")):
        ax.bar(i + offset, estimate.value, 0.28, color=colour)
        ax.vlines(i + offset, estimate.low, estimate.high, color="0.2")
ax.set_xticks([0, 1], list(results))
ax.set_ylabel("cost per transaction: promised, paid")
