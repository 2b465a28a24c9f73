"""The page as text: nothing from outside becomes markup, and its numbers are the report's."""

from __future__ import annotations

import base64
import dataclasses
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from focalcal import calibrators, report
from focalcal.predictions import Predictions
from focalcal.report import page, render
from focalcal.report.figure import label
from report.toys import EVIL, calibrated


class Tags(HTMLParser):
    """Ids, the text of tables by id, and the scripts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.scripts = 0
        self.values: list[float] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if "id" in given:
            self.ids.append(given["id"])
        self.scripts += tag == "script"
        if tag == "td" and given.get("data-value"):
            self.values.append(float(given["data-value"]))

    def handle_data(self, data):
        if self.scripts == 0:
            self.text += data


@pytest.fixture(scope="module")
def text(data):
    return render.html(data)


@pytest.fixture(scope="module")
def tags(text):
    return Tags(text)


def test_ids_are_unique_and_there_are_only_our_scripts(tags):
    assert len(tags.ids) == len(set(tags.ids))
    assert tags.scripts == 3


def test_names_are_text(text, tags):
    assert EVIL not in text
    assert EVIL in tags.text
    assert "</script><b>x" in tags.text


def test_size_and_nothing_from_the_network(text):
    assert len(text.encode()) < 6e6
    own = text.split('id="plotly">')[0]
    assert not re.search(r'(src|href)="(https?:)?//', own)


def test_no_piece_of_the_page_is_escaped_as_if_it_were_text(text):
    own = text.split('id="plotly">')[0]
    assert not re.search(r"&lt;(div|p|ul|li|details|span|table|t[rd]|section|figure|select)\b", own)


def test_table_values_equal_the_evaluation(data, tags):
    for result in data.models[0].methods:
        for name in ("ece", "nll", "accuracy", "classwise_ece"):
            assert result.evaluation[name].value in tags.values


def test_only_numbers_that_the_page_explains_are_beside_a_name(data, tags):
    row = data.models[0]["focal-temperature"]
    own = {"unseen": 6e-6, "temperature": 1.25, "gamma": 0.5}
    assert render.parameters(dataclasses.replace(row, parameters=own)) == "γ = 0.5, T = 1.25"
    assert render.parameters(row) in tags.text
    assert "temperature T, which divides the logits, and the γ of its focal map" in tags.text


def test_the_split_of_the_losses_is_shown(data, tags):
    for part in data.models[0].split.values():
        assert f"{part.removed:.4f} ± {part.standard_error:.4f}" in tags.text
        assert f"{part.stays:.4f}" in tags.text
    assert f"{data.models[0].split['nll'].removed:.4f} ±" in render.markdown(data)


def test_figures_hold_the_reports_numbers(data, text):
    embedded = re.search(r'id="figures">(.*?)</script>', text, re.S)[1]
    figures = json.loads(embedded)
    one = data.models[0]
    points = figures["fig-m0-reliability-before"]["traces"][2]
    b = one.before.evaluation.reliability
    assert points["y"] == pytest.approx(b.accuracy[b.counts > 0].tolist(), rel=1e-5)
    errors = figures["fig-m0-landscape"]["traces"][0]["customdata"]
    assert errors[0][0] == pytest.approx(100 * one.landscape.errors[0, 0], rel=1e-5)
    assert set(figures) == {i for i in Tags(text).ids if i in figures}


def test_the_download_is_the_chosen_calibrator(data, text, tmp_path, model):
    payload = re.search(r"data:application/json;base64,([^\"]+)", text)[1]
    (tmp_path / "c.json").write_bytes(base64.b64decode(payload))
    loaded = calibrators.load(tmp_path / "c.json")
    own = calibrated(model, data.models[0].chosen)
    assert (loaded.predict_proba(model.test.logits) == own).all()


def test_several_models(two):
    tags = Tags(render.html(two))
    assert len(tags.ids) == len(set(tags.ids))
    assert "<two>" in tags.text
    assert {"comparison", "m0", "m1", "fig-compare-ece"} <= set(tags.ids)


def test_markdown_says_the_same(data):
    text = render.markdown(data)
    assert EVIL not in text
    assert f"**{data.models[0].chosen}** (chosen)" in text
    ece = data.models[0]["vector"].evaluation["ece"].value
    assert f"{100 * ece:.2f} (" in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.replace(r"\|", "").count("|") for line in rows[:6]}) == 1


def test_names_written_from_right_to_left_leave_the_numbers_beside_them_in_place(rng):
    arabic, hebrew = "\u0642\u0637 \u0645\u0646\u0632\u0644\u064a", "\u05db\u05dc\u05d1"
    p = rng.dirichlet(np.ones(3), 300)
    whole = Predictions(
        probs=p, labels=rng.integers(0, 3, 300), class_names=("<b>", arabic, hebrew)
    )
    settings = report.Settings(methods=("temperature",), resamples=5, folds=2)
    text = render.html(report.report([report.Model(hebrew, *whole.split())], settings))
    shown = re.sub(r'(?s)<pre tabindex="0"><code>.*?</code></pre>', "", text)  # to be copied
    for name in (arabic, hebrew):
        assert name in text
        assert shown.count(name) == shown.count(f"\u2068{name}\u2069") > 5
    copied = "".join(re.findall(r"(?s)<code>.*?</code>", text))
    assert hebrew in copied
    assert "\u2068" not in copied
    assert "\u2068" not in "".join(re.findall(r"base64,([^\"]+)", text))
    assert page.isolated(f"{hebrew}, {arabic}") == f"\u2068{hebrew}\u2069, \u2068{arabic}\u2069"


def test_json_in_a_script_cannot_end_it():
    hidden = page.script_json({"x": "</script><!--\u2028"})
    assert "<" not in hidden
    assert json.loads(hidden) == {"x": "</script><!--\u2028"}


def test_axis_labels_are_short_text():
    assert label("<b>&", 1) == "&lt;b&gt;&amp;"
    assert label("x" * 40, 7) == "x" * 20 + "… (7)"
