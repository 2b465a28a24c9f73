from __future__ import annotations

import doctest
import tomllib

import pytest

from focalcal.errors import FileFormatError, InputError
from focalcal_papers.recipes import FOLDER
from focalcal_papers.training import TrainConfig
from focalcal_papers.training import config as config_module
from focalcal_papers.training.config import learning_rate

RECIPES = sorted(FOLDER.glob("*.toml"))


def test_examples_run():
    result = doctest.testmod(config_module)
    assert result.attempted > 1
    assert result.failed == 0


def test_toml_gives_the_same_config_back(tmp_path):
    config = TrainConfig(
        dataset="cifar10",
        model="resnet18",
        loss="fla-53",
        loss_settings={"steps": [[0.2, 5.0], [1.0, 3.0]], "name": 'a "b" é'},
        snapshots=(1, 2),
        clip_norm=2,
    )
    path = tmp_path / "recipe.toml"
    path.write_text(config.to_toml(), encoding="utf-8")
    assert TrainConfig.load(path) == config


def test_unknown_setting_names_the_nearest():
    with pytest.raises(InputError, match="'weight_decy'; the nearest known one is 'weight_decay'"):
        TrainConfig.from_dict({"dataset": "a", "model": "b", "weight_decy": 1})
    with pytest.raises(InputError, match="nearest known one is 'epochs'"):
        TrainConfig(dataset="a", model="b").replace(epoch=3)
    with pytest.raises(InputError, match="unknown setting 'hidden'; known: dataset, model, loss"):
        TrainConfig(dataset="a", model="b").replace(hidden=3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 0}, "epochs at least 1, got 0"),
        ({"epochs": 2.5}, "epochs to be of type int, got 2.5"),
        ({"epochs": True}, "epochs to be of type int"),
        ({"lr": 0}, "lr > 0"),
        ({"lr": 1e300}, r"lr > 0 and < 3e\+38, got 1e\+300"),
        ({"weight_decay": 1e300}, r"weight_decay >= 0 and < 3e\+38"),
        ({"lr": "fast"}, "lr to be of type float, got 'fast'"),
        ({"lr": float("nan")}, "lr > 0"),
        ({"reduction": "none"}, "reduction to be one of mean, sum, got 'none'"),
        ({"clip_norm": -1}, "clip_norm >= 0"),
        ({"label_smoothing": 1}, r"label_smoothing in \[0, 1\)"),
        ({"momentum": 1}, r"momentum in \[0, 1\)"),
        ({"nesterov": True, "momentum": 0}, "nesterov used with"),
        ({"drops": [250, 150]}, "drops increasing"),
        ({"drops": 150}, "drops to be a list"),
        ({"snapshots": [351]}, "snapshots epochs in 1..350"),
        ({"loss_settings": 3}, "loss_settings to be a table"),
        ({"seed": -1}, "seed >= 0"),
        ({"loss": "ce+curvature", "compile": True}, "compile false for a loss that different"),
    ],
)
def test_impossible_settings_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        TrainConfig(dataset="cifar10", model="resnet18", **changes)


def test_files_that_are_no_recipes(tmp_path):
    with pytest.raises(FileFormatError, match="no file at"):
        TrainConfig.load(tmp_path / "absent.toml")
    path = tmp_path / "bad.toml"
    path.write_text("epochs = = 3")
    with pytest.raises(FileFormatError, match="expected TOML"):
        TrainConfig.load(path)
    path.write_text('dataset = "cifar10"')
    with pytest.raises(InputError, match=r"bad.toml: .* got no model"):
        TrainConfig.load(path)


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.stem)
def test_recipes_are_valid_and_explicit(path):
    TrainConfig.load(path)
    # These two decide the outcome, so no recipe leaves them to a default.
    assert {"reduction", "clip_norm"} <= tomllib.loads(path.read_text("utf-8")).keys()


def test_step_schedule_is_the_papers_and_scales():
    full = TrainConfig(dataset="cifar10", model="resnet18", epochs=350, lr=0.1)
    rates = [learning_rate(full, e) for e in range(350)]
    assert rates == pytest.approx([0.1] * 150 + [0.01] * 100 + [0.001] * 100)
    short = full.replace(epochs=70)
    assert [learning_rate(short, e) for e in range(70)] == pytest.approx(rates[::5])
    tiny = full.replace(epochs=100, drops=(40, 60), drops_of=100)
    assert [learning_rate(tiny, e) for e in (39.9, 40, 59, 60)] == pytest.approx(
        [0.1, 0.01, 0.01, 0.001]
    )


def test_cosine_and_warm_up():
    config = TrainConfig(
        dataset="cifar10", model="resnet18", epochs=10, lr=1.0, schedule="cosine", warmup_epochs=2
    )
    assert learning_rate(config, 0) == 0
    assert learning_rate(config, 5) == pytest.approx(0.5)
    assert learning_rate(config, 10) == pytest.approx(0, abs=1e-15)
    constant = config.replace(schedule="constant", warmup_epochs=4)
    assert [learning_rate(constant, e) for e in (1, 4, 9)] == [0.25, 1, 1]
