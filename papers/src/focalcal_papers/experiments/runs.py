"""A trained run as used by the analyses: settings, predictions, traces; no torch needed."""

from __future__ import annotations

import functools
import hashlib
import json
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from focalcal.bins import Bins
from focalcal.calibrators import TemperatureScaling
from focalcal.errors import FileFormatError, FitWarning
from focalcal.formats import read_table
from focalcal.metrics import Estimate, Evaluation, evaluate
from focalcal.predictions import Predictions

Item = TypeVar("Item")
STAND_INS = ("blobs", "synthetic_images", "square_clusters")
IMAGES = ("cifar10", "cifar100", "tiny_imagenet")
TEXT = ("20newsgroups", "sst")
CHANGES = ("label_smoothing", "mixup", "sam")
"""Settings of 0 unless a run tries what they name."""
TEXT_STRENGTH = 8
"""IE's weight of MMCE on text."""
RESAMPLES = 200
SNAPSHOT = ("edges", "counts", "confidence_sums", "correct_sums")


def content_key(*parts: Any) -> str:
    """A hash of settings and descriptions: equal content, equal key.

    >>> content_key({"a": 1, "b": 2}) == content_key({"b": 2, "a": 1})
    True
    """
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def grouped(items: Iterable[Item], key: Callable[[Item], Any]) -> dict[Any, list[Item]]:
    """The items by their key.

    >>> grouped(["ce", "fl-1", "fl-3"], lambda loss: loss[:2])
    {'ce': ['ce'], 'fl': ['fl-1', 'fl-3']}
    """
    found: dict[Any, list[Item]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


@dataclass(frozen=True, eq=False)
class Run:
    """One finished training run.

    settings: those of the recipe; rows: its traces; snapshots: arrays of some epochs;
    curvature: the record of `focalcal curvature`, shift: the one of `shift_record`, if they were
    measured; kept: what a stored run's record says of it. Only the first seeds of a setting are
    stored with their predictions; `predicted` says whether they are there.
    """

    name: str
    settings: dict[str, Any]
    calibration: Predictions | None
    test: Predictions | None
    rows: list[dict[str, Any]] = field(default_factory=list)
    snapshots: dict[int, dict[str, np.ndarray]] = field(default_factory=dict)
    curvature: dict[str, Any] | None = None
    shift: dict[str, Any] | None = None
    provenance: dict[str, Any] = field(default_factory=dict)
    kept: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        # Cross-entropy with label smoothing is a loss with a name of its own.
        if self.settings["loss"] == "ce" and (smoothing := self.settings.get("label_smoothing")):
            named = {"loss": f"ls-{smoothing:g}", "label_smoothing": 0.0}
            object.__setattr__(self, "settings", self.settings | named)

    @property
    def predicted(self) -> bool:
        return self.test is not None

    @property
    def loss(self) -> str:
        return self.settings["loss"]

    @property
    def variant(self) -> str:
        """The loss, with settings that are not those of the papers."""
        extra = dict(self.settings.get("loss_settings") or {})
        if self.settings["dataset"] in TEXT and extra.get("strength") == TEXT_STRENGTH:
            del extra["strength"]
        return self.loss + "".join(f" {k} {v}" for k, v in sorted(extra.items()))

    @property
    def gamma(self) -> float | None:
        """γ of a loss with one fixed γ: cross-entropy has 0."""
        if self.loss == "ce":
            return 0.0
        match = re.fullmatch(r"fl-(\d+(?:\.\d+)?)", self.loss)
        return float(match[1]) if match else None

    @property
    def network(self) -> str:
        """The model's name with the settings that tell it from others of that name."""
        extra = self.settings.get("model_settings") or {}
        return self.settings["model"] + "".join(f" {k} {v}" for k, v in sorted(extra.items()))

    @property
    def dataset(self) -> str:
        """The data set's name, with its split where that is not the usual one."""
        of_data = self.settings.get("data_settings") or {}
        name = self.settings["dataset"]
        if of_data.get("split", "bydate") != "bydate":
            name += f"-{of_data['split']}" + ("" if of_data.get("headers") is False else "-headers")
        return name

    @property
    def place(self) -> str:
        """Data set and network."""
        return f"{self.dataset} {self.network}"

    @property
    def label(self) -> str:
        """Data set, network, loss and seed, with what is unlike the published recipe."""
        return self._described(self.settings.get("origin") or f"seed {self.settings['seed']}")

    @property
    def setting(self) -> str:
        """The label without the seed: what several seeds have in common."""
        return self._described(self.settings.get("origin"))

    def _described(self, which: str | None) -> str:
        s = self.settings
        text = f"{self.place} {self.variant}, {s['epochs']} epochs"
        text += f", {which}" if which else ""
        if s["dataset"] not in IMAGES:
            length = (s.get("data_settings") or {}).get("length")
            return text if length is None else f"{text}, length {length}"
        if (s.get("reduction", "sum"), s.get("clip_norm", 2.0)) != ("sum", 2.0):
            text += f", {reduction_text(s)}"
        if s.get("weight_decay", 5e-4) != 5e-4:
            text += f", weight decay {s['weight_decay']:g}"
        return text + "".join(f", {k} {s[k]:g}" for k in CHANGES if s.get(k))

    @property
    def stand_in(self) -> bool:
        return self.settings["dataset"] in STAND_INS

    @functools.cached_property
    def temperature(self) -> float:
        """T by calibration ECE over 0.1, 0.2, …, 9.9, as the tables of IE use it."""
        if self.kept is not None:
            return self.kept["temperature"]
        return fitted(TemperatureScaling(objective="ece"), self.calibration).temperature_

    @functools.cached_property
    def evaluation(self) -> Evaluation:
        """Everything there is to measure on the test set; reads the predictions."""
        return evaluated(self.test.labels, self.test.probabilities())

    @functools.cached_property
    def before(self) -> Mapping[str, Estimate]:
        """Metrics of the test set; of a stored run those in its record."""
        return self.evaluation.metrics if self.kept is None else _estimates(self.kept["before"])

    @functools.cached_property
    def after(self) -> Mapping[str, Estimate]:
        """The same after temperature scaling."""
        if self.kept is not None:
            return _estimates(self.kept["after"])
        scaled = Predictions(logits=self.test.as_logits() / self.temperature)
        return evaluated(self.test.labels, scaled.probabilities()).metrics

    def snapshot_bins(self) -> dict[int, Bins]:
        """Reliability of the training set after the epochs that were kept."""
        return {e: Bins(*(s[n] for n in SNAPSHOT)) for e, s in self.snapshots.items()}

    @classmethod
    def from_folder(cls, path: Path) -> Run:
        """Read a finished run folder of `focalcal train`."""
        from focalcal_papers.training import RunFolder

        folder = RunFolder.open(path)
        path, status = folder.path, folder.status
        if status["state"] != "finished":
            raise FileFormatError(
                f"expected a finished run, got one that is {status['state']} at epoch "
                f"{status.get('epoch')} in {path}; continue it with: focalcal train"
            )
        test = Predictions.load(folder.predictions("test"))
        beside = {
            name: json.loads((path / f"{name}.json").read_text("utf-8"))
            for name in ("curvature", "shift")
            if (path / f"{name}.json").is_file()
        }
        origin = {k: v for k, v in folder.provenance.items() if k != "data_dir"}
        return cls(
            name=path.name,
            settings=test.provenance["config"],
            calibration=Predictions.load(folder.predictions("calibration")),
            test=test,
            rows=folder.metrics(),
            snapshots={
                int(p.stem.rsplit("-", 1)[1]): read_table(p)[0]
                for p in sorted((path / "snapshots").glob("epoch-*.npz"))
            },
            **beside,
            provenance=origin | {"seconds": status.get("seconds")},
        )


def reduction_text(settings: dict[str, Any]) -> str:
    """How the loss is reduced and its gradient clipped."""
    clip = settings["clip_norm"]
    return f"{settings['reduction']} loss, " + (f"clipped at {clip:g}" if clip else "unclipped")


def _estimates(record: dict[str, dict[str, Any]]) -> dict[str, Estimate]:
    """Estimates from JSON, which has null for what is not finite."""
    nan = float("nan")
    return {
        name: Estimate(**{k: nan if v is None else v for k, v in e.items()})
        for name, e in record.items()
    }


def fitted(calibrator: Any, predictions: Predictions) -> Any:
    """The fitted calibrator, without its warnings, which show in the results."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        return calibrator.fit(predictions.as_logits(), predictions.labels)


def evaluated(labels: Any, probs: Any) -> Evaluation:
    """All metrics with their intervals."""
    return evaluate(labels, probs, resamples=RESAMPLES)
