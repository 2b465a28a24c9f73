"""The committed pages are those the committed store gives, and the first page's rules."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from focalcal.maps import closest_temperature
from focalcal.metrics import Estimate
from focalcal.predictions import Predictions
from focalcal_papers.experiments import (
    EXPERIMENTS,
    Finding,
    Material,
    Result,
    Run,
    Store,
    reproduction_document,
)
from focalcal_papers.experiments.claims import Claim, claims
from focalcal_papers.experiments.ie_grid import own_cells
from focalcal_papers.experiments.overview import overview, what_was_run
from focalcal_papers.experiments.pairs import Pair, pairs

PAPERS = Path(__file__).parents[3] / "papers"


@pytest.fixture(scope="module")
def stored():
    return Store(PAPERS / "results").runs()


def test_the_committed_pages_are_those_of_the_store():
    made = reproduction_document(EXPERIMENTS.values(), Store(PAPERS / "results"), "results/figures")
    again = "write it again: focalcal reproduce --report papers/REPRODUCTION.md"
    assert (PAPERS / "REPRODUCTION.md").read_text("utf-8") == made.first, again
    for name, text in made.pages.items():
        assert (PAPERS / "reproduction" / name).read_text("utf-8") == text, f"{name}: {again}"


def test_the_first_page_can_be_read():
    text = (PAPERS / "REPRODUCTION.md").read_text("utf-8")
    assert len(text.splitlines()) < 300
    for paper in ("IE", "FTS", "CPE", "GEO"):
        assert f"### {paper}: " in text
        assert f"claims/{paper.lower()}.png" in text
        assert (PAPERS / "results" / "figures" / "claims" / f"{paper.lower()}.png").is_file()
    for line in text.splitlines():
        if line.startswith("| ") and "](reproduction/" in line:
            page = line.split("](")[1].split("#")[0]
            assert (PAPERS / page).is_file(), page


def test_every_claim_has_a_verdict_and_names_its_seeds(stored):
    found = claims(stored, Store(PAPERS / "results"))
    assert {c.verdict for c in found} <= {"holds", "holds only if", "does not hold"}
    assert all(c.condition for c in found if c.verdict == "holds only if")
    assert "5 seeds" in found[0].evidence


def test_an_empty_store_has_run_nothing(tmp_path):
    found = claims([], Store(tmp_path))
    assert {c.verdict for c in found} == {"not run"}


def _run(loss, seed, ece, error=0.1, **settings):
    def at(x):
        return {"value": x, "low": x - 0.01, "high": x + 0.01, "n": 100}

    kept = {"temperature": 1.0 + seed / 10, "n": {"calibration": 10, "test": 100}}
    names = ("ece", "error", "nll", "adaptive_ece", "mce", "confidence_gap")
    kept["before"] = kept["after"] = {n: at(error if n == "error" else ece) for n in names}
    base = {"dataset": "sst", "model": "tree_lstm", "epochs": 25, "loss": loss, "seed": seed}
    return Run(f"{loss}{seed}", base | settings, None, None, kept=kept)


def test_pairs_are_clear_by_welchs_t_test():
    rng = np.random.default_rng(0)
    judged = []
    for apart in (0.5, 1.5, 2.0, 2.5, 4.0):
        first, second = rng.normal(size=5), apart + 2 * rng.normal(size=3)
        test = stats.ttest_ind(first, second, equal_var=False)
        judged.append(Pair("here", list(first), list(second)).clear)
        assert judged[-1] == (test.pvalue < 0.05)
    assert set(judged) == {False, True}
    # Three standard errors apart: with two seeds each that is not clear.
    assert not Pair("here", [0.0, 1.0], [2.1, 3.1]).clear
    assert Pair("here", [1.0, 1.0], [2.0, 2.0]).clear
    assert not Pair("here", [1.0, 1.0], [1.0, 1.0]).clear
    assert Pair("here", [1.0, 1.1], [2.0, 2.1]).clear
    assert not Pair("here", [1.0, 3.0], [2.0, 4.0]).clear
    assert not Pair("here", [1.0], [9.0, 9.1]).clear
    runs = [_run("ce", 0, 0.02), _run("ce", 1, 0.04), _run("fla-53", 0, 0.05)]
    (found,) = pairs(runs, "before", "ece")
    assert found.difference == pytest.approx(2.0)
    assert str(found) == "sst tree_lstm 3.00 ± 1.41 (2 seeds) → 5.00 (1 run)"


def test_a_claim_fails_where_its_numbers_do(tmp_path):
    better = [_run("ce", s, 0.08 + s / 1000) for s in (0, 1)]
    better += [_run("fla-53", s, 0.02 + s / 1000, error=0.2 + s / 1000) for s in (0, 1)]
    calibrates, after, accuracy, *_ = claims(better, Store(tmp_path))
    assert (calibrates.verdict, after.verdict) == ("holds", "holds")
    assert accuracy.verdict == "does not hold"
    worse = [
        dataclasses.replace(r, settings=r.settings | {"loss": o})
        for r, o in zip(better, ("fla-53", "fla-53", "ce", "ce"))
    ]
    calibrates, after, accuracy, *_ = claims(worse, Store(tmp_path))
    assert (calibrates.verdict, after.verdict) == ("does not hold", "does not hold")
    assert accuracy.verdict == "holds"


def test_other_lengths_and_smoothed_labels_are_no_seeds_of_cross_entropy(tmp_path):
    image = {"dataset": "cifar10", "model": "resnet50", "epochs": 350, "mixup": 0.0, "sam": 0.0}
    plain = _run("ce", 0, 0.05, **image)
    others = [
        _run("ce", 1, 0.02, **image | {"epochs": 200}),
        _run("ce", 1, 0.02, **image, label_smoothing=0.05),
        _run("ce", 1, 0.02, **image, weight_decay=5e-3),
        _run("fl-3", 1, 0.02, **image, label_smoothing=0.05),
    ]
    runs = [plain, *others, _run("fla-53", 0, 0.01, **image)]
    (found,) = pairs(runs, "before", "ece")
    assert found.first == [pytest.approx(5.0)]
    assert len({run.setting for run in runs}) == len(runs)
    assert others[1].label == "cifar10 resnet50 ls-0.05, 350 epochs, seed 1"
    # Of Table 1 only cross-entropy and FLA-53, each before and after scaling.
    assert own_cells("1", runs) == 4
    assert own_cells("1", others) == own_cells("10", others) == 0
    some = Predictions(logits=np.eye(2), labels=[0, 1])
    curved = [dataclasses.replace(r, test=some, curvature={}) for r in (plain, others[1])]
    text = what_was_run(EXPERIMENTS["geo/open1"], curved, Store(tmp_path))
    assert "2 of 7 recipes: cifar10 resnet50 350 epochs (ce, ls-0.05)" in text


def test_a_figure_of_several_losses_shows_one_network():
    def run(model, loss, seed=0):
        return _run(loss, seed, 0.05, dataset="cifar10", model=model, epochs=350)

    runs = [run("densenet121", "ce"), run("resnet18", "ce", 1), run("resnet18", "ce", 0)]
    runs += [run("resnet18", "fl-3"), run("resnet50", "ce")]
    found = Material("stored", tuple(runs)).by_loss()
    assert {k: (r.network, r.settings["seed"]) for k, r in found.items()} == {
        "ce": ("resnet18", 1),
        "fl-3": ("resnet18", 0),
    }
    # Equally many losses: the papers' own network.
    found = Material("stored", (*runs, run("resnet50", "fl-3"))).by_loss()
    assert {r.network for r in found.values()} == {"resnet50"}
    assert Material("stored").by_loss() == {}


def test_printed_values_that_do_not_come_out_are_named(tmp_path):
    store = Store(tmp_path)

    def of(agreeing: int) -> Claim:
        found = [Finding("ECE %, sst tree_lstm ce, 25 epochs", 1.0, 1.0)] * agreeing
        found += [Finding("ECE %, sst tree_lstm mmce, 25 epochs", 1.0, 9.0)] * (10 - agreeing)
        store.write(Result("ie/table1", "stored", tuple(found), "", True))
        return next(c for c in claims([], store) if "printed values" in c.says)

    assert [of(n).verdict for n in (9, 6, 3)] == ["holds", "holds only if", "does not hold"]
    assert of(6).condition == "sst tree_lstm mmce are left aside"
    assert "sst tree_lstm 6 of 10 (of each loss 1 run)" in of(6).evidence


def test_the_overview_shows_means_beside_the_papers_values():
    lines = overview([_run("ce", 0, 0.06), _run("ce", 1, 0.08)])
    (row,) = [line for line in lines if line.startswith("| ce ")]
    assert "7.00 ± 1.41 | 7.37 |" in row  # IE Table 1
    assert "1.1 ± 0.1 | 1.8 |" in row  # its T
    assert any("300" in line for line in lines)
    image = {"dataset": "cifar10", "epochs": 350}
    for model, noted in (("resnet18", True), ("resnet50", False), ("densenet121", False)):
        lines = overview([_run("ce", 0, 0.06, model=model, **image)])
        assert ("IE has ResNet-50." in lines) is noted, model


def test_the_list_says_what_was_run(tmp_path):
    store = Store(tmp_path)
    table = EXPERIMENTS["ie/table1"]
    runs = [_run("ce", 0, 0.06), _run("ce", 1, 0.08), _run("brier", 0, 0.08)]
    runs += [_run("fl-1", 0, 0.06), _run("ce", 0, 0.06, epochs=3)]  # of Table 7; too short
    places = "sst tree_lstm 25 epochs (ce, brier, up to 2 seeds)"
    short = "shortened: sst tree_lstm 3 epochs (ce); "
    # Word vectors of 100 numbers are not the paper's.
    found = what_was_run(table, runs, store)
    assert found == f"{short}other settings: {places}; too few for a result"
    runs = [
        dataclasses.replace(r, settings=r.settings | {"data_settings": {"vectors": "g.300d.txt"}})
        for r in runs
    ]
    found = what_was_run(table, runs, store)
    assert found == f"paper scale, 2 of 40 recipes: {places}; {short}too few for a result"
    store.write(Result("ie/table1", "smoke", (Finding("theirs", 1.0),), "", True))
    assert what_was_run(table, [], store) == "published networks"
    store.write(Result("geo/fig4", "lite", (), "", True, ("some run", "another")))
    found = what_was_run(EXPERIMENTS["geo/fig4"], runs, store)
    assert found == "lite scale, 2 of 8 recipes: runs not kept"
    assert what_was_run(EXPERIMENTS["fts/open2"], runs, store) == "not run"
    assert what_was_run(EXPERIMENTS["cpe/minimizers"], runs, store) == "theory"


def test_a_stored_run_without_predictions_keeps_its_record(tmp_path):
    rng = np.random.default_rng(0)
    some = Predictions(logits=rng.normal(size=(200, 4)), labels=rng.integers(4, size=200))
    settings = {"dataset": "sst", "model": "tree_lstm", "epochs": 25, "loss": "ce"}
    store = Store(tmp_path)
    for seed in (0, 7):
        store.add(Run("r", settings | {"seed": seed}, some, some))
    first, later = store.runs()
    assert (first.predicted, later.predicted) == (True, False)
    assert later.before["ece"] == first.before["ece"]
    assert isinstance(later.before["ece"], Estimate)
    assert later.temperature == first.temperature


def test_intervals_are_measured_again_from_the_predictions(tmp_path):
    rng = np.random.default_rng(0)
    z = rng.normal(size=(200, 4)).astype(np.float16).astype(np.float32)  # kept exactly
    some = Predictions(logits=z, labels=rng.integers(4, size=200))
    settings = {"dataset": "sst", "model": "tree_lstm", "epochs": 25, "loss": "ce"}
    store = Store(tmp_path)
    paths = [store.add(Run("r", settings | {"seed": seed}, some, some)) for seed in (0, 7)]
    before = [path.read_text() for path in paths]
    for path in paths:  # as an older version of the library would have measured it
        record = json.loads(path.read_text())
        record["before"]["ece"] |= {"low": -1.0, "high": 2.0}
        path.write_text(json.dumps(record))
    store.remeasure()
    assert paths[0].read_text() == before[0]
    kept, lost = (run.before["ece"] for run in store.runs())
    assert lost.value == kept.value
    assert kept.low > 0
    assert np.isnan([lost.low, lost.high]).all()


def test_only_the_papers_losses_stand_beside_printed_values(stored):
    (panel,) = claims(stored, Store(PAPERS / "results"))[0].panels
    by_place = {curve.label: curve for curve in panel.curves}
    # Ten losses with five seeds; MMCE with another strength is a loss of our own.
    assert len(by_place["20newsgroups-random text_cnn"].x) == 10
    assert sum(r.variant == "mmce strength 2.0" for r in stored) == 5


def test_a_text_on_seeds_is_about_the_runs_shown(stored):
    """Figures of one run per loss do not speak of means over seeds, nor of runs left out."""
    store = Store(PAPERS / "results")
    for name in ("ie/fig3", "ie/fig5"):
        assert "mean ± standard deviation" not in store.read(name, "stored").conclusion
    measured = {run.setting for run in stored if run.curvature is not None}
    compared = {run.setting for run in EXPERIMENTS["geo/fig3"].used(stored)}
    assert f"of {len(measured & compared)} settings" in store.read("geo/fig3", "stored").conclusion


def test_a_ratio_of_temperatures_takes_all_seeds_of_cross_entropy(stored):
    experiment = EXPERIMENTS["fts/compensation"]
    found = experiment.analyse(Material("stored", tuple(experiment.accepted(stored)))).findings
    values = {f.what: f.ours for f in found}
    of = "cifar10 resnet18 {}, 350 epochs, seed {}"
    plain = np.mean([values[f"T, {of.format('ce', seed)}"] for seed in (0, 1)])
    for seed in (0, 1):
        run = of.format("fl-3", seed)
        ratio = values[f"T, {run}"] / plain / closest_temperature(3.0, 3).temperature
        assert values[f"T / (T of ce × T of Ψ, K = 3), {run}"] == pytest.approx(ratio)


def test_the_fall_of_curvature_names_every_network_trained_for_long(stored):
    falls = next(
        c for c in claims(stored, Store(PAPERS / "results")) if "lowers the curv" in c.says
    )
    own = {
        (r.network, r.gamma): r.curvature["trace"]["value"]
        for r in stored
        if r.curvature and r.settings["epochs"] == 175 and r.gamma is not None
    }
    assert {network for network, _ in own} == {"vgg19", "mobilenet_v2"}
    for (network, gamma), trace in own.items():
        line = falls.evidence.partition(f"{network}, 175 epochs: ")[2].partition(".")[0]
        assert f"γ = {gamma:g}: {trace:.0f}" in line.split(", ")
    assert "12 epochs" not in falls.evidence
