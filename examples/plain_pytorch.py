"""
Plain PyTorch, from loss to ONNX
================================

Train with focal loss, calibrate, and deploy as one module and one ONNX file.

::

    python examples/plain_pytorch.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

from focalcal.calibrators import CalibratedModule, FocalTemperatureScaling
from focalcal.losses import FocalLoss
from focalcal.metrics import ece


def data(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Three overlapping clusters in eight dimensions."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (n,), generator=generator)
    centres = 1.2 * torch.eye(3, 8)
    return centres[labels] + torch.randn(n, 8, generator=generator), labels


def train() -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 3))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    loss = FocalLoss(gamma=3.0)
    x, y = data(600, seed=0)
    for _ in range(100):
        optimizer.zero_grad()
        loss(net(x), y).backward()
        optimizer.step()
    return net.eval()


def main(folder: Path) -> dict[str, float]:
    """ECE before and after, and the largest difference between the ONNX file and the module."""
    net = train()
    x_cal, y_cal = data(1000, seed=1)
    x_test, y_test = data(2000, seed=2)
    with torch.no_grad():
        calibrator = FocalTemperatureScaling(search="gradient").fit(net(x_cal), y_cal)
        deployed = CalibratedModule(net, calibrator)
        before, after = torch.softmax(net(x_test), dim=1), deployed(x_test)
    deployed.to_onnx(folder / "model.onnx", example=x_test[:2])
    import onnxruntime

    session = onnxruntime.InferenceSession(folder / "model.onnx")
    (proba,) = session.run(None, {session.get_inputs()[0].name: x_test.numpy()})
    return {
        "before": ece(y_test, before),
        "after": ece(y_test, after),
        "onnx": float(np.abs(proba - after.numpy()).max()),
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        found = main(Path(folder))
    print(f"ECE before   {100 * found['before']:5.2f} %")
    print(f"ECE after    {100 * found['after']:5.2f} %")
    print(f"ONNX within  {found['onnx']:.1e}")

# sphinx_gallery_thumbnail_path = '_build/cards/plain_pytorch.png'
