"""What the report answers beyond the metrics: differences, slices, thresholds; and the monitor."""

from __future__ import annotations

import dataclasses
import json
import re

import numpy as np
import pytest

from focalcal import decisions, report
from focalcal.metrics import METRICS, Monitor, compare, evaluate_by
from focalcal.predictions import Predictions
from focalcal.report import monitor as monitor_page
from focalcal.report import render
from report.toys import calibrated


def toy(scale, noise=0.0, seed=0):
    rng = np.random.default_rng(seed)
    z = 2 * rng.normal(size=(1600, 3))
    y = np.argmax(z + rng.gumbel(size=z.shape), axis=1)
    z = scale * (z + noise * np.random.default_rng(seed + 1).normal(size=z.shape))
    extra = {"country": np.array(["DE", "<b>FI</b>"])[np.arange(1600) % 2]}
    return Predictions(logits=z, labels=y, extra=extra).split(seed=3)


@pytest.fixture(scope="module")
def data():
    settings = report.Settings(methods=("temperature",), resamples=20, by=("country",), folds=2)
    models = [report.Model("one", *toy(2.0)), report.Model("noisy", *toy(2.0, noise=1.0))]
    return report.report(models, settings), models


def test_models_are_compared_in_pairs_after_calibration(data):
    found, models = data
    (difference,) = found.differences
    assert (difference.first, difference.second) == ("noisy", "one")
    probs = [calibrated(model, "temperature") for model in models[::-1]]
    direct = compare(models[0].test.labels, *probs, resamples=20)
    for name in METRICS:
        got = difference.comparison[name].difference.value
        assert got == pytest.approx(direct[name].difference.value, nan_ok=True)
    assert difference.comparison["nll"].better == "second"


def test_models_on_other_samples_are_not_paired(data):
    _, models = data
    settings = report.Settings(methods=("temperature",), resamples=5, folds=2)
    other = report.Model("other", *toy(2.0, seed=9))
    assert report.report([models[0], other], settings).differences == ()


def test_slices_and_thresholds_are_those_of_the_library(data):
    found, models = data
    probs, test = calibrated(models[0], "temperature"), models[0].test
    direct = evaluate_by(test.labels, probs, by={"country": test.column("country")}, resamples=20)
    assert [s.p_value for s in found.models[0].slices.slices] == [s.p_value for s in direct.slices]
    for t in found.models[0].thresholds:
        own = decisions.threshold(test.labels, probs, target_accuracy=t.value)
        assert (t.threshold, t.decided) == (own.threshold, own.decided)


def test_the_page_shows_them_escaped(data):
    found, _ = data
    page = render.html(found)
    assert "one − noisy, paired on 800 test samples" in page
    assert "fig-m0-slices" in page
    assert "country=&lt;b&gt;FI&lt;/b&gt;" in page
    assert "<b>FI</b>" not in page
    assert "Choose for me" in page
    assert 'data-moves="m0-threshold"' in page
    json.loads(found.to_json())


def test_a_goal_out_of_reach_is_said_in_the_choices(data):
    found, _ = data
    model = found.models[0]
    never = dataclasses.replace(model.thresholds[0], threshold=np.inf)
    page = render.html(
        dataclasses.replace(found, models=(dataclasses.replace(model, thresholds=(never,)),))
    )
    (option,) = re.findall(r'<option value="0" (data-at.*?)</option>', page)
    at, words, goal = re.fullmatch(r'data-at="(.*)" data-words="(.*)">(.*)', option).groups()
    assert goal == "accuracy of at least 90 %"
    assert at == "100"
    assert "Guarantee: none" in words


def test_without_columns_the_page_says_how_to_ask(data):
    found, _ = data
    model = dataclasses.replace(found.models[0], slices=None)
    page = render.html(dataclasses.replace(found, models=(model,)))
    assert "name columns of the test file with --by" in page


def test_the_page_of_a_monitor_has_every_shown_metric_and_escapes_names(rng):
    def draw(n):
        z = 2 * rng.normal(size=(n, 3))
        p = np.exp(z)
        return np.argmax(z + rng.gumbel(size=z.shape), axis=1), p / p.sum(axis=1, keepdims=True)

    monitor = Monitor(*draw(400))
    y, p = draw(200)
    monitor.update("<script>", p, y)
    monitor.update("no labels", p)
    page = monitor_page.render(monitor)
    assert "<script></td>" not in page
    assert "&lt;script&gt;" in page
    for m in METRICS.values():
        if m.show and m.streams:
            assert m.title.replace("<", "&lt;") in page
    assert "No alarm after 2 batches." in page
    assert "No alarm after 0 batches." in monitor_page.render(Monitor(*draw(100)))
