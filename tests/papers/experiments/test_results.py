"""Theory in full against checked values; small runs, cached, stored and written up."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from typer.testing import CliRunner

from focalcal import metrics
from focalcal.cli import app
from focalcal.errors import FileFormatError, InputError
from focalcal.maps import focal_map
from focalcal.metrics import Estimate
from focalcal.predictions import Predictions
from focalcal_papers.experiments import (
    EXPERIMENTS,
    Finding,
    Material,
    Result,
    Run,
    Store,
    refresh,
    reproduce,
    reproduction_document,
)
from focalcal_papers.experiments import runs as runs_module
from focalcal_papers.experiments.fts import landscapes
from focalcal_papers.experiments.fts_open import predicted_slope, smallest_slope
from focalcal_papers.experiments.published import trained_networks
from focalcal_papers.experiments.runner import analysed
from focalcal_papers.experiments.store import CHECKED, ROUNDING


def pages(experiments, store, figures=None):
    """All pages in one text."""
    made = reproduction_document(experiments, store, figures)
    return "\n".join((made.first, *made.pages.values()))


THEORY = [name for name, e in EXPERIMENTS.items() if e.theory and name != "fts/fig7"]
PRINTED_WRONG = {
    "fts/fig2": {"closest T, K = 2, γ = 0.5", "closest T, K = 2, γ = 3"},
    "cpe/minimizers": {"q* for p = (.9, .1), γ = 1"},
}
"""Where the paper is known to be wrong, and only there, our value differs."""


@pytest.mark.parametrize("name", THEORY)
def test_theory_matches_the_checked_values(name):
    found = EXPERIMENTS[name].analyse(Material("smoke"))
    differing = {f.what for f in found.findings if f.verdict == "differs"}
    assert differing == PRINTED_WRONG.get(name, set())
    assert found.findings
    assert found.conclusion


def test_verdicts():
    assert Finding("x").verdict == "not run"
    assert Finding("x", ours=1.0).verdict == "measured"
    assert Finding("x", ours=1.0, paper=1.04, tolerance=0.05).verdict == "agrees"
    assert Finding("x", ours=1.0, paper=1.5, low=0.9, high=1.13).verdict == "agrees"
    assert Finding("x", ours=1.0, paper=1.6, low=0.9, high=1.13).verdict == "differs"
    assert Finding("x", ours=1.0, paper=1.2).verdict == "agrees"
    assert Finding("x", ours=1.0, paper=1.2, setting="resnet50").verdict == "similar"
    assert Finding("x", ours=1.0, paper=2.0, setting="resnet50").verdict == "unlike"


def test_percent_of_an_undefined_estimate():
    nan = float("nan")
    found = Finding.percent("S99 accuracy", Estimate(nan, nan, nan, 0))
    assert (found.verdict, found.reason) == ("not run", "undefined: no such sample")


def test_findings_survive_json():
    f = Finding("x", 1.0, None, 0.5, float("inf"), 3)
    record = json.loads(json.dumps(f.to_dict(), allow_nan=False))
    assert Finding.from_dict(record) == dataclasses.replace(f, high=None)


def test_smallest_slope_bounds_sampled_pairs():
    # Independent of its derivation: pairs of classes drawn at random, any number of classes.
    rng = np.random.default_rng(1)
    q = rng.dirichlet(np.full(30, 0.3), 2000)
    q = np.maximum(q, 1e-12)
    q /= q.sum(axis=1, keepdims=True)
    for gamma in (1.0, 4.0):
        p = focal_map(q, gamma)
        gap = np.log(q[:, 0] / q[:, 1])
        some = np.abs(gap) > 0.05
        ratio = np.log(p[some, 0] / p[some, 1]) / gap[some]
        assert smallest_slope(gamma) - 1e-4 <= ratio.min() < 1
        assert ratio.max() <= 1 + gamma


@pytest.fixture(scope="module")
def store_path(tmp_path_factory):
    pytest.importorskip("torch")
    path = tmp_path_factory.mktemp("store")
    reproduce(EXPERIMENTS["ie/table6"], "smoke", path)
    return path


def _folders(path):
    return sorted((path / "runs" / "smoke").iterdir())


def test_runs_are_shared_and_not_repeated(store_path):
    before = {p: (p / "status.json").stat().st_mtime_ns for p in _folders(store_path)}
    assert len(before) == 3
    reproduce(EXPERIMENTS["ie/table6"], "smoke", store_path)
    reproduce(EXPERIMENTS["ie/fig1"], "smoke", store_path)
    assert {p: (p / "status.json").stat().st_mtime_ns for p in _folders(store_path)} == before
    assert (store_path / "figures" / "ie" / "fig1.smoke.png").is_file()


def test_an_interrupted_run_continues(store_path, tmp_path):
    from focalcal_papers.training import TrainConfig, load_splits, train

    experiment = EXPERIMENTS["ie/fig1"]
    (recipe,) = experiment.recipes("smoke").values()
    config = TrainConfig.from_dict(recipe)
    splits = load_splits(config, None)
    key = runs_module.content_key(config.to_dict(), splits.described())
    paused = train(config, None, tmp_path / "runs" / "smoke" / key, stop_after=0.0)
    assert paused.state == "paused"
    again = reproduce(experiment, "smoke", tmp_path)
    whole = reproduce(experiment, "smoke", store_path)
    assert again.findings == whole.findings


def test_findings_equal_the_metrics(store_path):
    from focalcal.metrics import high_confidence

    result = Store(store_path).read("ie/table6", "smoke")
    assert not result.comparable
    run = next(r for r in map(Run.from_folder, _folders(store_path)) if r.loss == "ce")
    share = high_confidence(run.test.labels, run.test.probabilities()).share
    (found,) = (
        f
        for f in result.findings
        if "share" in f.what and " ce," in f.what and f.what.endswith("pre")
    )
    assert found.ours == pytest.approx(100 * share)


def test_store_keeps_a_run(store_path, tmp_path):
    store = Store(tmp_path)
    run = Run.from_folder(_folders(store_path)[0])
    path = store.add(run)
    record = json.loads(path.read_text())
    assert {"recipe", "seed", "provenance", "n", "before", "after", "temperature"} <= set(record)
    assert {"commit", "versions", "hardware", "date"} <= set(record["provenance"])
    assert record["before"]["ece"]["low"] <= record["before"]["ece"]["value"]
    (kept,) = store.runs()
    assert kept.settings == run.settings
    assert kept.before["ece"].value == pytest.approx(run.before["ece"].value, abs=2e-3)
    np.testing.assert_allclose(kept.test.logits, run.test.logits, rtol=1e-3, atol=1e-3)
    assert store.add(run) == path  # adding twice keeps one
    assert kept.snapshots == {}
    assert [row["epoch"] for row in kept.rows] == [row["epoch"] for row in run.rows]
    assert kept.rows[-1]["test"]["nll"] == pytest.approx(run.rows[-1]["test"]["nll"], rel=1e-5)


def test_half_precision_keeps_the_metrics(store_path, tmp_path):
    run = Run.from_folder(_folders(store_path)[0])
    record = json.loads(Store(tmp_path).add(run).read_text())
    assert max(record["rounding"].values()) <= ROUNDING
    (kept,) = Store(tmp_path).runs()
    for name in CHECKED:
        metric = getattr(metrics, name)
        before, after = (metric(r.test.labels, r.test.probabilities()) for r in (run, kept))
        assert after == pytest.approx(before, abs=ROUNDING), name
        assert record["before"][name]["value"] == pytest.approx(before, abs=1e-9), name


def test_logits_that_half_precision_would_change_stay_whole(store_path, tmp_path):
    # Added to every class of a row, 4000 changes no probability, but halves step by 2 to 4 there.
    run = Run.from_folder(_folders(store_path)[0])
    large = Predictions(logits=run.test.logits + 4000.0, labels=run.test.labels)
    store = Store(tmp_path)
    store.add(dataclasses.replace(run, test=large))
    (kept,) = store.runs()
    np.testing.assert_array_equal(kept.test.logits, large.logits)


def _pretend(run: Run, **changes) -> Run:
    """The run as if it had been trained in the papers' setting."""
    published = {"dataset": "cifar10", "model": "resnet50", "model_settings": {}, "epochs": 350}
    published |= {"reduction": "sum", "clip_norm": 2.0, "weight_decay": 5e-4}
    return dataclasses.replace(run, settings=run.settings | published | changes)


