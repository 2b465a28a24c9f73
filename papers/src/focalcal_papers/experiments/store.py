"""The result store: a JSON file per run and experiment, with the runs' compressed predictions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from focalcal import metrics
from focalcal.errors import FileFormatError
from focalcal.files import atomic_path, write_text
from focalcal.formats import read_table
from focalcal.metrics import Estimate
from focalcal.predictions import Predictions
from focalcal_papers.experiments.base import SCALES, Result
from focalcal_papers.experiments.runs import SNAPSHOT, TEXT, Run, content_key, evaluated

KEPT = (
    *("error", "nll", "brier", "ece", "adaptive_ece", "mce", "classwise_ece", "smooth_ece"),
    *("confidence_gap", "high_confidence_share", "high_confidence_accuracy"),
)
CHECKED = ("error", "nll", "brier", "ece", "adaptive_ece", "classwise_ece")
PREDICTED = 2
ROUNDING = 5e-4
"""Predictions are kept in half precision where none of `CHECKED` moves further than this."""


@dataclass(frozen=True)
class Store:
    """A folder: trained/NAME.json and .npz, findings/PAPER/NAME.SCALE.json, curvature/NAME.json."""

    path: Path

    def add(self, run: Run) -> Path:
        """Keep a run: its recipe, origin, metrics with intervals, traces and predictions.

        Of a text data set only the first `PREDICTED` seeds keep their predictions.
        """
        s = run.settings
        key = content_key(s, {k: run.provenance.get(k) for k in ("commit", "date")})
        name = "-".join((run.dataset, *run.network.split(), run.loss, f"s{s['seed']}", key[:6]))
        rounding = _rounding(run.test)
        record = {
            "name": run.name,
            "recipe": s,
            "seed": s["seed"],
            "provenance": run.provenance,
            "n": {"calibration": run.calibration.n, "test": run.test.n},
            "temperature": run.temperature,
            "before": _kept(run.before),
            "after": _kept(run.after),
            "rounding": rounding,
            "curvature": run.curvature,
            "shift": _short(run.shift),
            "snapshots": {
                epoch: {name: table[name].tolist() for name in SNAPSHOT}
                for epoch, table in run.snapshots.items()
            },
            "traces": [_short(row) for row in run.rows],
        }
        if s["dataset"] not in TEXT or s["seed"] < PREDICTED:
            self._write_predictions(run, name, rounding)
        path = self.path / "trained" / f"{name}.json"
        _write_record(path, record)
        return path

    def remeasure(self) -> None:
        """Compute the intervals of all stored runs again, as the library does now.

        Values and T stay those of full precision. Without predictions a run has no interval.
        """
        for path in sorted((self.path / "trained").glob("*.json")):
            record, test = json.loads(path.read_text("utf-8")), self._load(path).test
            for stage, t in (("before", 1.0), ("after", record["temperature"])):
                found: Mapping[str, Estimate] = {}
                if test is not None:
                    scaled = Predictions(logits=test.as_logits() / t)
                    found = evaluated(test.labels, scaled.probabilities()).metrics
                for name, kept in record[stage].items():
                    ends = _plain(found[name]) if name in found else {"low": None, "high": None}
                    kept |= {end: ends[end] for end in ("low", "high")}
            _write_record(path, record)

    def _write_predictions(self, run: Run, name: str, rounding: dict[str, float]) -> None:
        table = {}
        kind = np.float16 if max(rounding.values()) <= ROUNDING else np.float32
        for part, found in (("calibration", run.calibration), ("test", run.test)):
            z = np.asarray(found.as_logits())
            table[f"{part}_logits"] = (_half(z) if kind is np.float16 else z).astype(kind)
            small = np.uint8 if found.n_classes <= 256 else np.int64
            table[f"{part}_labels"] = np.asarray(found.labels).astype(small)
        with atomic_path(self.path / "trained" / f"{name}.npz") as temporary:
            np.savez_compressed(temporary, **table)

    def runs(self) -> list[Run]:
        """All stored runs, in the order of their names."""
        return [self._load(path) for path in sorted((self.path / "trained").glob("*.json"))]

    def _load(self, path: Path) -> Run:
        record = json.loads(path.read_text("utf-8"))
        parts: dict[str, Predictions | None] = {"calibration": None, "test": None}
        if path.with_suffix(".npz").is_file():
            table, _ = read_table(path.with_suffix(".npz"))
            parts = {
                part: Predictions(
                    logits=table[f"{part}_logits"].astype(np.float32),
                    labels=table[f"{part}_labels"].astype(np.int64),
                )
                for part in parts
            }
        beside = self.path / "curvature" / f"{record['name']}.json"
        curvature = record["curvature"]
        if curvature is None and beside.is_file():
            curvature = json.loads(beside.read_text("utf-8"))
        return Run(
            path.stem,
            record["recipe"],
            **parts,
            rows=record["traces"],
            snapshots={
                int(epoch): {name: np.array(values) for name, values in table.items()}
                for epoch, table in record["snapshots"].items()
            },
            curvature=curvature,
            shift=record.get("shift"),
            provenance=record["provenance"],
            kept={k: record[k] for k in ("temperature", "before", "after", "n")},
        )

    def write(self, result: Result) -> Path:
        """Keep what an experiment found."""
        path = self._findings(result.name, result.scale)
        write_text(path, json.dumps(result.to_dict(), indent=1, ensure_ascii=False) + "\n")
        return path

    def read(self, name: str, scale: str) -> Result | None:
        """What an experiment found at a scale, None if it was not run."""
        path = self._findings(name, scale)
        if not path.is_file():
            return None
        try:
            return Result.from_dict(json.loads(path.read_text("utf-8")))
        except (ValueError, KeyError, TypeError) as error:
            raise FileFormatError(f"expected findings in {path}: {error}; run it again") from error

    def kept(self, name: str) -> list[Result]:
        """What was found at each scale on data that are no stand-ins, the largest scale first."""
        results = (self.read(name, scale) for scale in reversed(SCALES))
        return [result for result in results if result is not None and result.comparable]

    def forget(self, name: str, scale: str) -> None:
        """Remove what an experiment found at a scale, and its figure."""
        self._findings(name, scale).unlink(missing_ok=True)
        (self.path / "figures" / f"{name}.{scale}.png").unlink(missing_ok=True)

    def _findings(self, name: str, scale: str) -> Path:
        return self.path / "findings" / f"{name}.{scale}.json"


def _short(value: Any) -> Any:
    """The value with its numbers rounded to six digits."""
    if isinstance(value, dict):
        return {k: _short(v) for k, v in value.items()}
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _rounding(test: Predictions) -> dict[str, float]:
    """How far each of `CHECKED` moves when the logits are rounded to half precision."""
    z = np.asarray(test.as_logits())
    whole, half = (Predictions(logits=x).probabilities() for x in (z, _half(z)))
    of = {name: getattr(metrics, name) for name in CHECKED}
    return {k: float(abs(m(test.labels, half) - m(test.labels, whole))) for k, m in of.items()}


def _half(z: np.ndarray) -> np.ndarray:
    return z.clip(-65504, 65504).astype(np.float16).astype(np.float32)  # the largest finite halves


def _kept(found: Mapping[str, Estimate]) -> dict[str, Any]:
    return {name: _plain(found[name]) for name in KEPT if name in found}


def _plain(e: Estimate) -> dict[str, float | int | None]:
    numbers = {"value": e.value, "low": e.low, "high": e.high}
    return {k: v if np.isfinite(v) else None for k, v in numbers.items()} | {"n": e.n}


def _write_record(path: Path, record: dict[str, Any]) -> None:
    # A line for each epoch of the traces, which are most of the file.
    rows = ",\n  ".join(json.dumps(row, allow_nan=False) for row in record["traces"])
    rest = {k: v for k, v in record.items() if k != "traces"}
    head = json.dumps(rest, indent=1, allow_nan=False).removesuffix("\n}")
    write_text(path, f'{head},\n "traces": [\n  {rows}\n ]\n}}\n')
