"""Which printed value stands beside a run, and what of the paper's setting is not ours."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from focalcal.metrics import Estimate
from focalcal.predictions import Predictions
from focalcal_papers.experiments import Run
from focalcal_papers.experiments.base import Material
from focalcal_papers.experiments.ie_grid import (
    _order,
    grid,
    known,
    own_cells,
    printed_cells,
    seeds,
)

TABLE = {
    (*place, "ce"): {"value": place[1]}
    for place in (("sst-binary", "tree-lstm"), ("20newsgroups", "gpcnn"), ("CIFAR-10", "resnet50"))
}

RANDOM = {"split": "random", "headers": False}


@pytest.mark.parametrize(
    ("settings", "value", "setting"),
    [
        (("sst", "tree_lstm", 25, {"vectors": "glove.6B.300d.txt"}), "tree-lstm", ""),
        (("sst", "tree_lstm", 25, {}), "tree-lstm", "word vectors of 300 numbers, ours 100"),
        (("20newsgroups", "text_cnn", 50, RANDOM), "gpcnn", ""),
        (("20newsgroups", "text_cnn", 50, {}), "gpcnn", "random split without headers"),
        (
            ("20newsgroups", "text_cnn", 50, {"split": "random"}),
            "gpcnn",
            "random split without headers",
        ),
        (
            ("20newsgroups", "text_cnn", 9, RANDOM | {"length": 300}),
            "gpcnn",
            "50 epochs, 1000 words",
        ),
        (("cifar10", "resnet50", 350, {}), "resnet50", ""),
        (("cifar10", "resnet18", 30, {}), "resnet50", "resnet50, 350 epochs"),
        (("mnist", "resnet50", 350, {}), None, ""),
    ],
)
def test_the_printed_row_and_what_is_unlike(settings, value, setting):
    names = ("dataset", "model", "epochs", "data_settings")
    some = Predictions(logits=np.eye(2), labels=[0, 1])
    run = Run("one", dict(zip(names, settings)) | {"loss": "ce"}, some, some)
    row, unlike = known(run, TABLE)
    assert (row.get("value"), unlike) == (value, setting)


def test_several_seeds_are_listed_by_their_mean_and_spread():
    runs = []
    for loss, seed, sharpness in (("ce", 0, 4.0), ("ce", 1, 2.0), ("fla-53", 0, 1.0)):
        logits = sharpness * np.eye(4).repeat(50, axis=0)
        labels = np.tile([0, 0, 1, 1, 2, 2, 3, 3], 25)
        some = Predictions(logits=logits, labels=labels)
        settings = {"dataset": "sst", "model": "tree_lstm", "loss": loss, "epochs": 25}
        runs.append(Run(f"{loss}{seed}", settings | {"seed": seed}, some, some))
    found = grid("1", Material("stored", tuple(runs)))
    first, second = (100 * run.before["ece"].value for run in runs[:2])
    spread = abs(first - second) / np.sqrt(2)
    shown = f"{(first + second) / 2:.2f} ± {spread:.2f} (2 seeds)"
    assert shown in found.tables[0].rows[0]
    assert "before scaling: of 1 pairs of losses" in found.conclusion
    assert "1 of 2 settings have several seeds (up to 2)" in found.conclusion
    both = next(f for f in found.findings if f.seeds == 2)
    assert both.spread == pytest.approx(spread)
    assert "seed" not in both.what
    # One more run may fall anywhere within the spread of these, and beyond it by chance.
    assert both.low < min(first, second)
    assert both.high > max(first, second)
    assert "One run (n = 1) per loss" in seeds(runs[1:])
    assert seeds(()) == ""
    assert "several seeds (up to 2), each run a row; the others" in seeds(runs, "each run a row")


def test_a_metric_without_an_interval_keeps_the_spread_of_the_seeds():
    runs = []
    for loss, seed, sharpness in (("ce", 0, 4.0), ("ce", 1, 2.0), ("fla-53", 0, 1.0)):
        some = Predictions(
            logits=sharpness * np.eye(4).repeat(50, axis=0),
            labels=np.tile([0, 0, 1, 1, 2, 2, 3, 3], 25),
        )
        settings = {"dataset": "sst", "model": "tree_lstm", "loss": loss, "epochs": 25}
        runs.append(Run(f"{loss}{seed}", settings | {"seed": seed}, some, some))
    assert np.isnan(runs[0].before["mce"].low)
    found = grid("12", Material("stored", tuple(runs)))
    both, one = found.findings[0], found.findings[-1]
    assert both.high - both.ours == pytest.approx(1.96 * both.spread)
    assert one.low is None


def test_cells_in_the_papers_own_setting_are_counted_once():
    some = Predictions(logits=np.eye(2), labels=[0, 1])
    base = {"dataset": "20newsgroups", "model": "text_cnn", "epochs": 50, "loss": "ce"}
    runs = [
        Run(f"s{seed}", base | {"seed": seed, "data_settings": RANDOM}, some, some)
        for seed in range(3)
    ]
    assert len(printed_cells("1")) == 80
    assert own_cells("1", runs) == 2  # before and after scaling, whatever the number of seeds
    assert own_cells("3", runs) == 1
    assert own_cells("7", runs) == 0
    official = [Run("o", base | {"seed": 0, "data_settings": {}}, some, some)]
    assert own_cells("1", official) == 0


def test_a_loss_with_other_settings_is_another_loss():
    some = Predictions(logits=np.eye(2), labels=[0, 1])
    base = {"dataset": "20newsgroups", "model": "text_cnn", "epochs": 50, "loss": "mmce"}
    base |= {"data_settings": RANDOM, "seed": 0}
    papers, other = (
        Run("m", base | {"loss_settings": {"strength": strength}}, some, some)
        for strength in (8.0, 2.0)
    )
    assert (papers.variant, other.variant) == ("mmce", "mmce strength 2.0")
    assert papers.setting != other.setting
    assert known(papers, printed_cells("1"), "pre")[1] == ""
    assert known(other, printed_cells("1"), "pre")[1] == "not strength 2.0"
    assert own_cells("1", [other]) == 0


def test_an_order_needs_two_printed_values():
    """A loss with other settings has the same printed value; so have some losses."""
    kept = {"temperature": 1.0, "n": {"calibration": 9, "test": 9}}
    base = {"dataset": "20newsgroups", "model": "text_cnn", "epochs": 50, "seed": 0}
    base |= {"data_settings": RANDOM}
    wanted = (("ce", {}, 0.3), ("mmce", {"strength": 8.0}, 0.1), ("mmce", {"strength": 2.0}, 0.2))
    runs = []
    for loss, strength, value in wanted:
        found = dict.fromkeys(("ece", "mce"), dataclasses.asdict(Estimate(value, value, value, 9)))
        settings = base | {"loss": loss, "loss_settings": strength}
        own = kept | {"before": found, "after": found}
        runs.append(Run(f"{loss}{value}", settings, None, None, kept=own))
    text = grid("1", Material("stored", tuple(runs))).conclusion
    assert "before scaling: of 1 pairs of losses 1 have intervals that do not meet, 1 in" in text
    tied = {k: r | {"value": "5"} for k, r in printed_cells("1").items()}
    assert _order(runs, "ece", "pre", tied) == ""
