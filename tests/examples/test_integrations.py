"""Every integration example runs and does what it says."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(name, *arguments, needs=()):
    for package in needs:
        pytest.importorskip(package, reason=f"{package} is not installed")
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"](*arguments)


def test_scikit_learn_pipeline():
    scores = run("sklearn_pipeline")
    assert scores["focalcal"][0] < scores["random forest"][0] / 2
    assert scores["focalcal"][1] < scores["random forest"][1]


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
def test_gradient_boosting():
    for before, after in run("gradient_boosting", needs=("xgboost", "lightgbm")).values():
        assert after < before


def test_plain_pytorch_and_onnx(tmp_path):
    found = run("plain_pytorch", tmp_path, needs=("torch", "onnx", "onnxruntime"))
    assert found["after"] < found["before"]
    assert found["onnx"] < 1e-5


@pytest.mark.filterwarnings("ignore")  # Lightning warns of workers and intervals
def test_lightning_callback(tmp_path):
    logged, calibrator = run(
        "lightning_callback", tmp_path, needs=("torch", "pytorch_lightning", "tensorboard")
    )
    assert 0 < logged["val_ece"] < 1
    assert calibrator.temperature_ < 1  # focal loss leaves the network under-confident


@pytest.mark.filterwarnings("ignore")  # the Trainer warns of pinned memory and more
def test_hugging_face_trainer(tmp_path):
    found = run("huggingface_trainer", tmp_path, needs=("torch", "transformers", "accelerate"))
    assert found["eval_accuracy"] > 0.6
    assert 0 < found["eval_ece"] < 1


def test_torchmetrics_collection():
    found = run("torchmetrics_collection", needs=("torch", "torchmetrics"))
    assert 0.05 < found["ExpectedCalibrationError"] < 0.3


def test_tensorboard_log(tmp_path):
    folder = run("tensorboard_log", tmp_path, needs=("torch", "tensorboard", "matplotlib"))
    assert list(folder.glob("events.*"))


def test_segmentation():
    found = run("segmentation", needs=("torch",))
    assert found["temperature"] == pytest.approx(2, rel=0.05)
    assert found["pixels"] == 8 * 4 * 30 * 32
    assert found["after"] < 0.02 < found["before"]


def test_multilabel():
    for before, after in run("multilabel", needs=("torch",)).values():
        assert after < before


def test_dataframe_columns():
    pandas, polars = run("dataframe_columns", needs=("pandas", "polars"))
    assert pandas == pytest.approx(polars)


def test_language_model_answers(tmp_path):
    found = run("language_model_answers", tmp_path)
    before, after = found["arithmetic"]
    assert before > 0.15
    assert after < before / 2
    assert found["geography"][0] < 0.08  # honest to begin with
