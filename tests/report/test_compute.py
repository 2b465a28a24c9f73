"""Every number of a report is the library's, and the test set has no part in the choice."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from focalcal import calibrators, metrics
from focalcal.errors import InputError
from focalcal.predictions import Predictions
from focalcal.report import (
    Model,
    Settings,
    default_methods,
    load_folder,
    report,
    sentences,
    write,
)
from focalcal.report.landscape import landscape
from report.toys import EVIL, METHODS, calibrated, toy


def test_metrics_equal_evaluate(model, data):
    for result in data.models[0].methods:
        probs = calibrated(model, result.method)
        own = metrics.evaluate(model.test.labels, probs, resamples=30)
        for name, estimate in own.metrics.items():
            shown = dataclasses.astuple(result.evaluation[name])
            assert shown == pytest.approx(dataclasses.astuple(estimate), rel=0, abs=0, nan_ok=True)


def test_views_equal_the_functions_of_metrics(model, data):
    one = data.models[0]
    for view in (one.before, one.after):
        y, p = model.test.labels, calibrated(model, view.method)
        assert view.class_ece.mean() == pytest.approx(metrics.classwise_ece(y, p), rel=1e-12)
        for k in range(4):
            own = metrics.ece(y == k, confidence=p[:, k])
            assert view.class_ece[k] == pytest.approx(own, rel=1e-12)
        assert view.curve.area == metrics.aurc(y, p)
        assert view.stops.coverage[90] == np.mean(p.max(axis=1) >= 0.9)
        kept = p.max(axis=1) >= 0.9
        assert view.stops.risk[90] == pytest.approx(np.mean(p.argmax(axis=1)[kept] != y[kept]))
        assert view.confidence.counts.sum() == len(y)


def test_the_bin_that_adds_most_holds_samples_where_no_bin_errs():
    labels = np.arange(60) % 3
    sure = Predictions(probs=np.eye(3)[labels], labels=labels)
    made = report([Model("sure", sure, sure)], Settings(methods=("temperature",), resamples=5))
    text = sentences.reliability_text(made.models[0].before)
    assert "0.93–1.00 with 60 samples, confidence 100.0 % and accuracy 100.0 %" in text


def test_the_split_of_a_loss_is_before_less_after(model, data):
    one = data.models[0]
    for name, part in one.split.items():
        before, after = (v.evaluation[name].value for v in (one.before, one.after))
        assert part.value == pytest.approx(before, rel=1e-9)
        assert part.stays == pytest.approx(after, rel=1e-9)
        assert part.removed == pytest.approx(before - after, rel=1e-9)
    y = model.test.labels
    probs = [calibrated(model, v.method) for v in (one.before, one.after)]
    gains = np.log(probs[1] / probs[0])[np.arange(len(y)), y]
    error = gains.std() / np.sqrt(len(y))
    assert one.split["nll"].standard_error == pytest.approx(error, rel=1e-6)


def test_the_choice_does_not_see_the_test_set(model, data):
    turned = dataclasses.replace(model.test, labels=(model.test.labels + 1) % 4)
    other = report(
        [Model("turned", model.val, turned)], Settings(methods=METHODS, resamples=5)
    ).models[0]
    assert other.chosen == data.models[0].chosen
    assert other["temperature"].validation_nll == data.models[0]["temperature"].validation_nll
    assert other.calibrator == data.models[0].calibrator


@pytest.mark.filterwarnings("ignore")
def test_the_choice_is_made_by_the_losses_that_auto_sees(model, data):
    one = data.models[0]
    candidates = ("identity", "temperature", "focal-temperature", "vector")
    auto = calibrators.make("auto", candidates=candidates)
    auto.fit(model.val.logits, model.val.labels)
    scores = {m.method: m.validation_nll for m in one.methods if m.validation_nll is not None}
    assert scores == {row.method: row.nll for row in auto.table_}
    best = min(auto.table_, key=lambda row: row.nll)
    chosen = next(row for row in auto.table_ if row.method == one.chosen)
    assert chosen.nll <= best.nll + best.standard_error
    assert one.before.method == "identity"


def test_wrong_samples_are_wrong_and_sorted(model, data):
    found = data.models[0].wrong
    assert found
    names = model.test.class_names
    for w in found:
        assert w["true"] == names[model.test.labels[w["row"]]] != w["predicted"]
    confidences = [w["confidence_after"] for w in found]
    assert confidences == sorted(confidences, reverse=True)


def test_verdict_is_one_sentence_with_the_numbers(data):
    one = data.models[0]
    assert one.verdict.startswith("Over-confident by ")
    for view in (one.before, one.after):
        assert f"{100 * view.evaluation['ece'].value:.2f} %" in one.verdict
    assert data.verdict == one.verdict
    assert one.verdict.count(". ") == 0


def test_a_calibrated_model_is_not_called_overconfident(two):
    assert two.models[0].verdict.startswith("No sign of miscalibration")
    assert "lowest NLL" in two.verdict


@pytest.mark.filterwarnings("ignore")
def test_landscape_equals_the_metric_at_its_points(model):
    z, y = model.val.logits, model.val.labels
    found = landscape(z, y)
    for i, j in ((0, 10), (12, 30), (-1, -1)):
        fitted = calibrators.FocalTemperatureScaling()
        fitted.n_classes_, fitted.gamma_ = 4, float(found.gammas[i])
        fitted.temperature_ = float(found.temperatures[j])
        own = metrics.adaptive_ece(y, fitted.predict_proba(z))
        assert found.errors[i, j] == pytest.approx(own, abs=1e-9)
    for search, best in (("grid", found.grid), ("line", found.line)):
        own = calibrators.make("focal-temperature", objective="adaptive_ece", search=search)
        own.fit(z, y)
        assert best == (own.gamma_, own.temperature_)


def test_json_is_strict_and_complete(data):
    record = json.loads(data.to_json(), parse_constant=lambda text: pytest.fail(text))
    one = record["models"][0]
    assert [m["method"] for m in one["methods"]] == list(METHODS)
    assert one["class_names"][2] == EVIL
    loaded = calibrators.persistence.from_dict(one["calibrator"], calibrators.METHODS)
    assert loaded.method == one["chosen"]


def test_every_registered_method_is_reported_by_default():
    assert set(calibrators.METHODS) - set(default_methods(10)) <= {"auto", "prior-correction"}
    assert "matrix" not in default_methods(1000)


def test_binary_logits_of_one_column(rng):
    s = 4 * rng.normal(size=600)
    y = (rng.random(600) < 1 / (1 + np.exp(-s / 2))).astype(int)
    halves = Predictions(logits=s, labels=y).split()
    found = report([Model("b", *halves)], Settings(methods=("temperature",), resamples=5))
    assert found.models[0].n_classes == 2
    assert found.models[0]["temperature"].parameters["temperature"] > 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v, t: (v, dataclasses.replace(t, labels=None)), "labels in the test set"),
        (
            lambda v, t: (v, Predictions(logits=t.logits[:, :3], labels=t.labels % 3)),
            "same classes",
        ),
        (
            lambda v, t: (
                v,
                Predictions(logits=t.logits, labels=(t.logits > 0).astype(int), task="multilabel"),
            ),
            "expected one task, got auto in the validation and multilabel in the test set",
        ),
        (
            lambda v, t: (
                Predictions(logits=np.zeros((9, 21)), task="multilabel"),
                Predictions(logits=np.zeros((9, 21)), task="multilabel"),
            ),
            "at most 20 labels on one page, got 21",
        ),
    ],
)
def test_bad_predictions_are_refused(change, message):
    with pytest.raises(InputError, match=message):
        report([Model("m", *change(*toy(n=60)))], Settings(methods=("temperature",), resamples=5))


@pytest.mark.parametrize(
    ("methods", "message"),
    [(("nonsense",), "nonsense"), (("identity",), "besides identity"), ((), "besides identity")],
)
def test_bad_methods_are_refused(model, methods, message):
    with pytest.raises(InputError, match=message):
        report([model], Settings(methods=methods))


def test_models_need_different_names(model):
    for models in ([], [model, model]):
        with pytest.raises(InputError, match="different names"):
            report(models)


def test_folders_of_both_kinds(tmp_path, model):
    for folder, val in (("plain", "val"), ("run/predictions", "calibration")):
        (tmp_path / folder).mkdir(parents=True)
        model.val.save(tmp_path / folder / f"{val}.npz")
        model.test.save(tmp_path / folder / "test.npz")
    for folder in ("plain", "run"):
        found = load_folder("x", tmp_path / folder)
        assert (found.val.n, found.test.n) == (model.val.n, model.test.n)
    with pytest.raises(InputError, match=r"expected val.npz .* got plain, run"):
        load_folder("x", tmp_path)
    with pytest.raises(InputError, match="expected a folder"):
        load_folder("x", tmp_path / "nowhere")


def test_unknown_format_is_refused(tmp_path, data):
    with pytest.raises(InputError, match="expected a format"):
        write(data, tmp_path / "report.pdf")
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("ignore")
def test_zeros_need_no_floor(rng, tmp_path):
    # votes of twenty trees; one test label has probability zero
    p = rng.multinomial(20, [0.7, 0.2, 0.1], size=200) / 20
    y = np.array([rng.choice(3, p=row) for row in p])
    y[150:] = p[150:].argmax(axis=1)
    y[199], p[199] = 2, (0.9, 0.1, 0.0)
    parts = [Predictions(probs=p[a:b], labels=y[a:b]) for a, b in ((0, 150), (150, 200))]
    methods = ("identity", "temperature")
    data = report([Model("forest", *parts)], Settings(methods=methods, resamples=5))
    write(data, tmp_path / "report.html")
    one = data.models[0]
    assert one["identity"].evaluation["nll"].value == np.inf
    assert "NLL ∞" in one.verdict
    assert one.chosen == "identity"
    assert one.split["nll"].removed == 0
    assert np.isfinite(one["temperature"].evaluation["nll"].value)
    assert (tmp_path / "report.html").stat().st_size > 0


def test_one_column_has_the_brier_score_of_evaluate(rng):
    p = rng.uniform(0.02, 0.98, size=(2, 400))
    y = (rng.random(p.shape) < p).astype(int)
    val, test = (Predictions(probs=a, labels=b) for a, b in zip(p, y))
    settings = Settings(methods=("identity", "temperature"), resamples=10)
    one = report([Model("m", val, test)], settings).models[0]
    expected = metrics.brier(y[1], p[1])
    assert one.before.evaluation["brier"].value == pytest.approx(expected)
    assert one.split["brier"].value == pytest.approx(expected)
    split = calibrators.improvement(np.log(p[1] / (1 - p[1])), y[1], calibrators.Identity())
    assert split["brier"].value == pytest.approx(expected)
