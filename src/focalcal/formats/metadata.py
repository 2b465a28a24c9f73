"""What a file says about its columns, as JSON under the name `focalcal`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from focalcal.errors import FileFormatError

METADATA = "focalcal"


def parse_metadata(text: str, path: Path) -> dict[str, Any]:
    """The metadata of a file: task, class_names, provenance; FileFormatError if it is damaged."""
    try:
        metadata = json.loads(text)
    except json.JSONDecodeError as error:
        raise FileFormatError(f"{path}: the focalcal metadata is not JSON ({error})") from error
    if not isinstance(metadata, dict):
        raise FileFormatError(
            f"{path}: expected focalcal metadata to be an object, got {metadata!r}"
        )
    return metadata