def test_the_document_shows_stored_runs_beside_the_paper(store_path, tmp_path):
    store = Store(tmp_path)
    for folder in _folders(store_path):
        store.add(_pretend(Run.from_folder(folder)))
    store.write(analysed(EXPERIMENTS["cpe/minimizers"], Material("smoke")))
    store.write(Result("ie/table1", "smoke", (Finding("theirs", 1.0),), "Said theirs.", True))
    names = ("ie/table1", "ie/fig2", "cpe/minimizers", "geo/fig2", "fts/shift", "fts/compensation")
    text = pages([EXPERIMENTS[n] for n in names], store)
    assert "| 4.35 |" in text  # the paper's ECE of CE on ResNet-50
    assert "6 of the table's 80 cells have a run in the paper's own setting" in text
    assert "of 3 pairs of losses" in text
    assert "One run (n = 1) per loss" in text
    assert "Published networks: Said theirs." in text
    assert "\nie/table1,theirs,1," in text
    assert "0.7744" in text
    assert "Not run: no run with a measured Hessian" in text
    assert "## fts/shift\n" in text
    assert "no run was predicted under shift" in text
    assert "stand-in" in text
    # ie/fig2 shows bins of snapshots; these runs made none, and the traces have the means.
    assert "bins were not kept" in text


