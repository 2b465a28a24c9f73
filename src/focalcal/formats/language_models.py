"""Answers of language models to multiple-choice questions, as tables of logits.

A model scores each choice with a log-likelihood, and their softmax is its distribution over the
choices. `lm-eval` (samples of EleutherAI's harness, `--log_samples`) has one log-likelihood per
choice; `lm-eval-norm` divides it by the length of the choice, as the harness's `acc_norm` does.
`inspect` (logs of Inspect, `.eval` or `.json`) has the log-probabilities of the answer's letter.
"""

from __future__ import annotations

import math
import re
import string
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from focalcal.errors import FileFormatError
from focalcal.formats.text import Table, json_lines, objects, parse_object, read_text

Question = tuple[str, str, list[float], int]
"""Task, id, a log-likelihood per choice, index of the right one."""

ABSENT = 1e4
"""How far below its row's largest logit a choice lies if the question does not have it."""


def read_lm_eval(path: Path) -> tuple[Table, dict[str, Any]]:
    """One `samples_*.jsonl`, or a folder of them."""
    return _table(path, _harness(path, normalize=False))


def read_lm_eval_norm(path: Path) -> tuple[Table, dict[str, Any]]:
    """As `read_lm_eval`, with each log-likelihood divided by the length of its choice."""
    return _table(path, _harness(path, normalize=True))


def read_inspect(path: Path) -> tuple[Table, dict[str, Any]]:
    """An Inspect log of a run with `logprobs` and `top_logprobs`, or a folder of them."""
    return _table(path, _inspect(path))


READERS = {"lm-eval": read_lm_eval, "lm-eval-norm": read_lm_eval_norm, "inspect": read_inspect}
"""Readers by the name of the format, which the file's suffix does not determine."""


def _table(path: Path, questions: Iterator[Question]) -> tuple[Table, dict[str, Any]]:
    rows = list(questions)
    if not rows:
        raise FileFormatError(f"{path}: expected multiple-choice questions, found none")
    tasks, names, scores, right = zip(*rows)
    choices = np.array([len(given) for given in scores])
    width = max(2, choices.max())
    logits = np.empty((len(rows), width))
    for i, given in enumerate(scores):
        logits[i] = max(given) - ABSENT
        logits[i, : len(given)] = given
    table = {"id": objects(names), "logits": logits, "labels": np.array(right)}
    table |= {"task": objects(tasks), "choices": choices}
    letters = string.ascii_uppercase
    return table, {"class_names": [letters[i] if i < 26 else str(i) for i in range(width)]}


def _harness(path: Path, *, normalize: bool) -> Iterator[Question]:
    for file in _files(path, "samples_*.jsonl"):
        # samples_<task>_<date>T<time>.jsonl
        task = re.sub(r"_\d{4}-\d{2}-\d{2}T.*$", "", file.name.removesuffix(".jsonl"))
        task = task.removeprefix("samples_")
        first_filter = None
        for number, (where, sample) in enumerate(json_lines(file), 1):
            if "resps" not in sample or "target" not in sample:
                raise FileFormatError(
                    f"{where}: expected a sample of lm-eval with 'resps' and 'target'; "
                    "write them with --log_samples"
                )
            # One line per filter; log-likelihoods are the same in all of them.
            first_filter = first_filter or sample.get("filter")
            if sample.get("filter") != first_filter:
                continue
            yield task, str(sample.get("doc_id", number)), *_scores(sample, where, normalize)


def _scores(sample: dict[str, Any], where: str, normalize: bool) -> tuple[list[float], int]:
    try:
        pairs = [resp[0] for resp in sample["resps"]]
        scores = [float(score) for score, _ in pairs if not isinstance(pairs[0], str)]
        if len(scores) < 2:
            raise ValueError("not a choice")
    except (TypeError, ValueError, IndexError, KeyError):
        raise FileFormatError(
            f"{where}: expected one log-likelihood per choice, got {str(sample['resps'])[:60]}; "
            "tasks that generate text have no distribution over choices"
        ) from None
    arguments, texts = _arguments(sample.get("arguments")), []
    if len(arguments) == len(scores):
        # acc_mutual_info asks for every choice once more, without the question.
        asked = [i for i, (context, _) in enumerate(arguments) if context != ""]
        asked = asked or list(range(len(scores)))
        scores = [scores[i] for i in asked]
        texts = [arguments[i][1] for i in asked]
    if normalize:
        if not texts:
            raise FileFormatError(f"{where}: expected 'arguments' with the text of each choice")
        scores = [score / max(1, len(text.strip())) for score, text in zip(scores, texts)]
    return scores, _right(sample, texts, len(scores), where)


