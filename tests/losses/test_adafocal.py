from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from focalcal.errors import InputError
from focalcal.losses import AdaFocalLoss, focal_loss
from focalcal.losses.adafocal import next_gammas
from losses.conftest import case, gradient


def validation(n: int = 600, seed: int = 0):
    torch.manual_seed(seed)
    return 3 * torch.randn(n, 4), torch.randint(4, (n,))


def by_hand(logits, labels, gammas: list[float]):
    """The update as one reads it in the paper: sort, cut in equal parts, loop over the bins."""
    confidence, predicted = logits.softmax(1).max(1)
    order = np.argsort(confidence.numpy(), kind="stable")
    right = (predicted == labels).numpy()[order].astype(float)
    confidence = confidence.numpy()[order].astype(float)
    new, edges = [], []
    for part, gamma in zip(np.array_split(np.arange(len(order)), len(gammas)), gammas):
        gap = confidence[part].mean() - right[part].mean()
        gamma = gamma * np.exp(gap if gamma > 0 else -gap)
        if abs(gamma) < 0.2:
            gamma = -0.2 if gamma > 0 else 0.2
        new.append(min(max(gamma, -2.0), 20.0))
        edges.append(confidence[part[-1]])
    return new, edges[:-1]


def test_update_follows_the_paper_over_several_epochs() -> None:
    loss = AdaFocalLoss()
    gammas = [1.0] * 15
    for epoch in range(4):
        logits, labels = validation(seed=epoch)
        loss.update(logits, labels)
        gammas, edges = by_hand(logits, labels, gammas)
        torch.testing.assert_close(loss.gammas, torch.tensor(gammas, dtype=torch.float32))
        torch.testing.assert_close(loss.edges, torch.tensor(edges, dtype=torch.float32))


@pytest.mark.parametrize(
    ("gamma", "gap", "expected"),
    [
        (1.0, 0.5, np.exp(0.5)),
        (-1.0, 0.5, -np.exp(-0.5)),
        (0.21, -0.5, -0.2),
        (-0.21, 0.5, 0.2),
        (0.0, 0.3, 0.2),
        (19.0, 1.0, 20.0),
        (-1.9, -1.0, -2.0),
        (0.7, np.nan, 0.7),
    ],
)
def test_rule_for_one_bin(gamma, gap, expected) -> None:
    assert next_gammas(np.array([gamma]), np.array([gap]))[0] == pytest.approx(expected)


def test_each_sample_takes_the_gamma_of_the_bin_of_its_own_probability() -> None:
    loss = AdaFocalLoss(bins=3, reduction="none")
    loss.edges.copy_(torch.tensor([0.3, 0.6]))
    loss.gammas.copy_(torch.tensor([2.0, -1.5, 0.0]))
    p = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    logits = torch.stack([p, 1 - p], 1).log().requires_grad_()
    labels = torch.zeros(3, dtype=torch.long)
    factor = torch.stack([(1 - p[0]) ** 2, (1 + p[1]) ** 1.5, torch.ones((), dtype=p.dtype)])
    value = loss(logits, labels)
    torch.testing.assert_close(value, factor * -p.log())
    # dL/d(-ln p) of the inverse focal loss: (1+p)^n − n·p·(1+p)^(n−1)·(−ln p)
    slope = (1 + p[1]) ** 1.5 - 1.5 * p[1] * (1 + p[1]) ** 0.5 * -p[1].log()
    got = gradient(value.sum(), logits)[1]
    torch.testing.assert_close(got, slope * torch.stack([p[1] - 1, 1 - p[1]]))


def test_before_the_first_update_it_is_focal_loss_with_gamma_one() -> None:
    logits, labels = case()
    torch.testing.assert_close(AdaFocalLoss()(logits, labels), focal_loss(logits, labels, 1.0))


def test_ties_share_a_bin_and_empty_bins_keep_their_gamma() -> None:
    loss = AdaFocalLoss(bins=4)
    logits = torch.tensor([[2.0, 0.0]]).expand(8, 2)
    loss.update(logits, torch.zeros(8, dtype=torch.long))
    assert loss.gammas[1:].tolist() == [1.0, 1.0, 1.0]
    assert loss.gammas[0] < 1
    assert loss(logits, torch.ones(8, dtype=torch.long)).isfinite()


def test_a_module_in_half_precision_can_be_updated() -> None:
    logits, labels = validation()
    half, full = AdaFocalLoss(5).bfloat16(), AdaFocalLoss(5)
    for loss in (half, full):
        loss.update(logits, labels)
    torch.testing.assert_close(half.gammas.float(), full.gammas, rtol=1e-2, atol=0)
    assert half(logits, labels).isfinite()


def test_state_dict_carries_bins_and_gammas() -> None:
    loss, fresh = AdaFocalLoss(), AdaFocalLoss()
    loss.update(*validation())
    fresh.load_state_dict(loss.state_dict())
    logits, labels = case()
    assert torch.equal(fresh(logits, labels), loss(logits, labels))
    assert not torch.equal(fresh.gammas, torch.ones(15))


def test_ignored_validation_labels_do_not_count() -> None:
    logits, labels = validation()
    one, other = AdaFocalLoss(), AdaFocalLoss()
    one.update(logits[:500], labels[:500])
    other.update(logits, F.pad(labels[:500], (0, 100), value=-100))
    assert torch.equal(one.gammas, other.gammas)


def test_bad_settings_and_empty_validation_are_refused() -> None:
    with pytest.raises(InputError, match="start"):
        AdaFocalLoss(start=21.0)
    with pytest.raises(InputError, match="bins"):
        AdaFocalLoss(bins=0)
    with pytest.raises(InputError, match="at least one validation sample"):
        AdaFocalLoss().update(torch.zeros(0, 3), torch.zeros(0, dtype=torch.long))


def test_gamma_stays_in_single_precision_beside_a_model_in_half_precision() -> None:
    """In bfloat16 every step of less than .4 % rounds to none."""
    logits, labels = validation()
    loss, plain = AdaFocalLoss(), AdaFocalLoss()
    torch.nn.ModuleList([loss]).bfloat16()
    for each in (loss, plain):
        each.update(logits, labels)
    torch.testing.assert_close(loss.gammas, plain.gammas)
    torch.testing.assert_close(loss.edges, plain.edges)
    assert loss.to_empty(device="meta").gammas.device.type == "meta"
