"""Options that describe the input files of a command, and reading files accordingly."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from focalcal.cli import terminal
from focalcal.errors import FileFormatError, InputError, NoRowsError
from focalcal.files import files_at

if TYPE_CHECKING:
    from focalcal.loading import Loaded
    from focalcal.predictions import Predictions
    from focalcal.scale import Engine, Source

LAYOUTS = (
    "Files: .npz, .npy, .parquet, .arrow, .csv, .tsv, .jsonl (also .gz), .pt, a Hugging Face "
    "dataset on disk, or a quoted pattern such as 'weeks/*.parquet'. Columns: logits (or probs) as "
    "a matrix, or one column per class such as logits_0, logits_1, …; labels as class numbers or "
    "names; other columns are carried along."
)
Name = str | None
VALUES = ("logits", "probs", "logits_prefix", "probs_prefix")
"""The options that name logits or probabilities."""
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Inputs:
    """How to read predictions. A command with a parameter of this type has these options."""

    logits: Annotated[Name, "Logits: a column, a,b,c, or '*'.", "--logits", "--logits-key"] = None
    probs: Annotated[Name, "The same for probabilities.", "--probs", "--probs-key"] = None
    logits_prefix: Annotated[Name, "Logits: all columns with this prefix."] = None
    probs_prefix: Annotated[Name, "Probabilities: all with this prefix."] = None
    labels: Annotated[Name, "Labels: a column or a .npy file.", "--labels", "--labels-key"] = None
    id: Annotated[Name, "Column of sample ids."] = None
    classes: Annotated[Name, "Class names a,b,c in column order."] = None
    task: Annotated[Name, "multilabel: several labels per sample."] = None
    layout: Annotated[Name, "lm-eval, lm-eval-norm or inspect answers.", "--format"] = None

    @property
    def keys(self) -> dict[str, Any]:
        """The given options, as fields of `loading.Keys`."""
        keys = {name: getattr(self, name) for name in (*VALUES, "labels", "task")}
        keys["ids"] = self.id
        keys["classes"] = listed(self.classes) if self.classes else None
        return {name: value for name, value in keys.items() if value is not None}

    def load(self, file: str | Path, classes: Any = None, **more: Any) -> Loaded:
        """Read one file and report the columns used; more: other fields of `loading.Keys`.

        classes: class names, unless they are given as an option.
        """
        from focalcal import loading

        keys = loading.Keys(**{"classes": classes} | self.keys | more)
        found = loading.load(file, keys, self.layout)
        if not found.is_plain:
            terminal.note(f"{Path(file).name}: {found.describe()}")
        return found

    def predictions(self, where: Path, **options: Any) -> Predictions:
        """The predictions of a file, or of all files of a pattern, joined in order of name."""
        from focalcal.predictions import concatenate

        parts: list[Predictions] = []
        for _, found in with_rows(files_of(where), lambda file: self.load(file, **options)):
            parts.append(found.predictions)
            options["classes"] = parts[0].class_names or options.get("classes")
        return concatenate(parts)

    def calibrated(
        self, where: Path, fitted: Any, floor: float | None, classes: Any = None, **options: Any
    ) -> tuple[Predictions, Any]:
        """Predictions of a single-label task, and their probabilities, after `fitted` if given.

        classes: class names, if `fitted` has none.
        """
        names = getattr(fitted, "class_names_", None) or classes
        given = self.predictions(where, classes=names, **options)
        if given.task == "multilabel":
            raise InputError(
                f"{where}: expected a single-label task, got multilabel; proceed label by label, "
                "as in --probs probs_a --labels labels_a"
            )
        if fitted is None:
            return given, given.probabilities()
        return given, fitted.predict_proba(given.as_logits(floor))


@dataclasses.dataclass(frozen=True)
class PartInputs(Inputs):
    """Inputs that may also be read in parts, by an engine of `focalcal.scale`."""

    engine: Annotated[Name, "Read parquet in parts: stream or dask."] = None
    scheduler: Annotated[Name, "Dask scheduler, such as tcp://host:8786."] = None

    def in_parts(self, where: Path) -> bool:
        """Whether to read in parts: if an engine or several parquet files are given."""
        if self.scheduler is not None and self.engine is None:
            raise InputError(f"expected --engine dask with the scheduler {self.scheduler}")
        several = is_several(where) and files_of(where)[0].suffix == ".parquet"
        return self.engine is not None or several

    @contextlib.contextmanager
    def parts(self, where: Path, **options: Any) -> Iterator[tuple[Source, Engine]]:
        """The files and the engine; bad files are reported before a cluster is started."""
        from focalcal.scale import Source, open_engine

        if self.layout is not None:
            raise InputError("expected --format with one file and no engine, got both")
        source = Source.open(str(where), **options | self.keys)
        with open_engine(self.engine or "stream", self.scheduler) as running:
            yield source, running


def listed(text: str) -> list[str]:
    """The parts of "a, b, c"."""
    return [part.strip() for part in text.split(",") if part.strip()]


def is_several(where: Path) -> bool:
    """Whether this names several files: by wildcards, or as a folder of parquet files."""
    if where.is_dir():
        return any(where.glob("*.parquet"))
    return any(sign in str(where) for sign in "*?[") and not where.exists()


def files_of(where: Path) -> list[Path]:
    """The file itself, or the files that a pattern or a folder names, 2 before 10."""
    if not is_several(where):
        return [where]
    if not (found := files_at(where)):
        raise FileFormatError(f"no files at {where}; check the pattern")
    return list(map(Path, found))


def with_rows(files: Sequence[Path], read: Callable[[Path], T]) -> Iterator[tuple[Path, T]]:
    """Each file and the result of `read`; among several files, those without rows are skipped."""
    empty: list[Path] = []
    for file in files:
        try:
            found = read(file)
        except NoRowsError:
            empty.append(file)
            if len(empty) == len(files):
                raise
            terminal.note(f"{file} has no rows and is left out")
        else:
            yield file, found
