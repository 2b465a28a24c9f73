"""What the report answers beyond the metrics: differences, slices, thresholds; and the monitor."""

from __future__ import annotations

import dataclasses
import json
import re

import numpy as np
import pytest

from focalcal import decisions, report
from focalcal.metrics import METRICS, Monitor, compare, evaluate_by
from focalcal.metrics.monitoring import ADVICE
from focalcal.predictions import Predictions
from focalcal.report import monitor as monitor_page
from focalcal.report import page, render, sentences
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
    found = report.report([models[0], other], settings)
    assert found.differences == ()
    apart = (
        "The models were measured on different test samples, so the lowest NLL does not show which "
        "is better"
    )
    assert found.headline.endswith(f" (other). {apart}.")
    assert found.verdict.startswith(f"{apart} (one: ECE ")
    # Two of three on the same samples are compared, but the three not ranked.
    three = report.report([models[0], other, models[1]], settings)
    assert [(d.first, d.second) for d in three.differences] == [("noisy", "one")]
    assert apart in three.verdict


@pytest.mark.parametrize("kind", [int, str])
def test_models_are_paired_by_ids_and_class_names(data, kind):
    """Another order of the rows and of the classes are the same samples, other ids are not."""
    found, models = data
    rng, names, order = np.random.default_rng(5), ("ant", "bee", "cow"), [2, 0, 1]

    def named(model, name, ids):
        parts = [dataclasses.replace(part, class_names=names) for part in (model.val, model.test)]
        return report.Model(name, parts[0], dataclasses.replace(parts[1], ids=ids))

    ids = np.arange(models[0].test.n)
    one, noisy = named(models[0], "one", ids), named(models[1], "noisy", ids.astype(kind))
    parts = [
        dataclasses.replace(
            part,
            logits=part.logits[:, order],
            labels=np.argsort(order)[part.labels],
            class_names=[names[k] for k in order],
        )
        for part in (noisy.val, noisy.test)
    ]
    shuffled = report.Model("noisy", parts[0], parts[1].take(rng.permutation(len(ids))))
    settings = report.Settings(methods=("temperature",), resamples=20, folds=2)
    (pair,) = report.report([one, shuffled], settings).differences
    assert (pair.first, pair.second) == ("noisy", "one")
    for name in ("nll", "brier", "accuracy", "ece"):
        expected = found.differences[0].comparison[name].difference.value
        assert pair.comparison[name].difference.value == pytest.approx(expected)
    assert report.report([one, named(models[1], "b", ids + 7)], settings).differences == ()


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


def test_markdown_compares_in_pairs_and_says_how_to_deploy_as_the_page_does(data):
    found, _ = data
    text = render.markdown(found)
    assert "one − noisy, paired on 800 test samples:\n\n| metric | noisy | one |" in text
    tables = (render.comparison_table(found.models), render.difference_table(found.differences[0]))
    for header, rows in tables:
        every = (header, ["---"] * len(header), *rows)
        lines = [f"| {' | '.join(map(str, row))} |" for row in every]
        assert "\n".join(lines) in text
    one, deploy = found.models[0], "focalcal apply temperature.json new.npz -o calibrated.npz"
    assert f"--method temperature -o temperature.json`, then `{deploy}`\n" in text
    assert deploy in render.html(found)
    kept = dataclasses.replace(one, chosen="identity", after=one.before)
    alone = render.markdown(dataclasses.replace(found, models=(kept,), differences=()))
    assert "- Nothing to deploy: no calibrator is clearly better than none.\n" in alone
    assert "focalcal apply" not in alone
    assert "Comparison" not in alone


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


def test_slices_that_are_all_too_small_are_a_sentence(data):
    found, _ = data
    model = found.models[0]
    small = [dataclasses.replace(s, metrics={}) for s in model.slices.slices]
    few = dataclasses.replace(model.slices, slices=tuple(small))
    model = dataclasses.replace(model, slices=few)
    shown = render.html(dataclasses.replace(found, models=(model,)))
    assert "No slice has the 100 samples that a test needs. Too few samples" in shown
    assert "fig-m0-slices" not in shown


def test_markdown_names_the_worst_slice(data):
    found, _ = data
    verdict = found.models[0].slices.verdict
    assert f"- After calibration, by slice: {verdict}" in render.markdown(found)
    model = dataclasses.replace(found.models[0], slices=None)
    assert "by slice" not in render.markdown(dataclasses.replace(found, models=(model,)))


