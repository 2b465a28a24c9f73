"""
Curvature against calibration
=============================

Focal loss finds flatter minima: the trace of the Hessian of the cross-entropy falls with γ. Is that
why it is better calibrated? Only up to a point: curvature keeps falling long after the network has
become under-confident.
"""

# %%
import matplotlib.pyplot as plt
import torch
from torch import nn

from focalcal import metrics
from focalcal.curvature import HessianOperator, hessian_trace
from focalcal.losses import FocalLoss

torch.set_num_threads(1)
torch.manual_seed(0)
y = torch.randint(4, (800,))
x = 1.5 * torch.eye(4, 8)[y] + torch.randn(800, 8)
y_test = torch.randint(4, (4000,))
x_test = 1.5 * torch.eye(4, 8)[y_test] + torch.randn(4000, 8)


def train(gamma):
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
    optimiser, loss = torch.optim.Adam(net.parameters(), lr=1e-2), FocalLoss(gamma=gamma)
    for _ in range(150):
        optimiser.zero_grad()
        loss(net(x), y).backward()
        optimiser.step()
    return net.eval()


# %%
# The Hessian is that of the cross-entropy for every network, so the numbers are comparable.
rows = []
for gamma in (0.0, 1.0, 2.0, 3.0, 5.0, 7.0):
    net = train(gamma)
    hessian = HessianOperator(net, nn.functional.cross_entropy, [(x, y)])
    trace = hessian_trace(hessian, rtol=0.03, max_probes=200)
    with torch.no_grad():
        ece = metrics.ece(y_test, torch.softmax(net(x_test), dim=1))
    rows.append((gamma, trace.value, trace.standard_error, ece))
    print(f"γ = {gamma:g}: trace {trace.value:7.2f} ± {trace.standard_error:.2f}, ECE {ece:.1%}")

fig, ax = plt.subplots(figsize=(6, 4), layout="constrained")
ax.errorbar([r[1] for r in rows], [r[3] for r in rows], xerr=[r[2] for r in rows], fmt="o-")
for gamma, trace, _, ece in rows:
    ax.annotate(f"γ = {gamma:g}", (trace, ece), xytext=(5, 5), textcoords="offset points")
ax.set(xlabel="trace of the Hessian", ylabel="ECE on the test set")
