"""JSON in files: what a file says about its columns is JSON under the name `focalcal`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from focalcal.errors import FileFormatError

METADATA = "focalcal"


def parse_object(text: str, where: str) -> dict[str, Any]:
    """A JSON object; anything else is a FileFormatError."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise FileFormatError(f"{where} is not JSON ({error})") from error
    if not isinstance(found, dict):
        raise FileFormatError(f"{where}: expected a JSON object, got {type(found).__name__}")
    return found


def parse_metadata(text: str, path: Path) -> dict[str, Any]:
    """The metadata of a file: task, class_names, provenance."""
    return parse_object(text, f"{path}: the focalcal metadata")
