"""Reports: one offline page (or Markdown, or JSON) from validation and test predictions.

>>> from focalcal.report import FORMATS
>>> sorted(FORMATS)
['html', 'json', 'md']
"""

from __future__ import annotations

from pathlib import Path

from focalcal.errors import InputError
from focalcal.files import write_text
from focalcal.report.compute import Settings, default_methods, report
from focalcal.report.data import MethodResult, ModelReport, ReportData
from focalcal.report.models import Model, files_in, load_folder, load_model
from focalcal.report.render import html, markdown

FORMATS = {"html": html, "md": markdown, "json": ReportData.to_json}
"""Functions from ReportData to text, by format."""

__all__ = [
    "FORMATS",
    "MethodResult",
    "Model",
    "ModelReport",
    "ReportData",
    "Settings",
    "default_methods",
    "files_in",
    "load_folder",
    "load_model",
    "report",
    "write",
]


def write(data: ReportData, path: str | Path, format: str | None = None) -> Path:
    """Render a report and write it atomically; by default the file's suffix sets the format."""
    write_text(path, FORMATS[check_format(path, format)](data))
    return Path(path)


def check_format(path: str | Path, format: str | None = None) -> str:
    """The format to write: the given one, or that of the file's suffix."""
    ending = Path(path).suffix[1:].lower()
    format = format or {"htm": "html", "markdown": "md"}.get(ending, ending)
    if format not in FORMATS:
        raise InputError(
            f"expected a format of {', '.join(FORMATS)}, got {format!r}; "
            "name the file .html, .md or .json, or give --output-format"
        )
    return format
