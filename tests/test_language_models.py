"""Sample files of lm-eval and logs of Inspect: the log-likelihoods that were written come back."""

from __future__ import annotations

import json
import math
import zipfile

import numpy as np
import pytest
from typer.testing import CliRunner

from focalcal.calibrators import load
from focalcal.cli import app
from focalcal.errors import FileFormatError, InputError
from focalcal.formats.language_models import (
    ABSENT,
    read_inspect,
    read_lm_eval,
    read_lm_eval_norm,
)
from focalcal.predictions import Predictions

CHOICES = [" Paris", " Rome", " Oslo"]


def sample(i: int = 0, scores=(-1.0, -2.0, -3.0), target="0", texts=CHOICES, **fields) -> dict:
    """A line as the harness writes it: numbers are texts, arguments are named."""
    return {
        "doc_id": i,
        "doc": {"question": "?"},
        "target": target,
        "arguments": {
            f"gen_args_{j}": {"arg_0": "Q: ?\nA:", "arg_1": text} for j, text in enumerate(texts)
        },
        "resps": [[[str(score), "False"]] for score in scores],
        "filtered_resps": [[str(score), "False"] for score in scores],
        "filter": "none",
        **fields,
    }


def write(path, *samples):
    path.write_text("".join(json.dumps(s) + "\n" for s in samples))
    return path


def test_log_likelihoods_become_logits_with_the_task_and_id(tmp_path) -> None:
    file = write(
        tmp_path / "samples_arc_easy_2026-11-16T10-00-00.123.jsonl",
        sample(4, (-1.5, -0.5, -9.0), "1"),
        sample(7, (-2.0, -2.5, -1.0), " Oslo "),
    )
    table, metadata = read_lm_eval(file)
    np.testing.assert_array_equal(table["logits"], [[-1.5, -0.5, -9.0], [-2.0, -2.5, -1.0]])
    assert table["labels"].tolist() == [1, 2]
    assert table["id"].tolist() == ["4", "7"]
    assert set(table["task"]) == {"arc_easy"}
    assert metadata["class_names"] == ["A", "B", "C"]


def test_older_files_hold_numbers_and_pairs(tmp_path) -> None:
    old = sample(0) | {"arguments": [["Q", c] for c in CHOICES], "target": 2}
    old["resps"] = [[[-1.0, False]], [[-2.0, True]], [[-3.0, False]]]
    table, _ = read_lm_eval(write(tmp_path / "samples_x.jsonl", old))
    assert table["logits"].tolist() == [[-1.0, -2.0, -3.0]]
    assert table["labels"].tolist() == [2]


def test_normalised_by_the_length_of_the_choice(tmp_path) -> None:
    file = write(tmp_path / "samples_x.jsonl", sample(scores=(-10.0, -8.0, -8.0)))
    table, _ = read_lm_eval_norm(file)
    assert table["logits"].tolist() == [[-2.0, -2.0, -2.0]]


def test_a_folder_is_all_of_its_tasks_and_fewer_choices_have_no_probability(tmp_path) -> None:
    write(tmp_path / "samples_a.jsonl", sample(scores=(-1.0, -2.0), texts=CHOICES[:2]))
    write(tmp_path / "samples_b.jsonl", sample())
    table, metadata = read_lm_eval(tmp_path)
    assert table["task"].tolist() == ["a", "b"]
    assert table["choices"].tolist() == [2, 3]
    assert table["logits"][0].tolist() == [-1.0, -2.0, -1.0 - ABSENT]
    p = Predictions(logits=table["logits"], labels=table["labels"]).probabilities()
    np.testing.assert_allclose(p[0], [1 / (1 + math.exp(-1)), 1 / (1 + math.e), 0], atol=1e-15)
    assert metadata["class_names"] == ["A", "B", "C"]


def test_unconditional_scores_and_other_filters_are_left_out(tmp_path) -> None:
    twice = sample(scores=(-1.0, -2.0, -5.0, -6.0), texts=[" x", " y", " x", " y"])
    for j in (2, 3):
        twice["arguments"][f"gen_args_{j}"]["arg_0"] = ""
    file = write(tmp_path / "samples_x.jsonl", twice, sample(filter="strict"))
    table, _ = read_lm_eval(file)
    assert table["logits"].tolist() == [[-1.0, -2.0]]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (sample(target="3"), "expected a target among 3 choices"),
        (sample(target="[0, 2]"), "several right answers"),
        (sample() | {"resps": [["18 eggs"]]}, "one log-likelihood per choice"),
        (sample(scores=(-1.0,), texts=[" x"]), "one log-likelihood per choice"),
        ({"resps": []}, "'resps' and 'target'"),
        ([1], "expected a JSON object"),
    ],
)
def test_what_is_no_multiple_choice_is_refused_with_its_line(tmp_path, line, message) -> None:
    file = write(tmp_path / "samples_x.jsonl", sample(), line)
    with pytest.raises(FileFormatError, match=message) as error:
        read_lm_eval(file)
    assert "line 2" in str(error.value)


