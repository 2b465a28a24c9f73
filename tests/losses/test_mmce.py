from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from focalcal.errors import InputError
from focalcal.losses import MMCELoss
from focalcal.losses.mmce import mmce
from losses.conftest import case


def by_pairs(confidence, correct):
    """Kumar et al.'s three double sums, term by term."""
    right = [r for r, c in zip(confidence.tolist(), correct.tolist()) if c]
    wrong = [r for r, c in zip(confidence.tolist(), correct.tolist()) if not c]
    k = lambda a, b: math.exp(-abs(a - b) / 0.4)  # noqa: E731
    m, n = len(right), len(wrong)
    total = sum((1 - a) * (1 - b) * k(a, b) for a in right for b in right) / m**2
    total += sum(a * b * k(a, b) for a in wrong for b in wrong) / n**2
    total -= 2 * sum((1 - a) * b * k(a, b) for a in right for b in wrong) / (m * n)
    return math.sqrt(total)


def test_formula_equals_the_double_sums() -> None:
    torch.manual_seed(0)
    confidence = torch.rand(20, dtype=torch.float64)
    correct = (torch.arange(20) < 14).double()
    got = mmce(confidence, correct, torch.ones(20, dtype=torch.float64))
    assert got.item() == pytest.approx(by_pairs(confidence, correct), rel=1e-12)


@pytest.mark.parametrize(
    ("accuracy", "formula", "published"),
    [(0.5, 0.61, 0.010), (0.8, 0.65, 0.029), (0.95, 0.72, 0.166)],
)
def test_sizes_of_both_normalisations_at_batch_128(accuracy, formula, published) -> None:
    """Confidences of .66 to 1, right or wrong alike: the two differ by the group sizes."""
    n = round(128 * accuracy)
    correct = (torch.arange(128) < n).double()
    values = {"formula": 0.0, "published": 0.0}
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        confidence = 0.66 + 0.34 * torch.rand(128, generator=generator, dtype=torch.float64)
        for name in values:
            value = mmce(confidence, correct, torch.ones(128).double(), normalization=name)
            values[name] += value.item() / 20
    assert values["formula"] == pytest.approx(formula, rel=0.3)
    assert values["published"] == pytest.approx(published, rel=0.3)


def test_published_is_zero_unless_right_and_wrong_both_occur() -> None:
    logits = torch.tensor([[3.0, 0.0], [2.0, 0.0]], requires_grad=True)
    labels = torch.zeros(2, dtype=torch.long)
    ce = F.cross_entropy(logits, labels)
    assert MMCELoss()(logits, labels).item() == pytest.approx(ce.item())
    assert MMCELoss(normalization="formula")(logits, labels) > ce


def test_sum_is_the_mean_times_its_denominator_and_ignored_rows_do_not_count() -> None:
    logits, labels = case(n=12)
    weight = torch.rand(5, dtype=torch.float64)
    labels[[0, 5]] = -100
    kept = labels != -100
    for w, count in ((None, 10), (weight, weight[labels[kept]].sum())):
        mean = MMCELoss(weight=w)(logits, labels)
        torch.testing.assert_close(mean, MMCELoss(weight=w)(logits[kept], labels[kept]))
        torch.testing.assert_close(
            MMCELoss(weight=w, reduction="sum")(logits, labels), mean * count
        )


def test_strength_zero_is_cross_entropy_and_strength_is_linear() -> None:
    logits, labels = case()
    ce = F.cross_entropy(logits, labels)
    torch.testing.assert_close(MMCELoss(0.0)(logits, labels), ce)
    one, three = MMCELoss(1.0)(logits, labels), MMCELoss(3.0)(logits, labels)
    torch.testing.assert_close(three - ce, 3 * (one - ce))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"normalization": "other"}, "normalization"),
        ({"bandwidth": 0.0}, "bandwidth"),
        ({"reduction": "none"}, "reduction"),
    ],
)
def test_bad_settings_are_refused(settings, message) -> None:
    with pytest.raises(InputError, match=message):
        MMCELoss(**settings)
