"""torchmetrics classes: equal to the metrics of one pass, in batches, clones and collections."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
torchmetrics = pytest.importorskip("torchmetrics", reason="torchmetrics is not installed")

from focalcal import metrics  # noqa: E402
from focalcal.errors import InputError  # noqa: E402
from focalcal.integrations import torchmetrics as ours  # noqa: E402

CLASSES = [
    (ours.ExpectedCalibrationError, metrics.ece),
    (ours.NegativeLogLikelihood, metrics.nll),
    (ours.BrierScore, metrics.brier),
    (ours.AdaptiveCalibrationError, metrics.adaptive_ece),
    (ours.SmoothCalibrationError, metrics.smooth_ece),
]


@pytest.fixture
def batch(sharp_data):
    z, y = sharp_data(500, 4)
    return torch.softmax(torch.as_tensor(z), dim=1), torch.as_tensor(y)


@pytest.mark.parametrize(("kind", "function"), CLASSES)
def test_batches_equal_one_pass(batch, kind, function):
    probs, labels = batch
    metric = kind(num_classes=4)
    for part in torch.arange(500).split(64):
        metric.update(probs[part], labels[part])
    streamed = metric.evaluation()[kind.name]
    bound = streamed.error_bound + 1e-6
    assert metric.compute().item() == pytest.approx(function(labels, probs), abs=bound)


def test_two_processes_equal_one(batch):
    probs, labels = batch
    whole, left, right = (ours.ExpectedCalibrationError(4) for _ in range(3))
    whole.update(probs, labels)
    left.update(probs[:100], labels[:100])
    right.update(probs[100:], labels[100:])
    left.state = left._reductions["state"](torch.stack([left.state, right.state]))
    assert left.compute() == whole.compute()


def test_confidence_one_is_counted_once():
    # torchmetrics' own class puts confidence 1.0 into a bin of its own.
    metric = ours.ExpectedCalibrationError(2)
    metric.update(torch.tensor([[1.0, 0.0], [0.98, 0.02]]), torch.tensor([1, 0]))
    assert metric.evaluation().reliability.counts[-1] == 2
    assert metric.compute().item() == pytest.approx(abs((1.0 + 0.98) / 2 - 0.5))


def test_collection_reset_and_forward(batch):
    probs, labels = batch
    both = torchmetrics.MetricCollection([ours.ExpectedCalibrationError(4), ours.BrierScore(4)])
    assert set(both(probs, labels)) == {"ExpectedCalibrationError", "BrierScore"}
    before = both.compute()
    both.reset()
    both.update(probs, labels)
    assert both.compute() == before


def test_dense_predictions_and_ignored_labels(batch):
    probs, labels = batch
    dense = probs.reshape(5, 10, 10, 4).movedim(-1, 1)
    target = labels.reshape(5, 10, 10).clone()
    target[0] = -1
    metric = ours.ExpectedCalibrationError(4, ignore_index=-1)
    metric.update(dense, target)
    metric.update(dense[:1], target[:1])
    assert metric.compute().item() == pytest.approx(metrics.ece(labels[100:], probs[100:]))


@pytest.mark.parametrize("logits", [False, True])
def test_one_score_for_each_of_two_classes(batch, logits):
    score = batch[0][:, 0]
    target = (batch[1] == 0).long()
    target[:3] = -100
    for shape in ((500,), (500, 1), (5, 10, 10)):
        metric = ours.ExpectedCalibrationError(1, logits=logits)
        metric.update((score.logit() if logits else score).view(shape), target.view(shape))
        torch.testing.assert_close(
            metric.compute().item(), metrics.ece(target[3:], score[3:]), rtol=1e-6, atol=0
        )


def test_a_batch_of_ignored_labels_has_no_value_and_changes_none(batch):
    probs, target = batch
    metric = ours.ExpectedCalibrationError(4)
    with pytest.warns(UserWarning, match="before the"), pytest.raises(InputError, match="at least"):
        metric.compute()
    assert metric(probs, torch.full_like(target, -100)).isnan()
    metric.update(probs, target)
    expected = metric.compute()
    assert metric(probs, torch.full_like(target, -100)).isnan()
    assert metric.compute() == expected


def test_logits_are_taken_where_it_is_said(batch):
    probs, labels = batch
    both = [ours.NegativeLogLikelihood(num_classes=4, logits=logits) for logits in (False, True)]
    both[0].update(probs, labels)
    both[1].update(probs.log() + 7, labels)
    torch.testing.assert_close(both[0].compute(), both[1].compute())


def test_the_number_of_classes_has_two_names_and_no_default(batch):
    assert ours.BrierScore(n_classes=4).n_classes == ours.BrierScore(num_classes=4).n_classes == 4
    with pytest.raises(InputError, match="expected num_classes"):
        ours.BrierScore()


def test_direction_and_range_are_those_of_the_declaration():
    accuracy = ours.CalibrationMetric(3, "accuracy")
    assert accuracy.higher_is_better is True
    assert (accuracy.plot_lower_bound, accuracy.plot_upper_bound) == (0.0, 1.0)
    nll = ours.NegativeLogLikelihood(3)
    assert nll.higher_is_better is False
    assert nll.plot_upper_bound is None


def test_certain_and_wrong_logits_keep_a_finite_nll():
    metric = ours.NegativeLogLikelihood(2, logits=True)
    metric.update(torch.tensor([[2000.0, 0.0]]), torch.tensor([1]))
    assert metric.compute() == 2000


def test_plot_draws_the_value(batch):
    pytest.importorskip("matplotlib").use("agg")
    metric = ours.ExpectedCalibrationError(num_classes=4)
    values = [metric(*batch), metric(*batch)]
    for drawn in (metric.plot(), metric.plot(values)):
        assert drawn[1].get_title() == "" or drawn[1] in drawn[0].axes
        assert drawn[1].lines


def test_unknown_names_are_refused():
    with pytest.raises(InputError, match="expected a metric of accuracy"):
        ours.CalibrationMetric(3, name="eec")


def test_vectors_of_other_settings_are_refused():
    with pytest.raises(InputError, match="for these settings"):
        metrics.CalibrationStats(2).add_vector(metrics.CalibrationStats(3).to_vector())


def test_vector_holds_the_whole_state(batch):
    probs, labels = batch
    stats = metrics.CalibrationStats(4).update(labels, probs)
    again = metrics.CalibrationStats(4).add_vector(stats.to_vector())
    assert again.to_json() == stats.to_json()