def _arguments(given: Any) -> list[tuple[Any, str]]:
    """(context, continuation) of each request, stored as pairs or, since 0.4.3, as named fields."""
    requests = list(given.values()) if isinstance(given, dict) else given or []
    pairs = [list(r.values()) if isinstance(r, dict) else r for r in requests]
    if not all(isinstance(pair, list) and len(pair) > 1 for pair in pairs):
        return []
    return [(pair[0], str(pair[1])) for pair in pairs]


def _right(sample: dict[str, Any], texts: list[str], n: int, where: str) -> int:
    """The index of the right choice, which is given by number or by text."""
    target = str(sample["target"]).strip()
    if target.isdigit() and int(target) < n:
        return int(target)
    texts = [text.strip() for text in texts]
    if texts.count(target) == 1:
        return texts.index(target)
    raise FileFormatError(
        f"{where}: expected a target among {n} choices, by number or text, got {target[:40]!r}; "
        "questions with several right answers have no single label"
    )


def _inspect(path: Path) -> Iterator[Question]:
    asked = answered = 0
    for file in _files(path, "*.eval", "*.json"):
        for task, sample in _logged(file):
            choices = sample.get("choices") or []
            right = _letters(sample.get("target"), choices)
            if len(choices) < 2 or right is None:
                continue
            asked += 1
            scores = _answer_scores(sample, len(choices))
            if scores is not None:
                answered += 1
                name = f"{sample.get('id')}/{sample.get('epoch', 1)}"
                yield task, name, scores, right
    if asked and not answered:
        raise FileFormatError(
            f"{path}: expected log-probabilities of the answers, found none in {asked} questions; "
            "run Inspect with logprobs=True and top_logprobs=20"
        )


def _logged(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    if file.suffix == ".json":
        log = parse_object(read_text(file), str(file))
        if "eval" not in log:
            raise FileFormatError(f"{file}: expected a log of Inspect with 'eval' and 'samples'")
        for sample in log.get("samples") or []:
            yield log["eval"].get("task", ""), sample
        return
    try:
        with zipfile.ZipFile(file) as archive:
            header = parse_object(archive.read("header.json").decode(), f"{file}: header.json")
            for name in sorted(archive.namelist()):
                if name.startswith("samples/") and name.endswith(".json"):
                    yield header["eval"]["task"], parse_object(archive.read(name).decode(), name)
    except (zipfile.BadZipFile, NotImplementedError, KeyError) as error:
        raise FileFormatError(
            f"{file} is not a readable log of Inspect ({error}); "
            "convert it with inspect log convert --to json"
        ) from error


def _letters(target: Any, choices: list[str]) -> int | None:
    """The index of the one right choice; None if there are several or none."""
    target = target[0] if isinstance(target, list) and len(target) == 1 else target
    if not isinstance(target, str):
        return None
    if len(target) == 1 and target in string.ascii_uppercase[: len(choices)]:
        return string.ascii_uppercase.index(target)
    return choices.index(target) if choices.count(target) == 1 else None


def _answer_scores(sample: dict[str, Any], n: int) -> list[float] | None:
    """Log-probabilities of the letters at the last token that is one of them.

    A letter that is not among the logged alternatives is at most as likely as the least likely of
    them, and is given its log-probability.
    """
    letters = list(string.ascii_uppercase[:n])
    outputs = (sample.get("output") or {}).get("choices") or [{}]
    tokens = ((outputs[0] or {}).get("logprobs") or {}).get("content") or []
    for token in reversed(tokens):
        alternatives = token.get("top_logprobs") or []
        if _bare(token["token"]) not in letters or not alternatives:
            continue
        scores = [-math.inf] * n
        for other in (token, *(o for o in alternatives if o["token"] != token["token"])):
            letter = _bare(other["token"])
            if letter in letters:
                i = letters.index(letter)
                scores[i] = float(np.logaddexp(scores[i], other["logprob"]))
        least = min(other["logprob"] for other in alternatives)
        return [max(score, least) for score in scores]
    return None


def _bare(token: str) -> str:
    """The letter of ' B', 'B.' or '(B'; "?" if there is none."""
    return token.strip(" \n().:*") or "?"


def _files(path: Path, *patterns: str) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(file for pattern in patterns for file in path.rglob(pattern))
    if not found:
        raise FileFormatError(f"{path}: expected files {' or '.join(patterns)}, found none")
    return found
