"""Every promised name exists, and every recipe is one that training accepts."""

from __future__ import annotations

import doctest

import pytest

from focalcal_papers import experiments
from focalcal_papers.experiments import (
    EXPERIMENTS,
    SCALES,
    fts_open,
    geo,
    reference,
    runs,
    settings,
)
from focalcal_papers.experiments.runs import STAND_INS

PROMISED = [
    *(f"ie/table{i}" for i in range(1, 14)),
    *(f"ie/fig{i}" for i in range(1, 9)),
    "ie/fig4a",
    "ie/recipe",
    "ie/recipe-mlp",
    "fts/table1",
    "fts/every",
    *(f"fts/fig{i}" for i in range(1, 9)),
    *(f"fts/open{i}" for i in range(1, 5)),
    *(f"fts/{n}" for n in ("architectures", "ablation", "shift", "criterion", "compensation")),
    *(f"cpe/{n}" for n in ("minimizers", "k1000", "psi-trained", "human")),
    *(f"geo/fig{i}" for i in range(1, 5)),
    *(f"geo/open{i}" for i in range(1, 4)),
    "geo/open1-mlp",
    "geo/open2-small",
]


@pytest.mark.parametrize(
    "module", [experiments, experiments.base, fts_open, geo, reference, runs, settings]
)
def test_examples(module):
    assert doctest.testmod(module).failed == 0


def test_every_promised_name_is_there_once():
    assert sorted(EXPERIMENTS) == sorted(PROMISED)
    assert all(e.title and e.claim for e in EXPERIMENTS.values())


@pytest.mark.parametrize("scale", SCALES)
def test_recipes_are_valid(scale):
    pytest.importorskip("torch")
    from focalcal.losses import make_loss
    from focalcal_papers.data import DATASETS
    from focalcal_papers.models import MODELS, model_settings
    from focalcal_papers.training import TrainConfig

    for e in EXPERIMENTS.values():
        for label, recipe in e.recipes(scale).items():
            config = TrainConfig.from_dict(recipe)
            assert config.dataset in DATASETS, label
            assert config.model in MODELS, label
            assert set(config.model_settings) <= set(model_settings(config.model)), label
            if "+curvature" not in config.loss:
                make_loss(config.loss, reduction=config.reduction, **config.loss_settings)
            if scale == "smoke":
                assert config.dataset in STAND_INS, label
            elif e.name != "cpe/psi-trained":
                assert config.dataset not in STAND_INS, label


def test_paper_scale_has_the_published_recipe():
    recipe = EXPERIMENTS["ie/table1"].recipes("paper")["cifar10-resnet50-ce"]
    pytest.importorskip("torch")
    from focalcal_papers.training import TrainConfig

    config = TrainConfig.from_dict(recipe)
    assert (config.epochs, config.lr, config.weight_decay) == (350, 0.1, 5e-4)
    assert (config.reduction, config.clip_norm, config.milestones) == ("sum", 2.0, (150, 250))
    assert len(EXPERIMENTS["ie/table1"].recipes("paper")) == 40
    text = EXPERIMENTS["ie/table1"].recipes("paper")["20newsgroups-text_cnn-mmce"]
    assert text["loss_settings"] == {"strength": 8.0}


def test_reference_tables_are_whole():
    assert len(reference.rows("intriguing_effects")) == 900
    assert len(reference.rows("intriguing_effects_s99")) == 6
    assert len(reference.rows("focal_temperature_scaling")) == 28
    assert reference.number("") is None