def test_what_is_kept_of_stored_runs_serves_until_another_run_comes(store_path, tmp_path):
    store = Store(tmp_path)
    one, two, *_ = (_pretend(Run.from_folder(f)) for f in _folders(store_path))
    store.add(one)
    experiment = EXPERIMENTS["fts/open2"]
    assert refresh(experiment, store, store.runs(), None)
    kept = store.read("fts/open2", "stored")
    assert kept.runs == (one.label,)
    assert kept.tables[0].rows[0][0] == one.label
    store.write(dataclasses.replace(kept, conclusion="Kept words."))
    assert "Kept words." in pages([experiment], store)
    store.add(two)
    later = pages([experiment], store)
    assert "Kept words." not in later
    assert two.label in later
    assert not refresh(EXPERIMENTS["fts/shift"], store, store.runs(), None)
    # What no longer can be said goes, with its figure.
    store.write(dataclasses.replace(kept, name="fts/shift"))
    (tmp_path / "figures" / "fts").mkdir(parents=True, exist_ok=True)
    (tmp_path / "figures" / "fts" / "shift.stored.png").write_bytes(b"")
    assert not refresh(EXPERIMENTS["fts/shift"], store, store.runs(), None)
    assert store.read("fts/shift", "stored") is None
    assert not (tmp_path / "figures" / "fts" / "shift.stored.png").exists()


def test_figures_of_stored_runs_are_drawn_and_shown(store_path, tmp_path):
    store = Store(tmp_path)
    for folder in _folders(store_path):
        store.add(_pretend(Run.from_folder(folder)))
    experiment = EXPERIMENTS["ie/fig1"]
    assert refresh(experiment, store, store.runs(), None)
    (tmp_path / "open_questions.md").write_text("Said by hand.\n")
    made = reproduction_document([experiment], store, "figures")
    assert "(../figures/ie/fig1.stored.png)" in made.pages["ie.md"]
    assert (tmp_path / "figures" / "ie" / "fig1.stored.png").is_file()
    assert made.pages["open-questions.md"] == "Said by hand.\n"
    assert "[answers](reproduction/open-questions.md)" in made.first
    made.write(tmp_path / "R.md", store)
    assert (tmp_path / "reproduction" / "values.csv").read_text().startswith("name,quantity,ours")


