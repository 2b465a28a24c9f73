"""What the commands share about their input: which columns to take, and what was taken."""

from __future__ import annotations

import dataclasses
import glob
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from focalcal.cli import terminal
from focalcal.errors import FileFormatError

if TYPE_CHECKING:
    from focalcal.loading import Keys, Loaded
    from focalcal.predictions import Predictions

PANEL = "Columns of the input"
LAYOUTS = (
    "Files: .npz, .npy, .parquet, .arrow, .csv, .tsv, .jsonl (also .gz), .pt, a Hugging Face "
    "dataset on disk, or a quoted pattern such as 'weeks/*.parquet'. Columns: logits (or probs) as "
    "a matrix, or one column per class such as logits_0, logits_1, …; labels as class numbers or "
    "names; other columns are carried along."
)


def _option(*names: str, help: str) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=PANEL, show_default=False)


OPTIONS: dict[str, Any] = {
    "logits_key": Annotated[
        str | None, _option("--logits", "--logits-key", help="Logits: a column, or a,b,c.")
    ],
    "probs_key": Annotated[
        str | None, _option("--probs", "--probs-key", help="Probabilities: a column, or a,b,c.")
    ],
    "logits_prefix": Annotated[
        str | None, _option("--logits-prefix", help="Logits: all columns that begin so.")
    ],
    "probs_prefix": Annotated[
        str | None, _option("--probs-prefix", help="Probabilities: all columns that begin so.")
    ],
    "labels_key": Annotated[
        str | None, _option("--labels", "--labels-key", help="Labels: a column (or a .npy file).")
    ],
    "ids_key": Annotated[str | None, _option("--id", help="Ids: a column.")],
    "classes": Annotated[
        str | None, _option("--classes", help="Class names a,b,c in the order of the columns.")
    ],
    "task": Annotated[str | None, _option("--task", help="multilabel: several labels per sample.")],
    "layout": Annotated[
        str | None,
        _option("--format", help="lm-eval, lm-eval-norm or inspect: answers of language models."),
    ],
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
        return tuple(part.strip() for part in text.split(",")) if text else None

    @property
    def keys(self) -> Keys:
        from focalcal.loading import Keys

        names = ("logits_key", "probs_key", "labels_key", "ids_key")
        prefixes = ("logits_prefix", "probs_prefix")
        return Keys(*(self.given[name] for name in names + prefixes), self.classes)  # type: ignore[call-arg]

    def load(
        self,
        file: str | Path,
        *,
        labels_required: bool = True,
        task: str | None = None,
        classes: tuple[str, ...] | None = None,
    ) -> Loaded:
        """Read one file and say what was taken from it; `classes` unless the caller names them."""
        from focalcal import loading

        keys = dataclasses.replace(self.keys, classes=self.classes or classes)
        task = task or self.task
        options = {"labels_required": labels_required, "task": task, "layout": self.given["layout"]}
        found = loading.load(file, keys, **options)
        if not found.is_plain:
            terminal.note(f"{Path(file).name}: {found.describe()}")
        return found

    def load_all(self, where: Path, **options: Any) -> list[Loaded]:
        """The file, or every file of a pattern, in the order of their names."""
        first = self.load(files_of(where)[0], **options)
        options["classes"] = first.predictions.class_names or options.get("classes")
        return [first, *(self.load(file, **options) for file in files_of(where)[1:])]

    def predictions(self, where: Path, **options: Any) -> Predictions:
        """The predictions of the file, or of all files of a pattern together."""
        from focalcal.predictions import concatenate

        return concatenate([found.predictions for found in self.load_all(where, **options)])


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
