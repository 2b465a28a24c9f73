"""
Semantic segmentation
=====================

A segmentation network predicts a distribution per pixel. Pixels become samples, unlabelled pixels
are skipped, and statistics are collected image by image, so data sets may be of any size.
"""

# %%
# Over-confident logits (N, C, H, W) and masks with an unlabelled border.
import matplotlib.pyplot as plt
import torch

from focalcal.calibrators import TemperatureScaling
from focalcal.figures import plot_reliability, reliability_panel
from focalcal.integrations.segmentation import calibrated_pixels, pixels
from focalcal.metrics import CalibrationStats

VOID = 255
generator = torch.Generator().manual_seed(0)


def batch():
    smooth = torch.nn.functional.avg_pool2d(
        torch.randn(4, 5, 48, 48, generator=generator), 9, stride=1, padding=4
    )
    z = 12 * smooth
    p = torch.softmax(z, dim=1).movedim(1, -1).reshape(-1, 5)
    mask = p.multinomial(1, generator=generator).reshape(4, 48, 48)
    mask[:, :2], mask[:, -2:] = VOID, VOID
    return 2.5 * z, mask


calibrator = TemperatureScaling().fit(*pixels(*batch(), ignore_index=VOID))
print(f"T = {calibrator.temperature_:.2f}")

# %%
# Ten batches of test images, before and after, in one pass.
before, after = CalibrationStats(n_classes=5), CalibrationStats(n_classes=5)
for _ in range(10):
    logits, mask = batch()
    z, labels = pixels(logits, mask, ignore_index=VOID)
    before.update(labels, torch.softmax(z, dim=1))
    after.update(labels, calibrator.predict_proba(z))
results = {"before": before.compute(), "after": after.compute()}
for name, result in results.items():
    print(f"{name}: {result.n:,} pixels, ECE {result['ece'].value:.2%}")

# %%
# The confidence of every pixel of one image, before and after.
shown = {"before": torch.softmax(logits, dim=1), "after": calibrated_pixels(calibrator, logits)}
fig, axes = plt.subplots(2, 2, figsize=(8, 7), layout="constrained")
for column, (name, probs) in zip(axes.T, shown.items()):
    column[0].imshow(probs[0].amax(dim=0).numpy(), vmin=0.2, vmax=1)
    column[0].set(title=f"confidence, {name}", xticks=[], yticks=[])
    plot_reliability(reliability_panel(results[name].reliability), column[1])