def test_what_could_not_run_is_listed():
    material = Material("paper", missing={"cifar100-resnet50-ce": "no file"})
    result = analysed(EXPERIMENTS["cpe/minimizers"], material)
    assert result.findings[-1].verdict == "not run"
    assert result.findings[-1].reason == "no file"


def test_labels_tell_recipes_apart():
    p = Predictions(logits=np.zeros((2, 2)), labels=np.array([0, 1]))
    base = {"dataset": "cifar10", "model": "resnet18", "loss": "ce", "epochs": 3, "seed": 0}
    plain = base | {"reduction": "sum", "clip_norm": 2.0, "weight_decay": 5e-4}
    other = base | {"reduction": "mean", "clip_norm": 0.0, "weight_decay": 5e-3, "mixup": 0.2}
    assert Run("r", plain, p, p).label == "cifar10 resnet18 ce, 3 epochs, seed 0"
    ending = "mean loss, unclipped, weight decay 0.005, mixup 0.2"
    assert Run("r", other, p, p).label.endswith(ending)


def test_other_networks_are_not_passed_off_as_the_papers(store_path):
    run = next(r for r in map(Run.from_folder, _folders(store_path)) if r.loss == "ce")
    other = _pretend(run, model="resnet18")
    for name in ("ie/table1", "ie/table6", "fts/table1"):
        found = EXPERIMENTS[name].analyse(Material("stored", (other,)))
        compared = [f for f in found.findings if f.paper is not None]
        assert compared, name
        assert {f.setting for f in compared} == {"resnet50"}, name
        assert {f.verdict for f in compared} <= {"similar", "unlike"}, name


def test_shortened_text_runs_are_not_passed_off_as_the_papers(store_path):
    run = next(r for r in map(Run.from_folder, _folders(store_path)) if r.loss == "ce")
    text = {"dataset": "20newsgroups", "model": "text_cnn", "model_settings": {}, "epochs": 10}
    text["data_settings"] = {"vectors": "glove.npz", "length": 300}
    short = dataclasses.replace(run, settings=run.settings | text)
    assert short.label == "20newsgroups text_cnn ce, 10 epochs, seed 0, length 300"
    found = EXPERIMENTS["ie/table1"].analyse(Material("stored", (short,)))
    assert {f.setting for f in found.findings} == {
        "50 epochs, 1000 words, random split without headers"
    }


def test_psi_and_people_on_stored_runs(store_path, tmp_path):
    run = next(r for r in map(Run.from_folder, _folders(store_path)) if r.loss == "ce")
    focal = _pretend(run, loss="fl-2", model="resnet18")
    for name in ("cpe/psi-trained", "cpe/human"):
        assert EXPERIMENTS[name].accepts(focal.settings)
    found = EXPERIMENTS["cpe/psi-trained"].analyse(Material("stored", (focal,)))
    assert any("Ψ, γ = 2" in f.what for f in found.findings)
    # One vote for the label and none else: the human log-loss is the log-loss.
    np.save(tmp_path / "cifar10h-counts.npy", np.eye(10)[run.test.labels])
    found = EXPERIMENTS["cpe/human"].analyse(Material("stored", (focal,), tmp_path))
    scores = {f.what.rsplit(", ", 1)[-1]: f.ours for f in found.findings}
    assert scores["as they are"] == pytest.approx(run.before["nll"].value, rel=1e-6)
    turned = np.roll(np.eye(10)[run.test.labels], 1, axis=0)
    np.save(tmp_path / "cifar10h-counts.npy", turned)
    with pytest.raises(InputError, match="official order"):
        EXPERIMENTS["cpe/human"].analyse(Material("stored", (focal,), tmp_path))


def test_the_test_images_come_in_the_official_order(tmp_path):
    pytest.importorskip("torch")
    from focalcal_papers.data import load

    rng = np.random.default_rng(0)
    place = tmp_path / "cifar-10-batches-bin"
    place.mkdir()
    for i in range(6):
        name = f"data_batch_{i + 1}.bin" if i < 5 else "test_batch.bin"
        rows = rng.integers(0, 256, (40, 3073), dtype=np.uint8)
        rows[:, 0] = rng.integers(0, 10, 40)
        rows.tofile(place / name)
    test = load("cifar10", tmp_path, complete=False).test
    np.testing.assert_array_equal(test.labels.numpy(), rows[:, 0])
    np.testing.assert_array_equal(test.inputs.reshape(40, -1).numpy(), rows[:, 1:])


