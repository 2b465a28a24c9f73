"""The end of a process of a group in a test."""

from __future__ import annotations

import os


def leave() -> None:
    """Exit at once, with code 0.

    At a usual exit gloo's threads may still wait for the interpreter's lock, to free tensors that
    a collective left behind; torch 2.13 then aborts the process.
    """
    os._exit(0)
