"""A run's folder: config, provenance, status, metrics, checkpoints, predictions."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from focalcal.errors import FileFormatError, InputError
from focalcal.files import write_text
from focalcal.provenance import provenance
from focalcal_papers.data.files import PathLike
from focalcal_papers.training.config import TrainConfig


@dataclass(frozen=True)
class RunFolder:
    """Names and small files of one run; for tensors see `checkpoint`."""

    path: Path

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def predictions(self, split: str) -> Path:
        return self.path / "predictions" / f"{split}.npz"

    def snapshot(self, epoch: int) -> Path:
        return self.path / "snapshots" / f"epoch-{epoch:04d}.npz"

    @property
    def exists(self) -> bool:
        """Whether the folder has a run; config.toml is written last."""
        return (self.path / "config.toml").is_file()

    @classmethod
    def create(
        cls, path: PathLike, config: TrainConfig, data_dir: PathLike | None, data: Any = None
    ) -> RunFolder:
        """A new run's folder, or that of a run to continue, whose settings must be the same.

        data: the record from `DataSplits.described`.
        """
        folder = cls(Path(path))
        folder.check_free_for(config)
        if folder.exists:
            return folder
        source = None if data_dir is None else str(Path(data_dir).resolve())
        record = {**provenance(), "data_dir": source, "data": data}
        write_text(folder.path / "provenance.json", json.dumps(record, indent=1) + "\n")
        # Last: a folder with a config is a run.
        write_text(folder.path / "config.toml", config.to_toml())
        return folder

    @classmethod
    def open(cls, path: PathLike) -> RunFolder:
        """An existing run's folder."""
        folder = cls(Path(path))
        if not folder.exists:
            raise FileFormatError(
                f"expected a run folder with config.toml, got {folder.path}; "
                "make one with: focalcal train"
            )
        return folder

    @property
    def config(self) -> TrainConfig:
        return TrainConfig.load(self.path / "config.toml")

    @property
    def provenance(self) -> dict[str, Any]:
        return json.loads((self.path / "provenance.json").read_text("utf-8"))

    @property
    def status(self) -> dict[str, Any]:
        """The last written status; `{"state": "new"}` before the first."""
        try:
            return json.loads((self.path / "status.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {"state": "new"}

    def write_status(self, state: str, **record: Any) -> None:
        text = json.dumps({"state": state, **record}, indent=1)
        write_text(self.path / "status.json", text + "\n")

    def metrics(self, epochs: int | None = None) -> list[dict[str, Any]]:
        """The traces, one dict per traced epoch; only the first `epochs` epochs if given."""
        try:
            lines = (self.path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []
        rows = [json.loads(line) for line in lines]
        return [row for row in rows if epochs is None or row["epoch"] <= epochs]

    def write_metrics(self, rows: list[dict[str, Any]]) -> None:
        text = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)
        write_text(self.path / "metrics.jsonl", text)

    def check_data(self, data: dict[str, Any]) -> None:
        """Raise if a run to continue began with data of a different description."""
        record = self.provenance if self.exists else {}
        if record.get("data") not in (None, data):
            raise InputError(
                f"expected the data that the run in {self.path} began with, from "
                f"{record['data_dir'] or 'no folder'}, got others; give their folder with --data, "
                "or choose another run folder with --out"
            )

    def check_free_for(self, config: TrainConfig) -> None:
        """Raise unless the folder is empty, absent, or holds a run with these settings."""
        if not self.exists:
            if self.path.is_dir() and any(self.path.iterdir()):
                raise InputError(
                    f"expected an empty folder or one with a run to continue, got {self.path}; "
                    "choose another with --out"
                )
            return
        old, new = self.config.to_dict(), config.to_dict()
        changed = [name for name in new if new[name] != old[name]]
        if changed:
            name = changed[0]
            raise InputError(
                f"expected the settings of the run in {self.path}, got {name} = {new[name]!r} "
                f"instead of {old[name]!r}; choose another folder with --out"
            )
