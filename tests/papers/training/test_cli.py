from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from focalcal.cli import app
from focalcal.errors import InputError
from focalcal.predictions import Predictions
from focalcal_papers.cli.train import _configs, _parse_setting, _varied
from focalcal_papers.training import RunFolder, TrainConfig
from focalcal_papers.training import parallel as parallel_module
from focalcal_papers.training.parallel import train_many

OPTIONS = [
    *("--dataset", "blobs", "--model", "mlp", "--loss", "fl-3", "--epochs", "2"),
    *("--set", "data_settings.n_train=160", "--set", "model_settings.hidden=16"),
]


def invoke_main(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def invoke(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)


def test_train_by_options_then_predict(tmp_path):
    run, file = tmp_path / "run", tmp_path / "preds.npz"
    result = invoke("train", *OPTIONS, "--reduction", "mean", "--clip-norm", 0, "--out", run)
    assert result.exit_code == 0
    assert "finished" in result.stdout
    config = RunFolder.open(run).config
    assert (config.loss, config.reduction, config.clip_norm) == ("fl-3", "mean", 0.0)
    assert config.data_settings == {"n_train": 160}
    result = invoke("predict", run, "--split", "test", "-o", file)
    assert result.exit_code == 0
    assert "400 predictions of 3 classes" in result.stdout
    assert Predictions.load(file).n == 400
    result = invoke("predict", run, "--split", "train", "-o", file, "--json")
    assert json.loads(result.stdout)["n"] == 140


def test_json_and_pause(tmp_path):
    out = tmp_path / "run"
    result = invoke("train", *OPTIONS, "--out", out, "--stop-after", 0, "--json")
    assert json.loads(result.stdout)["state"] == "paused"
    assert "paused: these are its weights after 0 of 2 epochs" in (
        invoke("predict", out, "-o", tmp_path / "early.npz").stderr
    )
    result = invoke("train", *OPTIONS, "--out", out, "--json")
    record = json.loads(result.stdout)
    assert record["state"] == "finished"
    assert 0 <= record["test"]["ece"] <= 1


def test_options_go_on_top_of_a_recipe(tmp_path):
    recipe = tmp_path / "small.toml"
    recipe.write_text(TrainConfig(dataset="blobs", model="mlp", loss="ce").to_toml())
    changes = {"loss": "fl-1", "seed": 4, "model_settings.hidden": 8}
    assert _configs([recipe], changes) == {
        "small": TrainConfig(
            dataset="blobs", model="mlp", loss="fl-1", seed=4, model_settings={"hidden": 8}
        )
    }


def test_settings_on_the_command_line():
    assert _parse_setting("drops=[1, 2]") == ("drops", [1, 2])
    assert _parse_setting("loss=fl-3") == ("loss", "fl-3")
    assert _parse_setting("compile=true") == ("compile", True)
    with pytest.raises(InputError, match="expected --set NAME=VALUE"):
        _parse_setting("compile")


def test_a_run_for_each_value():
    base = TrainConfig(dataset="blobs", model="mlp")
    runs = _varied({"a": base}, ["loss=ce,fl-3", "seed=0,1"])
    assert list(runs) == ["a-ce-0", "a-ce-1", "a-fl-3-0", "a-fl-3-1"]
    assert runs["a-fl-3-1"] == base.replace(loss="fl-3", seed=1)
    assert _varied({"a": base}, ["lr=0.5"]) == {"a-0.5": base.replace(lr=0.5)}
    inside = _varied({"a": base}, ["model_settings.hidden=8,16"])
    assert [c.model_settings["hidden"] for c in inside.values()] == [8, 16]
    lists = _varied({"a": base}, ["drops=[1, 2],[3, 4]"])
    assert [c.drops for c in lists.values()] == [(1.0, 2.0), (3.0, 4.0)]
    for wrong in ("loss", "loss=", "seed=0,0"):
        with pytest.raises(InputError, match=r"--vary"):
            _varied({"a": base}, [wrong])


def test_one_value_to_vary_has_the_folder_it_has_beside_others(tmp_path):
    for values in ("0", "0,1"):
        given = ("train", *OPTIONS, "--vary", f"seed={values}", "--out", tmp_path)
        assert invoke(*given).exit_code == 0
        names = {path.name for path in tmp_path.iterdir() if path.is_dir()}
        assert names == {f"blobs-mlp-fl-3-0-{seed}" for seed in values.split(",")}


def test_what_cannot_be_trained(tmp_path):
    with pytest.raises(InputError, match=r"a recipe of 20newsgroups-cnn, .*; got cifar10-resnet"):
        invoke("train", "cifar10-resnet")
    with pytest.raises(InputError, match=r"expected a RECIPE.toml, or --dataset and --model"):
        _configs([], {"dataset": "blobs"})
    recipe = tmp_path / "a.toml"
    recipe.write_text('dataset = "blobs"\nmodel = "mlp"\n')
    (tmp_path / "b").mkdir()
    twin = tmp_path / "b" / "a.toml"
    twin.write_text(recipe.read_text())
    with pytest.raises(InputError, match="different names"):
        _configs([recipe, twin], {})
    with pytest.raises(InputError, match="expected a table before the dot"):
        _configs([recipe], {"lr.x": 1})


@pytest.mark.parametrize(
    ("setting", "wrong"),
    [
        ("loss", "focall-3"),
        ("model", "mpl"),
        ("dataset", "bolbs"),
        ("model_settings.hiden", 16),
        ("data_settings.n_train", 1),
        ("loss_settings.gama", 2),
        ("loss_settings.reduction", "none"),
        ("loss_settings.ignore_index", '"x"'),
        ("lr", "1e300"),
        ("model_settings.hidden", -3),
        ("model_settings.hidden", "wide"),
        ("data_settings.n_train", "many"),
    ],
)
def test_a_setting_that_cannot_be_used_leaves_nothing_behind(tmp_path, setting, wrong):
    run = tmp_path / "run"
    mistyped = invoke_main("train", *OPTIONS, "--set", f"{setting}={wrong}", "--out", run)
    assert isinstance(mistyped.exception, (InputError, SystemExit))
    assert mistyped.exit_code != 0
    assert not run.exists()
    assert invoke("train", *OPTIONS, "--out", run).exit_code == 0


def test_several_recipes_side_by_side_and_one_fails(config, tmp_path):
    for name, settings in (("good", config), ("bad", config.replace(loss="no-such-loss"))):
        (tmp_path / f"{name}.toml").write_text(settings.to_toml())
    out = tmp_path / "runs"
    result = invoke(
        *("train", tmp_path / "good.toml", tmp_path / "bad.toml"),
        *("--parallel", 2, "--out", out, "--device", "cpu", "--json"),
    )
    assert result.exit_code == 1
    states = {record["run"]: record["state"] for record in json.loads(result.stdout)}
    assert states == {"good": "finished", "bad": "failed"}
    assert "unknown loss" in (out / "bad.log").read_text()


def test_runs_that_did_not_begin_in_time_stay_new(config, tmp_path):
    states = train_many([config], None, [tmp_path / "run"], stop_after=-1.0)
    assert [state["state"] for state in states] == ["new"]
    with pytest.raises(InputError, match="at least 1 run"):
        train_many([config], None, [tmp_path / "run"], at_once=0)


def test_mps_is_started_for_the_runs_and_ended_with_them(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="nvidia-cuda-mps-control on the PATH"):
        train_many([], None, [], mps=True)
    calls = tmp_path / "calls"
    tool = tmp_path / "nvidia-cuda-mps-control"
    tool.write_text(f'#!/bin/sh\necho "$1 $CUDA_MPS_PIPE_DIRECTORY" >> {calls}\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with parallel_module._gpu_sharing(True) as environment:
        assert environment["CUDA_MPS_PIPE_DIRECTORY"] in calls.read_text()
    assert len(calls.read_text().splitlines()) == 2