def test_predicted_slope_is_that_of_two_classes():
    # The quick rule for K = 2, 1/T = 1 + γ − .38629γ/(1 + .69315γ), has slope .61371 at γ = 0.
    p = np.array([[0.5005, 0.4995]])
    assert predicted_slope(np.log(p)) == pytest.approx(1 - 0.38629, abs=1e-4)


def test_pairs_of_any_number_of_classes_stretch_by_at_most_one_plus_gamma():
    # Independent of the proof: pairs that come near the bound, q_i + q_j = 1 − ε, third class ε.
    for gamma in (0.5, 2.0, 6.0):
        for rest in (1e-6, 1e-2, 0.3):
            top = np.linspace(0.5, 0.999, 200) * (1 - rest)
            q = np.stack([top, 1 - rest - top, np.full_like(top, rest)], axis=1)[1:]
            p = focal_map(q, gamma)
            ratio = np.log(p[:, 0] / p[:, 1]) / np.log(q[:, 0] / q[:, 1])
            assert ratio.max() <= 1 + gamma + 1e-9


def test_curvature_beside_the_store_is_found(store_path, tmp_path):
    run = Run.from_folder(_folders(store_path)[0])
    store = Store(tmp_path)
    store.add(_pretend(run, loss="ce"))
    record = {"n": 10, "trace": {"value": 2.0, "low": 1.0, "high": 3.0}, "top": {"values": [1.5]}}
    (tmp_path / "curvature").mkdir()
    (tmp_path / "curvature" / f"{run.name}.json").write_text(json.dumps(record))
    runs = tuple(store.runs())
    found = EXPERIMENTS["geo/fig2"].analyse(Material("stored", runs))
    assert found.findings[0].ours == 2.0
    lower = {"n": 10, "trace": {"value": 0.2, "low": 0.1, "high": 0.3}}
    mmce = dataclasses.replace(_pretend(run, loss="mmce"), curvature=lower)
    several = Material("stored", (*runs, mmce))
    methods = EXPERIMENTS["geo/open1"].analyse(several)
    assert "lower for mmce (0.2); higher for none; neither for none" in methods.conclusion
    assert "Not run: label smoothing, brier, fl-3, mixup, sam." in methods.conclusion
    # Neither SAM nor mixup was run, so the question about them is not answered.
    assert EXPERIMENTS["geo/open3"].analyse(several).findings[0].verdict == "not run"
    few = EXPERIMENTS["geo/fig3"].analyse(Material("stored", (*runs, mmce, mmce)))
    assert "too few" in few.conclusion
    assert "One γ only" in found.conclusion


def _curved(run: Run, trace: float) -> Run:
    ends = {"value": trace, "low": 0.9 * trace, "high": 1.1 * trace}
    record = {"n": 10, "trace": ends, "top": {"values": [trace / 5]}}
    return dataclasses.replace(run, curvature=record)


def test_seeds_of_one_gamma_are_one_point_of_the_curve(store_path):
    run = _pretend(Run.from_folder(_folders(store_path)[0]), loss="ce")
    settings = run.settings
    second = dataclasses.replace(run, settings=settings | {"seed": 9})
    third = _pretend(run, loss="fl-3")
    runs = (_curved(run, 1000.0), _curved(second, 2000.0), _curved(third, 500.0))
    found = EXPERIMENTS["geo/fig2"].analyse(Material("stored", runs))
    assert "falls, 1.5e+03 at γ = 0 to 500 at γ = 3, λ max 300, 100" in found.conclusion
    traces = [f.ours for f in found.findings if f.what.startswith("trace")]
    assert traces == [1000.0, 2000.0, 500.0]
    curve = found.panels[0].curves[0]
    assert curve.x.tolist() == [0.0, 3.0]
    assert curve.y.tolist() == [1500.0, 500.0]
    assert (curve.low[0], curve.high[0]) == (900.0, 2200.0)


