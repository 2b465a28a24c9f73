"""CONTRIBUTING.md, followed: a metric, a calibrator and a loss of a few lines each."""

from __future__ import annotations

import importlib
import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from sklearn.base import clone
from typer.testing import CliRunner

from focalcal import bins as _bins
from focalcal import metrics
from focalcal._arrays import log_softmax, namespace
from focalcal.calibrators import METHODS, load, make
from focalcal.calibrators.base import Calibrator
from focalcal.cli import app
from focalcal.errors import InputError
from focalcal.predictions import Predictions

GUIDE = (Path(__file__).resolve().parents[1] / "CONTRIBUTING.md").read_text()


class PriorShift(Calibrator):
    """A calibrator: adds to every logit what makes the mean prediction the class frequency."""

    method = "prior-shift"
    summary = "one offset per class, towards the class frequencies"
    state: ClassVar[dict[str, str | None]] = {"offset_": "K"}

    def __init__(self, task: str = "auto") -> None:
        self.task = task

    def _fit(self, data):
        logits, labels, weights = data.numpy()
        said = np.average(np.exp(log_softmax(logits)), axis=0, weights=weights)
        seen = np.bincount(labels, weights=weights, minlength=data.n_classes) + 1
        self.offset_ = np.log(seen / seen.sum()) - np.log(said)
        return {}

    def _log_proba(self, logits):
        xp = namespace(logits)
        return log_softmax(logits + xp.astype(xp.asarray(self.offset_), logits.dtype))


@pytest.fixture
def data(rng):
    z = 2 * rng.normal(size=(400, 3))
    return z, np.argmax(z + np.eye(3)[0] + rng.gumbel(size=z.shape), axis=1)


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setitem(METHODS, PriorShift.method, PriorShift)


def test_the_guide_names_what_this_test_follows():
    for heading in ("## Adding a metric", "## Adding a calibrator", "## Adding a loss"):
        assert heading in GUIDE
    for part in ("_fit", "_log_proba", "state", "focalcal.bins"):
        assert part in GUIDE


METRIC = '''
"""Two metrics: one of bins, one of a sum of its own."""
import numpy as np
from focalcal.metrics import metric

@metric("under-confidence")
def underconfidence(s):
    """Mean excess of the bins' accuracy over their confidence."""
    b = s.top
    return np.maximum(b.correct_sums - b.confidence_sums, 0).sum(axis=-1) / s.total

@metric(
    "squared log-loss", unit="", range=(0, np.inf), needs=("sums",),
    sums={"squared_nll": lambda c, threshold: c.nll**2},
)
def squared_nll(s):
    """Mean of (ln p_y)^2."""
    return s.mean("squared_nll")
'''


@pytest.fixture
def declared(tmp_path, monkeypatch):
    """The module of METRIC, imported from a file of its own; its declarations are undone."""
    from focalcal import stats

    (tmp_path / "own_metric.py").write_text(METRIC)
    monkeypatch.syspath_prepend(tmp_path)
    known = set(metrics.METRICS), set(stats.SUMS)
    yield importlib.import_module("own_metric")
    sys.modules.pop("own_metric")
    for registry, names in zip((metrics.METRICS, stats.SUMS), known):
        for name in set(registry) - names:
            del registry[name]


def test_a_metric_is_one_declaration_in_one_file(declared, data, tmp_path):
    """evaluate, JSON, terminal, report, streaming, merging, JSON of the statistics and Dask."""
    z, y = data
    p = np.exp(log_softmax(z))
    edges = _bins.equal_width_edges(15)
    c, right = p.max(axis=1), p.argmax(axis=1) == y
    inside = [(c > lo) & (c <= hi) for lo, hi in pairwise(edges)]
    expected = {
        "underconfidence": sum(max(0.0, right[i].sum() - c[i].sum()) for i in inside) / len(y),
        "squared_nll": np.mean(np.log(p[np.arange(len(y)), y]) ** 2),
    }
    predictions = Predictions(logits=z, labels=y)
    predictions.save(tmp_path / "p.npz")
    predictions.save(tmp_path / "p.parquet")
    e = metrics.evaluate(predictions, resamples=50)
    halves = [metrics.CalibrationStats(3).update(y[i::2], logits=z[i::2]) for i in (0, 1)]
    merged = metrics.CalibrationStats.from_json(halves[0].merge(halves[1]).to_json()).compute()
    run = CliRunner().invoke
    printed = json.loads(run(app, ["evaluate", str(tmp_path / "p.npz"), "--json"]).stdout)
    table = run(app, ["evaluate", str(tmp_path / "p.npz"), "--resamples", "20"]).stdout
    at_scale = ["evaluate", str(tmp_path / "p.parquet"), "--json", "--engine"]
    engines = [json.loads(run(app, [*at_scale, name]).stdout) for name in ("stream", "dask")]
    listed = run(app, ["methods", "--metrics"]).stdout
    for name, value in expected.items():
        assert getattr(declared, name)(y, p) == pytest.approx(value)
        assert e[name].value == pytest.approx(value)
        assert e[name].low <= value <= e[name].high
        assert merged[name].value == pytest.approx(value)
        for found in (printed, *engines):
            assert found["metrics"][name]["value"] == pytest.approx(value)
        assert metrics.METRICS[name].title in table
        assert name in listed


