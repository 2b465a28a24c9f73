"""`focalcal curvature` on a run made here and on a network with weights from a file."""

import json

import pytest
import torch
from typer.testing import CliRunner

from focalcal.cli import app
from focalcal.curvature import HessianOperator
from focalcal.errors import InputError
from focalcal_papers.data import load
from focalcal_papers.models import make_model


def call(*arguments):
    result = CliRunner().invoke(app, ["curvature", *map(str, arguments), "--device", "cpu"])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def weights(tmp_path):
    torch.manual_seed(0)
    model = make_model("logistic", 3, input_shape=(8,))
    path = tmp_path / "weights.pt"
    torch.save(model.state_dict(), path)
    return path


def test_a_network_from_a_file(weights, tmp_path):
    source = ["--model", "logistic", "--weights", weights, "--dataset", "blobs"]
    figure = tmp_path / "spectrum.png"
    record = json.loads(
        call(*source, "--trace", "--top", 2, "--samples", 50, "--figure", figure, "--json")
    )
    assert figure.stat().st_size > 0

    model = make_model("logistic", 3, input_shape=(8,))
    model.load_state_dict(torch.load(weights, weights_only=True))
    test = load("blobs").test
    operator = HessianOperator(model, "ce", [(test.inputs[:50], test.labels[:50])])
    exact = operator @ torch.eye(operator.shape[0])
    assert record["n"] == 50
    assert record["trace"]["low"] <= exact.trace().item() <= record["trace"]["high"] + 1e-9
    assert record["top"]["values"] == pytest.approx(
        torch.linalg.eigvalsh(exact).flip(0)[:2].tolist(), rel=1e-4
    )
    table = call(*source, "--loss", "fl-3", "--density", "--split", "train")
    assert "fl-3" in table
    assert "mean eigenvalue" in table
    assert "trace" not in table


@pytest.mark.parametrize(
    ("loss", "message"),
    [("mmce", "value per sample, got 'mmce'"), ("ce+curvature", "leave out [+]curvature")],
)
def test_losses_without_a_hessian_per_sample(weights, loss, message):
    with pytest.raises(InputError, match=message):
        call("--model", "logistic", "--weights", weights, "--dataset", "blobs", "--loss", loss)


def test_a_run(tmp_path):
    from focalcal_papers.training import TrainConfig, train

    config = TrainConfig(
        dataset="blobs",
        model="logistic",
        epochs=1,
        data_settings={"n_train": 64, "n_test": 32},
    )
    train(config, None, tmp_path / "run", device="cpu")
    table = call(tmp_path / "run", "--batch", 10)
    assert "trace" in table
    assert "λ1" in table
    assert "smallest λ" in table
    assert "32 test samples" in table


def test_refuses_unclear_requests(weights, tmp_path):
    source = ["--model", "logistic", "--weights", weights, "--dataset", "blobs"]
    for arguments, message in [
        ([], "got neither"),
        ([tmp_path, *source], "got both"),
        (["--model", "logistic", "--dataset", "blobs"], "expected --weights"),
        ([*source, "--split", "validation"], "--split"),
        ([*source, "--normalise", "mine"], "--normalise"),
        ([*source, "--batch", 0], "--batch"),
    ]:
        with pytest.raises(InputError, match=message):
            call(*arguments)