def test_a_penalty_that_does_not_lower_the_error_is_said_so(store_path):
    """ "24.2 % without it, least 24.2 % at τ = 0, where the error goes from 8.1 to 8.1 %"."""
    run = Run.from_folder(_folders(store_path)[0])
    runs = [
        _curved(_pretend(run, loss="ce+curvature", lr=0.01, loss_settings={"tau": tau}), trace)
        for tau, trace in ((0.0, 8.0), (0.1, 4.0))
    ]
    text = EXPERIMENTS["geo/fig4"].analyse(Material("stored", tuple(runs))).conclusion
    assert "least 4 at τ = 0.1; ECE " in text
    assert text.endswith(" % without it, and no lower with it.")


def test_a_landscape_of_some_networks_says_of_how_many(store_path):
    run = Run.from_folder(_folders(store_path)[0])
    two = trained_networks([run, run])
    found = landscapes(two, 1)
    assert found.conclusion == " Shown are the first 1 of 2 networks."
    assert len(found.panels) == 1
    assert landscapes(two[:1], 1).conclusion == ""


def test_shortened_runs_are_only_compared_with_each_other(store_path):
    run = Run.from_folder(_folders(store_path)[0])

    def trained(epochs: int, gamma: int, trace: float, **more) -> Run:
        loss = "ce" if gamma == 0 else f"fl-{gamma}"
        return _curved(_pretend(run, loss=loss, epochs=epochs, **more), trace)

    traces = ((0, 8.0), (1, 4.0), (3, 2.0))
    whole = [trained(350, g, t, model="resnet18") for g, t in traces]
    short = [trained(12, g, t / 50, model="vgg19") for g, t in traces]
    lone = trained(12, 0, 1.0, model="vit")
    material = Material("stored", (*whole, *short, lone))
    for name, accepted in (("geo/fig2", True), ("geo/open1", False), ("ie/table1", False)):
        assert EXPERIMENTS[name].accepts(short[0].settings) is accepted, name
        assert EXPERIMENTS[name].accepts(whole[0].settings), name
    falls = EXPERIMENTS["geo/fig2"].analyse(material).conclusion
    assert "resnet18, 350 epochs: falls, 8 at γ = 0 to 2 at γ = 3" in falls
    assert "vgg19, 12 epochs: falls, 0.16 at γ = 0" in falls
    assert "vit" not in falls
    both = EXPERIMENTS["geo/fig3"].analyse(material)
    counted = {f.what: f.n for f in both.findings if f.what.startswith("rank")}
    assert list(counted.values()) == [3, 4]
    assert "stays open here" in EXPERIMENTS["geo/open2"].analyse(material).conclusion
    other = [trained(12, g, t / 40, model="mobilenet_v2") for g, t in traces]
    best = EXPERIMENTS["geo/open2"].analyse(Material("stored", (*whole, *short, *other)))
    assert "vgg19, 12 epochs" in best.conclusion
    assert "mobilenet_v2, 12 epochs" in best.conclusion
    assert "resnet18" not in best.conclusion
    # The small networks have recipes of different lengths, each trained to its end.
    small = EXPERIMENTS["geo/open2-small"].analyse(Material("lite", (*whole, *short)))
    assert "resnet18, 350 epochs" in small.conclusion
    assert "vgg19, 12 epochs" in small.conclusion
    few = EXPERIMENTS["geo/fig3"].analyse(Material("stored", (whole[0], short[0], short[1])))
    assert "fewer than three" in few.conclusion


def test_ways_of_training_are_compared_on_one_network(store_path):
    run = Run.from_folder(_folders(store_path)[0])
    pairs = (("ce", "resnet18", 8.0), ("brier", "resnet18", 4.0), ("mmce", "resnet50", 1.0))
    runs = tuple(
        _curved(_pretend(run, loss=loss, model=model, model_settings={}), trace)
        for loss, model, trace in pairs
    )
    found = EXPERIMENTS["geo/open1"].analyse(Material("stored", runs)).conclusion
    assert found.startswith("resnet18: trace against that of cross-entropy (8)")
    assert "lower for brier (4); higher for none; neither for none" in found
    assert "Not run: label smoothing, mmce" in found


