"""
γ in training
=============

A larger γ in the focal loss gives less weight to samples that are already right, so the network
stays less confident. If γ is too large, the network is *under*-confident.
"""

# %%
# A small network on overlapping clusters, trained with γ = 0 (cross-entropy) to 7.
import matplotlib.pyplot as plt
import torch
from torch import nn

from focalcal import metrics
from focalcal.losses import FocalLoss

torch.manual_seed(0)
torch.set_num_threads(1)


def data(n):
    y = torch.randint(5, (n,))
    return 1.3 * torch.eye(5, 16)[y] + torch.randn(n, 16), y


x, y = data(1500)
x_test, y_test = data(5000)


def train(gamma):
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 5))
    optimiser, loss = torch.optim.Adam(net.parameters(), lr=3e-3), FocalLoss(gamma=gamma)
    for _ in range(150):
        optimiser.zero_grad()
        loss(net(x), y).backward()
        optimiser.step()
    with torch.no_grad():
        return torch.softmax(net(x_test), dim=1)


gammas = (0.0, 1.0, 2.0, 3.0, 5.0, 7.0)
probs = {gamma: train(gamma) for gamma in gammas}
for gamma, p in probs.items():
    gap = metrics.confidence_gap(y_test, p)
    print(f"γ = {gamma:g}: error {metrics.error(y_test, p):.1%}, confidence − accuracy {gap:+.1%}")

# %%
fig, ax = plt.subplots(figsize=(6, 4), layout="constrained")
ax.plot(gammas, [metrics.ece(y_test, probs[g]) for g in gammas], "o-", label="ECE")
ax.plot(gammas, [metrics.confidence_gap(y_test, probs[g]) for g in gammas], "s-",
        label="confidence − accuracy")  # fmt: skip
ax.axhline(0, color="0.7", linewidth=0.8)
ax.set(xlabel="γ in training")
ax.legend(frameon=False)
