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


@pytest.mark.parametrize("select", ["last", "best"])
def test_the_loss_of_a_run_has_the_gamma_that_it_ended_with(tmp_path, select):
    from focalcal_papers.training import TrainConfig, open_run, train

    config = TrainConfig(
        dataset="blobs",
        model="logistic",
        loss="adafocal",
        loss_settings={"bins": 3},
        epochs=2,
        select=select,
        data_settings={"n_train": 64, "n_test": 32},
    )
    run = tmp_path / "run"
    train(config, None, run, device="cpu")
    session = open_run(run, device="cpu")
    assert not torch.equal(session.loss.gammas, torch.ones(3))
    session.loss.reduction = "none"
    test = load("blobs", n_train=64, n_test=32).test
    operator = HessianOperator(session.model, session.loss, [(test.inputs, test.labels)])
    exact = (operator @ torch.eye(operator.shape[0])).trace().item()
    record = json.loads(call(run, "--loss", "adafocal", "--trace", "--json"))
    assert record["loss"] == "adafocal"
    assert record["trace"]["low"] <= exact <= record["trace"]["high"]
    for loss in ("fls-531", "adafocal"):
        source = [run] if loss == "fls-531" else ["--model", "logistic", "--dataset", "blobs"]
        if loss == "adafocal":
            path = tmp_path / "weights.pt"
            torch.save(session.model.state_dict(), path)
            source += ["--weights", path]
        with pytest.raises(InputError, match=f"got '{loss}', whose γ is learnt or scheduled"):
            call(*source, "--loss", loss)


def test_the_loss_of_a_run_has_its_settings(tmp_path):
    from focalcal.losses import DualFocalLoss
    from focalcal_papers.training import TrainConfig, open_run, train

    data = {"n_train": 64, "n_test": 32}
    settings = {"dataset": "blobs", "model": "logistic", "epochs": 1, "data_settings": data}
    config = TrainConfig(loss="dual-focal", loss_settings={"gamma": 1.0}, **settings)
    train(config, None, tmp_path / "run", device="cpu")
    record = json.loads(call(tmp_path / "run", "--loss", "dual-focal", "--trace", "--json"))
    session = open_run(tmp_path / "run", device="cpu")
    (batch,) = session.source.evaluation("test")
    loss = DualFocalLoss(gamma=1.0, reduction="none")
    operator = HessianOperator(session.model, loss, [(batch.inputs, batch.targets)])
    exact = float((operator @ torch.eye(operator.shape[0])).trace())
    assert record["trace"]["value"] == pytest.approx(exact, rel=0.2)
    other = HessianOperator(session.model, "dual-focal", [(batch.inputs, batch.targets)])
    assert float((other @ torch.eye(other.shape[0])).trace()) != pytest.approx(exact, rel=0.3)


def test_the_loss_of_a_run_with_a_curvature_penalty_is_refused(tmp_path):
    from focalcal_papers.training import TrainConfig, train

    data = {"n_train": 64, "n_test": 32}
    settings = {"dataset": "blobs", "model": "logistic", "epochs": 1, "data_settings": data}
    config = TrainConfig(loss="adafocal+curvature", **settings)
    train(config, None, tmp_path / "run", device="cpu")
    with pytest.raises(InputError, match=r"leave out [+]curvature"):
        call(tmp_path / "run", "--loss", "adafocal+curvature")


def test_without_eigenvalues_there_is_a_trace(weights):
    source = ["--model", "logistic", "--weights", weights, "--dataset", "blobs"]
    record = json.loads(call(*source, "--top", 0, "--json"))
    assert "trace" in record
    assert "top" not in record


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
