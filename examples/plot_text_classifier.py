"""
A text classifier
=================

A naive Bayes classifier of short texts is known to be over-confident: it treats words as
independent evidence, so long messages end at 0 or 1. Its log-probabilities serve as logits for
calibration.
"""

# %%
# Messages from four made-up topics that share most of their words.
import matplotlib.pyplot as plt
import numpy as np
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.naive_bayes import MultinomialNB
from sklearn.pipeline import make_pipeline

from focalcal import calibrators, metrics
from focalcal.figures import plot_reliability, reliability_panel

WORDS = np.array([f"word{i}" for i in range(400)])
TOPICS = ("sports", "science", "politics", "music")
rng = np.random.default_rng(0)
common = rng.dirichlet(np.full(400, 0.5))
topics = [0.8 * common + 0.2 * rng.dirichlet(np.full(400, 0.1)) for _ in TOPICS]


def messages(n):
    labels = rng.integers(0, len(TOPICS), n)
    # Words repeat within a message: the evidence is not independent.
    texts = [" ".join(np.repeat(rng.choice(WORDS, 15, p=topics[y]), 4)) for y in labels]
    return texts, labels


texts, y = messages(1500)
val_texts, y_val = messages(1500)
test_texts, y_test = messages(3000)
model = make_pipeline(CountVectorizer(), MultinomialNB()).fit(texts, y)

# %%
# Its log-probabilities are exact logits.
z_val, z_test = model.predict_log_proba(val_texts), model.predict_log_proba(test_texts)
cal = calibrators.make("temperature").fit(z_val, y_val)
print(f"T = {cal.temperature_:.2f}: every word was counted about four times")

fig, axes = plt.subplots(1, 2, figsize=(8, 3.6), layout="constrained")
for ax, name, probs in zip(
    axes, ("naive Bayes", "calibrated"), (np.exp(z_test), cal.predict_proba(z_test))
):
    title = f"{name}: ECE {metrics.ece(y_test, probs):.1%}"
    plot_reliability(reliability_panel(metrics.reliability(y_test, probs), title), ax)