def test_a_table_without_a_run_says_so():
    found = EXPERIMENTS["ie/table9"].analyse(Material("stored"))
    assert found.findings[0].verdict == "not run"
    assert "fl-1" in found.conclusion


def test_unfinished_and_foreign_folders_are_refused(store_path, tmp_path):
    with pytest.raises(FileFormatError, match="run folder"):
        Run.from_folder(tmp_path)
    for name in ("config.toml", "provenance.json"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "status.json").write_text('{"state": "paused", "epoch": 3}')
    with pytest.raises(FileFormatError, match="paused at epoch 3"):
        Run.from_folder(tmp_path)


def test_broken_findings_are_said(tmp_path):
    store = Store(tmp_path)
    assert store.read("ie/table1", "smoke") is None
    path = tmp_path / "findings" / "ie" / "table1.smoke.json"
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    with pytest.raises(FileFormatError, match="run it again"):
        store.read("ie/table1", "smoke")


def test_missing_data_is_said(tmp_path):
    pytest.importorskip("torch")
    with pytest.raises(InputError, match="none of its runs began"):
        reproduce(EXPERIMENTS["ie/fig1"], "lite", tmp_path, data=tmp_path)
    with pytest.raises(InputError, match="scale"):
        reproduce(EXPERIMENTS["ie/fig7"], "huge", tmp_path)


def test_psi_recovers_the_posterior_of_a_trained_network(tmp_path):
    pytest.importorskip("torch")
    result = reproduce(EXPERIMENTS["cpe/psi-trained"], "smoke", tmp_path)
    errors = {f.what.rsplit("seed 0, ")[-1]: f.ours for f in result.findings if "ECE" in f.what}
    assert result.comparable
    assert errors["as they are"] > 10 > 3 > errors["Ψ, γ = 3"]


@pytest.mark.parametrize("name", ["fts/open2", "fts/ablation", "fts/shift", "geo/open3"])
def test_a_sample_of_the_trained_ones_runs(name, store_path):
    result = reproduce(EXPERIMENTS[name], "smoke", store_path)
    assert result.findings
    assert all(f.verdict == "measured" for f in result.findings)


def test_published_predictions_answer_for_real(shared_data, tmp_path):
    human = reproduce(EXPERIMENTS["cpe/human"], "smoke", tmp_path, data=shared_data)
    assert human.comparable
    scores = {f.what.rsplit("C10, ")[-1]: f.ours for f in human.findings}
    assert scores["temperature"] < scores["as they are"]
    criterion = reproduce(EXPERIMENTS["fts/criterion"], "smoke", tmp_path, data=shared_data)
    assert criterion.runs == ()
    assert criterion.findings[0].n == 10


def test_the_papers_own_network_agrees_with_its_table(shared_data, tmp_path):
    # The published logits give every digit that the paper prints.
    result = reproduce(EXPERIMENTS["ie/table1"], "smoke", tmp_path, data=shared_data)
    before, after, temperature = result.findings
    assert result.comparable
    assert (temperature.paper, temperature.verdict) == (1.1, "agrees")
    assert (round(before.ours, 2), round(after.ours, 2)) == (1.55, 0.95)
    assert (before.paper, after.paper) == (1.55, 0.95)
    assert "at T 1.1 (paper: T 1.1)" in after.what


def test_without_the_files_it_says_so():
    found = EXPERIMENTS["cpe/human"].analyse(Material("smoke"))
    assert found.findings[0].verdict == "not run"
    assert "--data" in found.conclusion


def test_human_counts_of_another_shape(tmp_path):
    from focalcal_papers.experiments import published

    np.save(tmp_path / published.HUMAN, np.ones((3, 4)))
    np.savez(tmp_path / published.GOLDEN, x=1)
    with pytest.raises(FileFormatError, match=r"\(N, 10\)"):
        published.human_counts(tmp_path)


