"""`focalcal demo`: from the predictions in the package to a verdict and a page."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from focalcal import calibrators, metrics
from focalcal.cli import app
from focalcal.report import demo

runner = CliRunner()


def test_embedded_models_have_both_sets_and_a_provenance():
    models = demo.embedded_models()
    assert len(models) >= 2
    for model in models:
        assert model.val.n_classes == model.test.n_classes
        assert model.val.provenance["split"] != model.test.provenance["split"]


@pytest.mark.slow
def test_demo_needs_no_torch_and_prints_verdict_and_path(tmp_path):
    few = """
import sys
class NoTorch:
    def find_spec(self, name, *_):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, NoTorch())
from focalcal.report import demo, Settings
demo.settings = lambda: Settings(methods=("temperature",), resamples=10, folds=2)
from focalcal.cli import main
main()
"""
    out = subprocess.run(
        [sys.executable, "-c", few, "demo", "--json", "-o", "page/report.html"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert out.returncode == 0, out.stderr
    record = json.loads(out.stdout)
    page = (tmp_path / record["path"]).read_text()
    assert len(page) < 6e6
    for model, shown in zip(demo.embedded_models(), record["models"], strict=True):
        fitted = calibrators.make("temperature").fit(model.val.logits, model.val.labels)
        ece = metrics.ece(model.test.labels, fitted.predict_proba(model.test.logits))
        assert shown["name"] == model.name
        assert f"to {100 * ece:.2f} %" in shown["verdict"]


def test_demo_fits_every_method():
    left_out = {"auto", "prior-correction"}
    assert set(demo.settings().methods) | left_out == set(calibrators.METHODS)


@pytest.mark.slow
def test_demo_train_compares_two_networks(tmp_path, monkeypatch):
    pytest.importorskip("torch", reason="training needs torch")
    trained = demo.trained_models
    monkeypatch.setattr(demo, "trained_models", lambda folder, **o: trained(folder, epochs=2))
    few = demo.Settings(methods=("temperature",), resamples=5, folds=2)
    monkeypatch.setattr(demo, "settings", lambda: few)
    arguments = ["demo", "--train", "--json", "-o", str(tmp_path / "report.json")]
    result = runner.invoke(app, arguments)
    assert result.exit_code == 0, result.output
    names = [m["name"] for m in json.loads((tmp_path / "report.json").read_text())["models"]]
    assert names == list(demo.LIVE)


def test_training_without_torch_names_the_extra(tmp_path, monkeypatch):
    from focalcal.errors import MissingExtraError

    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"focalcal\[torch\]"):
        demo.trained_models(tmp_path)
