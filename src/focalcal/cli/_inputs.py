"""What the commands share about their input: which columns to take, what was taken, and how."""

from __future__ import annotations

import contextlib
import dataclasses
import glob
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from focalcal.cli import terminal
from focalcal.errors import FileFormatError, InputError

if TYPE_CHECKING:
    from focalcal.loading import Loaded
    from focalcal.predictions import Predictions
    from focalcal.scale import Engine, Source

PANEL = "Columns of the input"
LAYOUTS = (
    "Files: .npz, .npy, .parquet, .arrow, .csv, .tsv, .jsonl (also .gz), .pt, a Hugging Face "
    "dataset on disk, or a quoted pattern such as 'weeks/*.parquet'. Columns: logits (or probs) as "
    "a matrix, or one column per class such as logits_0, logits_1, …; labels as class numbers or "
    "names; other columns are carried along."
)


_OPTIONS = {
    "logits": ("--logits,--logits-key", "Logits: a column, a,b,c, or '*' for the rest."),
    "probs": ("--probs,--probs-key", "Probabilities: a column, a,b,c, or '*' for the rest."),
    "logits_prefix": ("--logits-prefix", "Logits: all columns that begin so."),
    "probs_prefix": ("--probs-prefix", "Probabilities: all columns that begin so."),
    "labels": ("--labels,--labels-key", "Labels: a column (or a .npy file)."),
    "ids": ("--id", "Ids: a column."),
    "classes": ("--classes", "Class names a,b,c in the order of the columns."),
    "task": ("--task", "multilabel: several labels per sample."),
    "layout": ("--format", "lm-eval, lm-eval-norm or inspect: answers of language models."),
}
OPTIONS: dict[str, Any] = {
    name: Annotated[
        str | None,
        typer.Option(*flags.split(","), help=help, rich_help_panel=PANEL, show_default=False),
    ]
    for name, (flags, help) in _OPTIONS.items()
}
"""Options that a command with a parameter `inputs: Inputs` gets."""


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The input options of one call of a command."""

    given: dict[str, str | None]

    @property
    def task(self) -> str:
        return self.given["task"] or "auto"

    @property
    def classes(self) -> tuple[str, ...] | None:
        text = self.given["classes"]
        return tuple(listed(text)) if text else None

    def load(self, file: str | Path, **more: Any) -> Loaded:
        """Read one file and say what was taken from it; more: further fields of `loading.Keys`."""
        from focalcal import loading

        keys = self.given | {"task": self.task} | more
        layout, keys["classes"] = keys.pop("layout"), self.classes or more.get("classes")
        found = loading.load(file, loading.Keys(**keys), layout)
        if not found.is_plain:
            terminal.note(f"{Path(file).name}: {found.describe()}")
        return found

    def load_for(self, fitted: Any, file: Path) -> Loaded:
        """A file for a fitted calibrator, with or without labels."""
        names = getattr(fitted, "class_names_", None)
        return self.load(file, labels_required=False, task=fitted.task, classes=names)

    def predictions(self, where: Path, **options: Any) -> Predictions:
        """The predictions of the file, or of all files of a pattern together, sorted by name."""
        from focalcal.predictions import concatenate

        parts: list[Predictions] = []
        for file in files_of(where):
            parts.append(self.load(file, **options).predictions)
            options["classes"] = parts[0].class_names or options.get("classes")
        return concatenate(parts)

    def calibrated(
        self, where: Path, fitted: Any, floor: float | None, **options: Any
    ) -> tuple[Predictions, Any]:
        """Predictions of a single-label task, and their probabilities after `fitted`, if given."""
        given = self.predictions(where, classes=getattr(fitted, "class_names_", None), **options)
        if given.task == "multilabel":
            raise InputError(
                f"{where}: expected a single-label task, got multilabel; go label by label"
            )
        if fitted is None:
            return given, given.probabilities()
        return given, fitted.predict_proba(given.as_logits(floor))

    @contextlib.contextmanager
    def in_parts(
        self, where: Path, engine: str | None, scheduler: str | None, **options: Any
    ) -> Iterator[tuple[Source, Engine]]:
        """The files and the engine; bad files are reported before a cluster is started."""
        from focalcal.scale import Source, open_engine

        keys = {f"{name}_key": self.given[name] for name in ("logits", "probs", "labels")}
        keys |= {name: self.given[name] for name in ("logits_prefix", "probs_prefix")}
        keys |= options | {"classes": self.classes or options.get("classes")}
        source = Source.open(str(where), **keys)
        with open_engine(engine or "stream", scheduler) as running:
            yield source, running


def reads_parts(where: Path, engine: str | None, scheduler: str | None) -> bool:
    """Whether predictions are read in parts: an engine, or several parquet files were given."""
    from focalcal.formats import is_dataset_folder

    if scheduler is not None and engine is None:
        raise InputError(f"expected --engine dask with the scheduler {scheduler}")
    folder = where.is_dir() and not is_dataset_folder(where) and not _holds_answers(where)
    several = is_pattern(where) and files_of(where)[0].suffix == ".parquet"
    return engine is not None or folder or several


def as_pattern(where: Path) -> Path:
    """A folder of parquet files as the pattern that names them, for reading them whole."""
    return Path(glob.escape(str(where)), "*.parquet") if where.is_dir() else where


def _holds_answers(folder: Path) -> bool:
    """Whether these are files of language models (--format), not parts of a table."""
    endings = {path.suffix for path in folder.rglob("*")}
    return ".parquet" not in endings and bool(endings & {".jsonl", ".json", ".eval"})


def listed(text: str) -> list[str]:
    """The parts of "a, b, c"."""
    return [part.strip() for part in text.split(",") if part.strip()]


def is_pattern(where: Path) -> bool:
    """Whether this names several files by wildcards."""
    return any(sign in str(where) for sign in "*?[") and not where.exists()


def files_of(where: Path) -> list[Path]:
    """The file itself, or the files that a pattern names, sorted."""
    if not is_pattern(where):
        return [where]
    found = sorted(glob.glob(str(where), recursive=True))  # noqa: PTH207 (Path.glob wants a folder)
    if not found:
        raise FileFormatError(f"no files at {where}; check the pattern")
    return [Path(name) for name in found]
