"""Errors and warnings of the package.

Every message states what was expected, what was found, and what to do about it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


class FocalcalError(Exception):
    """Base of every error this package raises on purpose."""


class InputError(FocalcalError, ValueError):
    """Data or a setting that cannot be used; the message names the row, column or field."""


class FileFormatError(FocalcalError, ValueError):
    """A file that is missing, damaged, refused, or not in the format it claims."""


class NoRowsError(FileFormatError):
    """A file or frame without rows; such files are skipped among several."""


class MissingExtraError(FocalcalError, ImportError):
    """An optional dependency that is not installed."""

    def __init__(
        self, package: str, extra: str, purpose: str, distribution: str = "focalcal"
    ) -> None:
        self._given = (package, extra, purpose, distribution)
        super().__init__(
            f"{purpose} needs {package}, which is not installed; "
            f"install it with: pip install '{distribution}[{extra}]'"
        )

    def __reduce__(self) -> tuple[type, tuple[str, str, str, str]]:
        return type(self), self._given  # raised in worker processes too


@contextlib.contextmanager
def needing(package: str, extra: str, purpose: str) -> Iterator[None]:
    """Wrap imports of an optional dependency; MissingExtraError if it is not installed."""
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(package, extra, purpose) from error


class EngineError(FocalcalError, RuntimeError):
    """A cluster that cannot be reached, or that failed while working."""


class InputWarning(UserWarning):
    """Data were modified before use, or may not be what they seem; see the message."""


class FitWarning(UserWarning):
    """A calibrator was fitted, but needs attention; see its diagnostics."""