def test_the_page_of_a_monitor_has_every_shown_metric_and_escapes_names(rng):
    def draw(n):
        z = 2 * rng.normal(size=(n, 3))
        p = np.exp(z)
        return np.argmax(z + rng.gumbel(size=z.shape), axis=1), p / p.sum(axis=1, keepdims=True)

    monitor = Monitor(*draw(400))
    y, p = draw(200)
    monitor.update("<script>", p, y)
    monitor.update("no labels", p)
    shown = monitor_page.render(monitor)
    assert "<script></td>" not in shown
    assert "&lt;script&gt;" in shown
    for m in METRICS.values():
        if m.show and m.streams:
            assert m.title.replace("<", "&lt;") in shown
    assert "No alarm after 2 batches." in shown
    assert "No alarm after 0 batches." in monitor_page.render(Monitor(*draw(100)))
    assert "No batches yet." in monitor_page.render(Monitor(*draw(100)))


def test_names_of_batches_are_text_in_the_figures_and_one_batch_is_visible(rng):
    p = rng.uniform(0.5, 1, 300)
    monitor = Monitor(rng.random(300) < p, p)
    monitor.update("<a href='x'>week</a>", p)
    assert monitor.verdict == "No alarm after 1 batch."
    for figure in (monitor_page.accuracy(monitor), monitor_page.evidence(monitor)):
        for trace in figure.traces:
            assert "<" not in "".join(trace["x"])
    assert monitor_page.accuracy(monitor).traces[1]["mode"] == "lines+markers"
    assert "No batch has labels yet" in monitor_page.render(monitor)


def edited(model, **metrics):
    """A model report whose calibrated predictions have other values."""
    after = model.after.evaluation
    changed = {n: dataclasses.replace(after[n], value=v) for n, v in metrics.items()}
    after = dataclasses.replace(after, metrics=after.metrics | changed)
    return dataclasses.replace(model, after=dataclasses.replace(model.after, evaluation=after))


def test_the_verdict_says_of_each_metric_whether_it_rises(data):
    model = data[0].models[0]
    assert model.chosen == "temperature"
    worse = sentences.verdict(edited(model, nll=9.0))
    assert re.search(r"temperature lowers ECE from .* and raises NLL from .* to 9\.0000;", worse)
    both = sentences.verdict(edited(model, ece=0.9, nll=9.0))
    assert re.search(r"temperature raises ECE from .* to 90\.00 % .* and NLL from", both)
    assert "nan" not in sentences.verdict(edited(model, ece=0.0))


def test_models_that_cannot_be_told_apart_are_not_ranked(data):
    found, _ = data
    (d,) = found.differences
    assert "After calibration, one has the lowest NLL" in found.headline
    nll = dataclasses.replace(d.comparison["nll"], better="", p_value=0.5)
    comparison = dataclasses.replace(d.comparison, metrics=d.comparison.metrics | {"nll": nll})
    same = [dataclasses.replace(d, comparison=comparison)]
    apart = "After calibration, one and noisy cannot be told apart by NLL"
    assert f"{apart}." in sentences.headline(found.models, same)
    assert sentences.overall_verdict(found.models, same).startswith(f"{apart} (one: ECE ")
    third = dataclasses.replace(edited(found.models[1], nll=9.0), name="third")
    three = sentences.headline([*found.models, third], same)
    assert "one has the lowest NLL, but cannot be told apart from noisy." in three


def test_infinite_losses_are_shown_and_never_best(data):
    found, _ = data
    model = edited(found.models[0], nll=np.inf)
    rows = [dataclasses.replace(r, evaluation=model.after.evaluation) for r in model.methods]
    model = dataclasses.replace(model, methods=tuple(rows))
    assert render.best(model, METRICS["nll"]) is None
    alone = dataclasses.replace(found, models=(model,), differences=())
    for text in (render.html(alone).split('id="figures"')[0], render.markdown(alone)):
        assert not re.search(r"\b(inf|nan)\b(?!\")", text)
        assert "∞" in text
    (d,) = found.differences
    nll = dataclasses.replace(d.comparison["nll"], first=np.inf, p_value=np.nan, better="")
    comparison = dataclasses.replace(d.comparison, metrics=d.comparison.metrics | {"nll": nll})
    _, rows = render.difference_table(dataclasses.replace(d, comparison=comparison))
    assert [row[-1] for row in rows if row[0] == METRICS["nll"].heading] == ["not tested"]


def test_right_or_wrong_alone_is_no_nan():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 120)
    z = rng.normal(size=(120, 3)) + 9 * np.eye(3)[y]
    model = report.Model("right", *Predictions(logits=z, labels=y).split())
    settings = report.Settings(methods=("temperature",), resamples=20, folds=2)
    found = report.report([model], settings).models[0]
    assert "– when wrong" in sentences.right_wrong_text(found)
    assert "nan" not in render.markdown(report.report([model], settings))


