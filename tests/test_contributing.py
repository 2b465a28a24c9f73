"""CONTRIBUTING.md, followed: a metric, a calibrator and a loss of a few lines each."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from sklearn.base import clone

from focalcal import bins as _bins
from focalcal import metrics
from focalcal._arrays import log_softmax, namespace
from focalcal.calibrators import METHODS, load, make
from focalcal.calibrators.base import Calibrator
from focalcal.errors import InputError

GUIDE = (Path(__file__).resolve().parents[1] / "CONTRIBUTING.md").read_text()


def underconfidence(y_true, y_prob, *, sample_weight=None):
    """A metric: by how much the bins' accuracy exceeds their confidence, on average."""
    b = metrics.reliability(y_true, y_prob, sample_weight=sample_weight)
    return float(np.nansum(b.share * np.maximum(b.accuracy - b.mean_confidence, 0)))


class PriorShift(Calibrator):
    """A calibrator: adds to every logit what makes the mean prediction the class frequency."""

    method = "prior-shift"
    summary = "one offset per class, towards the class frequencies"
    state: ClassVar[tuple[str, ...]] = ("offset_",)

    def __init__(self, task: str = "auto") -> None:
        self.task = task

    def _state_shapes(self):
        return {"offset_": (self.n_classes_,)}

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


def test_a_metric(rng):
    p = rng.uniform(0.5, 1, 200)
    y = (rng.random(200) < p**0.3).astype(int)
    edges = _bins.equal_width_edges(15)
    inside = [(p > lo) & (p <= hi) for lo, hi in pairwise(edges)]
    expected = sum(max(0.0, y[i].sum() - p[i].sum()) for i in inside) / 200
    assert underconfidence(y, p) == pytest.approx(expected)
    w = rng.integers(1, 4, 200)
    repeated = underconfidence(np.repeat(y, w), np.repeat(p, w))
    assert underconfidence(y, p, sample_weight=w) == pytest.approx(repeated)
    assert underconfidence([1], [0.9]) == pytest.approx(0.1)


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