def test_gamma_and_labels_of_runs():
    p = Predictions(logits=np.zeros((2, 2)), labels=np.array([0, 1]))
    base = {"dataset": "cifar10", "model": "resnet18", "epochs": 3, "seed": 0}
    gammas = [Run("r", base | {"loss": x}, p, p).gamma for x in ("ce", "fl-2.5", "fla-53", "mmce")]
    assert gammas == [0.0, 2.5, None, None]


def test_command_line(store_path, tmp_path):
    cli = CliRunner()
    listed = cli.invoke(app, ["reproduce", "--list", "--json"])
    assert len(json.loads(listed.stdout)) == len(EXPERIMENTS)
    assert "ie/table13" in cli.invoke(app, ["reproduce", "--list"]).stdout
    some = cli.invoke(app, ["reproduce", "cpe/*", "ie/table4", "--list"]).stdout
    assert "\ncpe/human  Does Ψ recover" in some
    assert "\nie/table4  " in some
    assert "ie/table13" not in some
    assert "\n    runs needed: 1 smoke, 1 lite, 1 paper\n" in some
    out = ["--out", str(tmp_path)]
    shown = cli.invoke(app, ["reproduce", "cpe/minimizers", *out])
    assert shown.exit_code == 0
    assert "differs" in shown.stdout
    run = str(_folders(store_path)[0])
    report = tmp_path / "R.md"
    kept = cli.invoke(app, ["reproduce", "--add", run, "--report", str(report), *out])
    assert kept.exit_code == 0, kept.output
    assert "0.7744" in (tmp_path / "reproduction" / "cpe.md").read_text()
    assert "(reproduction/cpe.md#cpeminimizers)" in report.read_text()
    again = cli.invoke(app, ["reproduce", "--list", "--json", *out])
    done = {row["name"]: row["run"] for row in json.loads(again.stdout)}
    assert done["cpe/minimizers"] == "theory"
    assert done["ie/table7"] == "not run"
    many = cli.invoke(app, ["reproduce", "cpe/min*", "ie/fig7", "--json", *out])
    assert [r["name"] for r in json.loads(many.stdout)] == ["cpe/minimizers", "ie/fig7"]
    mistyped = ["--report", str(tmp_path / "S.md"), "--out", str(tmp_path / "reslts")]
    with pytest.raises(InputError, match=r"expected a result store at --out .*reslts, got none"):
        cli.invoke(app, ["reproduce", *mistyped], catch_exceptions=False)
    assert not (tmp_path / "S.md").exists()
    wrong = cli.invoke(app, ["reproduce", "ie/tabel1", *out])
    assert wrong.exit_code != 0
    lite = ["--scale", "lite", "--json", *out]
    some = cli.invoke(app, ["reproduce", "ie/fig1", "cpe/minimizers", *lite])
    assert some.exit_code == 0
    assert json.loads(some.stdout)["name"] == "cpe/minimizers"
    assert "left out: expected data for ie/fig1" in some.stderr
    assert cli.invoke(app, ["reproduce", "ie/fig1", "ie/fig2", *lite]).exit_code != 0
    assert cli.invoke(app, ["reproduce", *out]).exit_code != 0


def test_the_list_names_results_on_stand_in_data(store_path):
    reproduce(EXPERIMENTS["fts/open2"], "smoke", store_path)
    listed = CliRunner().invoke(app, ["reproduce", "fts/open2", "--list", "--out", str(store_path)])
    assert "smoke scale: stand-in data" in listed.stdout


def test_reliability_is_shown_before_and_after_scaling(store_path):
    run = _pretend(Run.from_folder(_folders(store_path)[0]), loss="ce")
    found = EXPERIMENTS["ie/fig5"].analyse(Material("stored", (run,)))
    assert [panel.title for panel in found.panels] == ["ce, before", "ce, after T"]
    before, after = (panel.bins for panel in found.panels)
    assert before.total == after.total == run.test.n
    assert before.correct_sums.sum() == after.correct_sums.sum()