def of_labels(n):
    """The report of one multi-label model."""
    rng = np.random.default_rng(0)
    p = rng.random((400, n))
    whole = Predictions(probs=p**2, labels=(rng.random(p.shape) < p).astype(int), task="multilabel")
    settings = report.Settings(methods=("temperature",), resamples=20, folds=2)
    return report.report([report.Model("m", *whole.split())], settings)


def test_one_label_of_a_multi_label_task_reads_as_one_model():
    found = of_labels(1)
    assert "labels" not in found.headline
    assert found.verdict == found.models[0].verdict


def test_models_of_several_labels_are_compared_label_by_label():
    rng = np.random.default_rng(0)
    p = rng.random((800, 2))
    y = (rng.random(p.shape) < p).astype(int)
    y[:, 1] = y[:, 0]  # the same labels of another name are not the same samples
    z = np.log(p / (1 - p))
    noise = 2 * rng.normal(size=p.shape)
    names = ("sport", "music")

    def model(name, logits):
        whole = Predictions(logits=logits, labels=y, task="multilabel", class_names=names)
        return report.Model(name, *whole.split())

    settings = report.Settings(methods=("temperature",), resamples=20, folds=2)
    models = [model("clear", 2 * z), model("noisy", z + noise)]
    found = report.report(models, settings)
    pairs = [(d.first, d.second) for d in found.differences]
    assert sorted(name.split(": ")[1] for pair in pairs for name in pair) == sorted(names * 2)
    assert all(a.split(": ")[1] == b.split(": ")[1] for a, b in pairs)
    one = "Calibrators, one per label, bring the mean ECE of 2 labels from"
    assert found.verdict.startswith(f"clear: {one}")
    assert f" noisy: {one}" in found.verdict
    assert report.report(models[:1], settings).verdict.startswith(one)


def test_long_names_wrap_in_tables():
    table = page.piece("table", "c", ("a", "b"), [("x" * 200, "1")])
    assert table.count('class="long"') == 1


def test_notes_on_the_chosen_fit_are_warnings():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 24)
    whole = Predictions(logits=rng.normal(size=(24, 3)) + 4 * np.eye(3)[y], labels=y)
    settings = report.Settings(methods=("temperature",), resamples=20, folds=2)
    (found,) = report.report([report.Model("few", *whole.split())], settings).models
    assert found.chosen == "temperature"
    notes = found["temperature"].notes
    assert any("only 12 calibration samples" in note for note in notes)
    assert found.warnings == tuple(f"few: temperature: {note}" for note in notes)


def test_where_no_calibrator_helps_nothing_is_deployed_or_said_twice(data):
    found, _ = data
    model = found.models[0]
    kept = dataclasses.replace(model, chosen="identity", after=model.before)
    only = dataclasses.replace(found, models=(kept,), differences=())
    shown = render.html(only)
    assert "Nothing to deploy" in shown
    assert render.markdown(only).count(sentences.reliability_text(model.before)) == 1
    assert "identity.json" not in shown
    assert sentences.right_wrong_text(kept).count("Before calibration: ") == 1
    assert "Nothing to deploy" not in render.html(found)


def test_labels_of_one_model_are_no_models():
    found = of_labels(4)
    assert (found.title, len(found.models)) == ("m", 4)


def test_batches_without_labels_keep_their_place_among_the_metrics(rng):
    p = rng.uniform(0.5, 1, 300)
    monitor = Monitor(rng.random(300) < p, p)
    for name in ("a", "b", "c"):
        monitor.update(name, p, None if name == "b" else rng.random(300) < p)
    reference, measured = monitor_page.metrics(monitor).choices[0][1]
    assert reference["x"] == ["a", "b", "c"]
    assert measured["x"] == ["a", "c"]
    assert ADVICE not in monitor_page.render(monitor)
    monitor.update("d", p, np.zeros(300, int))
    assert ADVICE in monitor_page.render(monitor)


def test_levels_of_a_single_batch_are_visible(rng):
    p = rng.uniform(0.5, 1, 300)
    monitor = Monitor(rng.random(300) < p, p)
    monitor.update("a", p, rng.random(300) < p)
    alarm = monitor_page.evidence(monitor).traces[-1]
    assert (alarm["name"], alarm["mode"]) == ("alarm", "markers")
    monitor.update("b", p, rng.random(300) < p)
    assert monitor_page.evidence(monitor).traces[-1]["mode"] == "lines"