def test_files_that_hold_nothing_are_refused(tmp_path) -> None:
    with pytest.raises(FileFormatError, match="found none"):
        read_lm_eval(tmp_path)
    (tmp_path / "samples_x.jsonl").write_text("\n")
    with pytest.raises(FileFormatError, match="found none"):
        read_lm_eval(tmp_path)
    (tmp_path / "samples_x.jsonl").write_text("{")
    with pytest.raises(FileFormatError, match="is not JSON"):
        read_lm_eval(tmp_path)
    with pytest.raises(FileFormatError, match="'arguments'"):
        read_lm_eval_norm(write(tmp_path / "samples_x.jsonl", sample(arguments=None)))


def logged(i: int, target="B", tokens=None, choices=("Paris", "Rome", "Oslo")) -> dict:
    """A sample of Inspect: 'ANSWER: B' with the alternatives to its last token."""
    top = [(" B", -0.2), (" A", -2.0), ("B", -4.0), (" the", -5.0)]
    answer = {
        "token": " B",
        "logprob": -0.2,
        "top_logprobs": [{"token": t, "logprob": p} for t, p in top],
    }
    before = {"token": "ANSWER:", "logprob": 0.0, "top_logprobs": []}
    content = [before, answer] if tokens is None else tokens
    return {
        "id": i,
        "epoch": 1,
        "choices": list(choices),
        "target": target,
        "output": {"choices": [{"logprobs": {"content": content}}]},
    }


def test_letters_of_an_inspect_log(tmp_path) -> None:
    samples = [logged(1), logged(2, ["A"]), logged(3, "Oslo"), logged(4, ["A", "B"])]
    log = {"eval": {"task": "geography"}, "samples": samples}
    (tmp_path / "log.json").write_text(json.dumps(log))
    with zipfile.ZipFile(tmp_path / "log.eval", "w") as archive:
        archive.writestr("header.json", json.dumps({"eval": {"task": "geography"}}))
        for s in samples:
            archive.writestr(f"samples/{s['id']}_epoch_1.json", json.dumps(s))
    both = math.log(math.exp(-0.2) + math.exp(-4.0))  # " B" and "B"
    for name in ("log.json", "log.eval"):
        table, _ = read_inspect(tmp_path / name)
        assert table["labels"].tolist() == [1, 0, 2]  # the fourth has two right answers
        assert table["id"].tolist() == ["1/1", "2/1", "3/1"]
        assert set(table["task"]) == {"geography"}
        # C is not among the alternatives: at most as likely as the last of them.
        np.testing.assert_allclose(table["logits"], [[-2.0, both, -5.0]] * 3)
    assert len(read_inspect(tmp_path)[0]["id"]) == 6


def test_inspect_logs_without_log_probabilities_say_how_to_get_them(tmp_path) -> None:
    file = tmp_path / "log.json"
    file.write_text(json.dumps({"eval": {"task": "t"}, "samples": [logged(1, tokens=[])]}))
    with pytest.raises(FileFormatError, match="top_logprobs=20"):
        read_inspect(file)
    file.write_text("[]")
    with pytest.raises(FileFormatError, match="expected a JSON object"):
        read_inspect(file)
    broken = tmp_path / "log.eval"
    broken.write_bytes(b"PK")
    with pytest.raises(FileFormatError, match="inspect log convert"):
        read_inspect(broken)


@pytest.fixture
def folder(tmp_path):
    """Two tasks of a model whose log-likelihoods are four times too far apart."""
    rng = np.random.default_rng(0)
    for task in ("x", "y"):
        logits = rng.normal(size=(300, 3))
        labels = [str(rng.choice(3, p=np.exp(z) / np.exp(z).sum())) for z in logits]
        lines = [sample(i, 4 * z, y) for i, (z, y) in enumerate(zip(logits, labels))]
        write(tmp_path / f"samples_{task}.jsonl", *lines)
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def test_the_commands_read_a_folder(folder) -> None:
    lm = ("--format", "lm-eval")
    fitted = run("fit", folder, *lm, "-o", folder / "calibrator.json")
    assert fitted.exit_code == 0, fitted.output
    assert 3 < load(folder / "calibrator.json").temperature_ < 5.5
    found = run("evaluate", folder, *lm, "--by", "task", "--resamples", 20, "--json")
    assert found.exit_code == 0, found.output
    assert {s["name"] for s in json.loads(found.stdout)["slices"]} == {"task=x", "task=y"}
    applied = run(
        "apply", folder / "calibrator.json", folder / "samples_x.jsonl", *lm, "-o", folder / "x.csv"
    )
    assert applied.exit_code == 0, applied.output
    calibrated = Predictions.load(folder / "x.csv")
    assert set(calibrated.column("task")) == {"x"}
    assert calibrated.class_names == ("A", "B", "C")


def test_unknown_formats_and_places_leave_nothing_behind(folder) -> None:
    for file, name in ((folder, "helm"), ("none", "inspect")):
        assert run("fit", file, "--format", name, "-o", folder / "no.json").exit_code != 0
        assert not (folder / "no.json").exists()


def test_other_formats_are_refused_by_name(tmp_path) -> None:
    with pytest.raises(InputError, match="expected a format of lm-eval, lm-eval-norm, inspect"):
        Predictions.load(tmp_path, layout="helm")
    with pytest.raises(FileFormatError, match="no file or folder"):
        Predictions.load(tmp_path / "none", layout="inspect")