def test_a_metric_shows_in_the_report(declared, data):
    from focalcal.report import render

    assert [m.name for m in render.columns()][-2:] == ["underconfidence", "squared_nll"]
    assert "under-confidence, %" in [m.heading for m in render.columns()]


def test_weights_equal_repetition(declared, data):
    z, y = data
    w = np.random.default_rng(1).integers(1, 4, len(y))
    for metric in (declared.underconfidence, declared.squared_nll):
        repeated = metric(np.repeat(y, w), logits=np.repeat(z, w, axis=0))
        assert metric(y, logits=z, sample_weight=w) == pytest.approx(repeated)


def test_a_calibrator_keeps_the_contract(registered, data, tmp_path):
    z, y = data
    calibrator = make("prior-shift").fit(z, y)
    p = calibrator.predict_proba(z)
    np.testing.assert_allclose(p.sum(axis=1), 1)
    assert metrics.nll(y, p) < metrics.nll(y, make("identity").fit(z, y).predict_proba(z))
    np.testing.assert_array_equal(clone(calibrator).fit(z, y).predict_proba(z), p)
    calibrator.save(tmp_path / "c.json")
    np.testing.assert_array_equal(load(tmp_path / "c.json").predict_proba(z), p)
    w = np.random.default_rng(1).integers(0, 3, len(y))
    weighted = make("prior-shift").fit(z, y, sample_weight=w)
    assert weighted.predict_proba(z).shape == p.shape
    assert make("prior-shift", task="multilabel").fit(z, (z > 0).astype(int)).n_classes_ == 3
    with pytest.raises(InputError, match="row 3"):
        calibrator.fit(np.where(np.arange(len(z))[:, None] == 3, np.nan, z), y)


def test_a_calibrator_gets_torch_and_onnx_for_nothing(registered, data, tmp_path):
    torch = pytest.importorskip("torch")
    z, y = data
    calibrator = make("prior-shift").fit(z, y)
    p = calibrator.predict_proba(z)
    np.testing.assert_allclose(calibrator.to_torch()(torch.as_tensor(z)).numpy(), p, atol=1e-12)
    runtime = pytest.importorskip("onnxruntime")
    calibrator.to_onnx(tmp_path / "c.onnx")
    session = runtime.InferenceSession(tmp_path / "c.onnx")
    (q,) = session.run(None, {"logits": z.astype(np.float32)})
    np.testing.assert_allclose(q, p, atol=1e-5)


def test_a_loss():
    torch = pytest.importorskip("torch")
    from focalcal.losses import BrierLoss, Loss, make_loss
    from focalcal.losses.registry import LOSSES

    class HalfBrierLoss(Loss):
        """A loss: half the Brier score."""

        def values(self, problem):
            return 0.5 * BrierLoss().values(problem)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(LOSSES, "half-brier", HalfBrierLoss)
        loss = make_loss("half-brier", ignore_index=2)
    z = torch.randn(6, 4, 5, dtype=torch.float64, requires_grad=True)
    target = torch.randint(4, (6, 5))
    kept = target != 2
    q = torch.softmax(z, dim=1).movedim(1, -1)[kept]
    expected = 0.5 * (q - torch.nn.functional.one_hot(target[kept], 4)).square().sum(1).mean()
    torch.testing.assert_close(loss(z, target), expected)
    assert torch.autograd.gradcheck(lambda x: loss(x, target), z)
    extreme = torch.tensor([[1e4, -1e4, 0, 0]], requires_grad=True)
    loss(extreme, torch.tensor([1])).backward()
    assert extreme.grad.isfinite().all()
