"""The recipes are valid, and every command of the list of runs that are left can start."""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from focalcal.cli import app
from focalcal_papers.recipes import FOLDER

pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
LINES = (ROOT / "papers" / "recipes" / "README.md").read_text("utf-8").splitlines()
COMMANDS = [line for line in LINES if line.startswith("focalcal train ")]


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.toml")), ids=lambda p: p.stem)
def test_recipes_load_and_are_listed(path):
    from focalcal_papers.training import TrainConfig

    TrainConfig.load(path)
    assert any(path.name in line for line in LINES if line.startswith("| ")), path.name


def test_a_recipe_by_name_or_by_path(monkeypatch, tmp_path):
    (named,) = _started(monkeypatch, "focalcal train fashion-mnist-mlp --loss ce")
    copy = tmp_path / "own.toml"
    copy.write_text((FOLDER / "fashion-mnist-mlp.toml").read_text("utf-8"), "utf-8")
    (own,) = _started(monkeypatch, f"focalcal train {copy} --loss ce")
    assert named == own
    assert (named.dataset, named.loss) == ("fashion_mnist", "ce")


def _started(monkeypatch, command):
    """The configs a command would train."""
    from focalcal_papers.training import loop, parallel

    found = []

    def one(config, *_, **__):
        found.append(config)
        return SimpleNamespace(folder=Path("r"))

    monkeypatch.setattr(loop, "train", one)
    monkeypatch.setattr(
        parallel, "train_many", lambda configs, *_, **__: found.extend(configs) or []
    )
    monkeypatch.setattr(parallel, "summary", lambda folder: {"run": "r", "state": "finished"})
    monkeypatch.chdir(ROOT)
    done = CliRunner().invoke(app, shlex.split(command)[1:])
    assert done.exit_code == 0, done.output
    return found


@pytest.mark.parametrize("command", COMMANDS)
def test_listed_commands_make_valid_runs(command, monkeypatch):
    from focalcal.losses import make_loss
    from focalcal_papers.models import model_settings

    found = _started(monkeypatch, command)
    varied = [part.split()[0].split(",") for part in command.split("--vary ")[1:]]
    assert len(found) == math.prod(map(len, varied))
    for config in found:
        make_loss(config.loss, reduction=config.reduction, **config.loss_settings)
        model_settings(config.model)
